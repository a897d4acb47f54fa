"""The HTML page of a run: its contents, its markup and its display in a browser."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import browse
from writing import write_json, write_run

from bertaccum import api
from bertaccum.errors import InputError
from bertaccum.reporting.report_page import page, shown_scores
from bertaccum.runs.record import read_record

HOSTILE = '<img src="http://127.0.0.1:9/x.png" onerror="document.title=1"><script>x()</script>&amp;'
EVALUATION: dict[str, Any] = {
    "data": "/home/someone/data/reviews/dev.tsv",
    "examples": 10,
    "accuracy": 0.7,
    "loss": 0.5,
    "matthews_correlation": 0.4,
    "classes": [
        {"name": name, "precision": 0.75, "recall": 0.6, "f1": 0.6667, "examples": 5}
        for name in ("bad", "<good>")
    ],
    "confusion_matrix": [[3, 2], [1, 4]],
}
MISTAKES = [
    {
        "row": 12,
        "text": HOSTILE,
        "label": "bad",
        "label_probability": 0.01235,
        "prediction": "<good>",
        "probability": 0.98765,
    }
]
CANDIDATE = {
    "micro_batch": 2,
    "accumulation_steps": 2,
    "recompute": "none",
    "predicted_peak_bytes": 3 * 2**20,
    "measured_peak_bytes": None,
    "examples_per_second": 7.25,
    "fits": True,
}
VOID = {"meta", "br", "img"}


class Outline(HTMLParser):
    """A parser that collects elements and texts, and fails if elements are not nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    losses = (0.5 + 0.1 * np.random.default_rng(0).normal(size=50)).tolist()
    plan = {"candidates": [CANDIDATE, CANDIDATE | {"micro_batch": 4, "fits": False}]}
    plan["recompute"] = "none"
    return write_run(tmp_path / "r & d", losses, accuracies={25: 0.8, 50: 0.7}, plan=plan)


def test_page_is_complete_and_self_contained(run: Path) -> None:
    outline = Outline(page(read_record(run), EVALUATION, MISTAKES))
    for text in (
        *("r & d", "bert-tiny on reviews, finished", "0.8000 (update 25)", "99 MiB"),
        *("<good>", "0.6667", HOSTILE, "0.9877", "12", "2 *", "4", "7.2", "3 MiB"),
        *("learning_rate", "2e-05", "tf_keras", "2.20.1", "12.5 s", "Learning rate"),
        f"1,200 rows, SHA-256 {'t' * 64}",
        "truncation of train.tsv",
        "38% of the texts are longer than max_seq_length 8 (median 8, longest 10 tokens)",
    ):
        assert text in outline.texts, text
    names = [name for name, _ in outline.elements]
    assert names.count("svg") == 3
    assert not {"script", "img", "link", "iframe", "object", "a"} & set(names)
    assert not any("someone" in text for text in outline.texts)


def test_page_is_accessible(run: Path) -> None:
    outline = Outline(page(read_record(run), EVALUATION, MISTAKES))
    of: dict[str, list[dict[str, str | None]]] = {}
    for name, attributes in outline.elements:
        of.setdefault(name, []).append(attributes)
    assert of["html"][0]["lang"] == "en"
    assert len(of["title"]) == len(of["h1"]) == len(of["main"]) == 1
    assert all(one["role"] == "img" and one["aria-label"] for one in of["svg"])
    assert all(one["scope"] in ("row", "col") for one in of["th"])
    assert len(of["caption"]) == len(of["table"])
    ids = Counter(one["id"] for _, one in outline.elements if one.get("id"))
    assert max(ids.values()) == 1
    # SVG references point to elements of the page.
    text = page(read_record(run), None, [])
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(ids)


def test_page_of_a_run_without_updates_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [], finished=False)
    for name in ("plan.json", "inputs.json"):
        (run / name).unlink()
    texts = Outline(page(read_record(run), None, [])).texts
    assert "There is no update yet." in texts
    assert "The run has no best model yet, because it has not been evaluated on dev.tsv." in texts
    assert "bert-tiny on reviews, stopped" in texts


def test_page_of_a_run_with_one_nonfinite_update(tmp_path: Path) -> None:
    record = read_record(write_run(tmp_path / "r", [None], accuracies={1: 0.5}))
    assert "nan" not in page(record, EVALUATION, []).lower().replace("nance", "")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("plan.json", {"candidates": 5}),
        ("plan.json", {"candidates": [{"predicted_peak_bytes": "much"}]}),
        ("plan.json", {"planning_seconds": [1]}),
        ("summary.json", {"updates": 1}),
        ("inputs.json", {"train.tsv": "x", "rows": 5}),
    ],
)
def test_error_names_run_with_damaged_files(run: Path, name: str, values: dict[str, Any]) -> None:
    write_json(run / name, values)
    with pytest.raises(InputError, match=r"r & d: the files of this run are damaged \(\w+Error: "):
        page(read_record(run), None, [])


def test_page_without_mistakes_and_with_long_texts(run: Path) -> None:
    record = read_record(run)
    assert "The model classified every example of dev.tsv correctly." in page(
        record, EVALUATION, []
    )
    assert "The model classified every word that it read of dev.tsv correctly." in page(
        record, EVALUATION | {"unread_words": 2}, []
    )
    long = [MISTAKES[0] | {"text": "word " * 1000}]
    assert page(record, EVALUATION, long).count("word") == 120


def test_control_characters_on_the_page_are_visible(run: Path) -> None:
    mistakes = [MISTAKES[0] | {"text": "a\x1b[31m \u202eb", "label": "\x9b"}]
    found = page(read_record(run), EVALUATION, mistakes)
    assert r'<td class="text">a\x1b[31m \u202eb</td><td data-head="label">\x9b</td>' in found
    assert "<svg" in found and found.replace("\n", "").isprintable()


def test_report_command_needs_no_best_checkpoint(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bertaccum.cli.program import main

    monkeypatch.chdir(run.parent)
    for arguments, out in ((["r & d"], "r & d/report.html"), (["r & d", "--out", "x"], "x")):
        with pytest.raises(SystemExit) as end:
            main(["report", *arguments])
        assert not end.value.code
        assert capsys.readouterr().out == f"{out}: written\n"
        assert "no best model yet" in Path(out).read_text()
    for wrong, message in (
        (["absent"], "absent: there is no run here"),
        (["r & d", "--out", "no/x"], "--out no/x cannot be written"),
        (["r & d", "--split", "all"], "'all' is not one of"),
        ([], "runs/latest: there is no run here"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["report", *wrong])
        captured = capsys.readouterr()
        assert (end.value.code, captured.out) == (2, "")
        assert message in captured.err
        *_, last = lines = captured.err.splitlines()
        assert [line for line in lines if line.startswith("error: ")] == [last]


def test_report_of_pretraining_names_no_split(tmp_path: Path, program: Any) -> None:
    """A list of many texts is no path in which a split could be."""
    texts = ",".join(f"/home/someone/texts/{number}.txt" for number in range(300))
    options = {"task": "masked-lm", "text": texts, "best_by": "perplexity"}
    best = {"update": 1, "perplexity": 2.0, "loss": 0.7, "accuracy": 0.5, "best": True}
    run = write_run(tmp_path / "r", [0.7], scores=[best], **options)
    code, out, error = program("report", run)
    assert (code, out) == (0, f"{run}/report.html: written\n")
    assert "evaluating on" not in error
    page = (run / "report.html").read_text()
    assert "bert-tiny on 0.txt, 1.txt, 2.txt, " in page and "someone" not in page


def test_page_replaces_a_link_in_the_run_folder(run: Path, tmp_path: Path) -> None:
    victim, own = tmp_path / "victim", tmp_path / "own.html"
    victim.write_text("mine")
    (run / "report.html").symlink_to(victim)
    (tmp_path / "target.html").touch()
    own.symlink_to(tmp_path / "target.html")
    assert api.report(run) == run / "report.html"
    assert victim.read_text() == "mine"
    assert not (run / "report.html").is_symlink() and (run / "report.html").is_file()
    api.report(run, out=str(own))  # The user named this link.
    assert own.is_symlink() and (tmp_path / "target.html").read_text()


def test_browser_shows_the_page_without_errors(run: Path, tmp_path: Path, browser: str) -> None:
    (run / "report.html").write_text(page(read_record(run), EVALUATION, MISTAKES), "utf-8")
    picture = tmp_path / "page.png"
    arguments = ["--dump-dom", f"--screenshot={picture}", "--window-size=500,900"]
    dom, console = browse(browser, (run / "report.html").as_uri(), tmp_path / "profile", *arguments)
    assert console == ""
    outline = Outline(dom)
    assert HOSTILE in outline.texts
    assert "r & d - bertaccum" in outline.texts
    assert [name for name, _ in outline.elements].count("svg") == 3
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_browser_blocks_external_pictures(run: Path, tmp_path: Path, browser: str) -> None:
    """The policy blocks the picture, and its message shows that the tests read the console."""
    text = page(read_record(run), None, [])
    other = tmp_path / "other.html"
    other.write_text(text.replace("</main>", '<img src="http://127.0.0.1:9/x.png"></main>'))
    _, console = browse(browser, other.as_uri(), tmp_path / "profile", "--dump-dom")
    assert "Content Security Policy" in console


def test_score_on_the_test_split_comes_first_on_the_cards(run: Path) -> None:
    test = EVALUATION | {"data": "/home/someone/data/reviews/test.tsv", "accuracy": 0.6543}
    texts = Outline(page(read_record(run), test, MISTAKES)).texts
    names = [text for text in texts if text in ("test accuracy", "best dev accuracy")]
    assert names == ["test accuracy", "best dev accuracy"]
    assert texts[texts.index("test accuracy") + 1] == "0.6543"
    baseline = {"majority_class": "bad", "majority_accuracy": 0.6}
    texts = Outline(page(read_record(run), test | baseline, MISTAKES)).texts
    assert texts[texts.index("test majority baseline") + 1] == "0.6000 (always predicting 'bad')"
    # The best dev score is already there.
    assert "<dt>dev accuracy</dt>" not in page(read_record(run), EVALUATION, MISTAKES)


def test_mistakes_show_the_probability_of_label_and_prediction(run: Path) -> None:
    texts = [t for t in Outline(page(read_record(run), EVALUATION, MISTAKES)).texts if t.strip()]
    first = texts.index(HOSTILE)
    assert texts[first + 1 : first + 5] == ["bad", "0.0123", "<good>", "0.9877"]


@pytest.mark.parametrize(("found", "left_out"), [(2, 0), (100, 0), (130, 30)])
def test_only_classes_that_occur_are_counted(found: int, left_out: int) -> None:
    rows = [{"name": f"type {n}", "f1": n / 1000} for n in range(found)]
    values = EVALUATION | {"classes": rows, "confusion_matrix": None, "reliability": None}
    shown = shown_scores(values | {"confusion_classes": [f"type {n}" for n in range(131)]})
    assert (len(shown["classes"]), shown["more_classes"]) == (found - left_out, left_out)


def test_page_of_very_many_classes_is_a_summary(run: Path) -> None:
    rows = [
        {"name": f"class {n}", "precision": 0.5, "recall": 0.5, "f1": n / 1000, "examples": 9}
        for n in range(600)
    ]
    matrix = [[0] * 600 for _ in rows]
    matrix[7][8] = 5
    text = page(read_record(run), EVALUATION | {"classes": rows, "confusion_matrix": matrix}, [])
    assert len(text) < 500_000
    texts = Outline(text).texts
    said = "scores of the classes with the lowest F1; 500 more classes have a higher one"
    assert said in texts and "class 99" in texts and "class 100" not in texts
    first = texts.index("most frequent mistakes")
    assert [t for t in texts[first + 1 :] if t.strip()][3:6] == ["class 7", "class 8", "5"]


# Shows the page in a frame of this width, and writes measurements of it into the title.
FRAME = """<iframe id="f" style="width: WIDTHpx; height: 900px; border: 0" srcdoc="PAGE"></iframe>
<script>
f.onload = () => {
  const page = f.contentDocument, all = [...page.querySelectorAll(".wide")];
  const cut = all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 40));
  const widths = [...page.querySelectorAll("svg")].map(e => e.getBoundingClientRect().width);
  document.title = JSON.stringify({cut, page: page.documentElement.scrollWidth, widths});
}
</script>"""


@pytest.mark.parametrize("width", [390, 1280])
def test_page_fits_phones_and_charts_have_one_size(
    run: Path, tmp_path: Path, browser: str, width: int
) -> None:
    bins = [{"confidence": c, "accuracy": c, "examples": 5} for c in (0.55, 0.75, 0.95)]
    rows = [row | {"name": f"a long name of a class {n}"} for n in range(2)
            for row in EVALUATION["classes"][:1]]  # fmt: skip
    mistakes = [MISTAKES[0] | {"text": "word " * 60, "label": "a-long-name-of-a-class-" * 3}] * 2
    text = page(
        read_record(run), EVALUATION | {"reliability": bins, "classes": rows}, mistakes
    ).replace('class="wide" tabindex="0"><table class="matrix"', "")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.replace("WIDTH", str(width)).replace("PAGE", html.escape(text)))
    arguments = ["--dump-dom", "--window-size=1400,1000"]
    dom, _ = browse(browser, frame.as_uri(), tmp_path / "profile", *arguments)
    title = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    assert title, dom[:500]
    found = json.loads(html.unescape(title[1]))
    assert found["cut"] == [] and found["page"] <= width
    assert len(found["widths"]) == 4 and max(found["widths"]) < 390
    assert max(found["widths"]) - min(found["widths"]) < 1
