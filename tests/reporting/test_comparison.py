"""`bertaccum compare`: figures, tables, differences and errors."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.font_manager import fontManager
from writing import write_json, write_run

from bertaccum.reporting.curves import read_series
from bertaccum.reporting.figures import comparison, fonts_for
from bertaccum.runs.record import read_record

SVG = "{http://www.w3.org/2000/svg}"


def two_runs() -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    small, large = (0.5 + 0.1 * rng.normal(size=n) for n in (80, 20))
    return (
        write_run(Path("small"), small.tolist(), batch=8, accuracies={40: 0.7, 80: 0.9, 60: 0.8}),
        write_run(Path("large"), large.tolist(), batch=32, accuracies={10: 0.6}, seed=3),
    )


def test_compare_writes_figures_tables_and_json(run) -> None:
    small, large = two_runs()
    as_json = run("compare", small, large, "--out", "figures/new", "--json")
    assert (as_json.code, as_json.err) == (0, "")
    values = json.loads(as_json.out)
    first, second = values["runs"]
    assert (first["run"], second["run"]) == ("small", "large")
    assert (first["examples"], second["examples"]) == (640, 640)
    assert (values["smooth"], values["equal_mean_examples"]) == (32, 32)
    assert (first["micro_batch"], first["accumulation_steps"]) == (2, 4)
    # The final evaluation is the last line of the log, update 60, and not the best.
    assert (first["final_dev_accuracy"], first["best_dev_accuracy"]) == (0.8, 0.9)
    assert first["peak_memory_bytes"] == 99 * 2**20
    assert values["differences"] == {"target_batch": [8, 32], "seed": [0, 3]}
    assert values["figures"] == ["figures/new/compare.png", "figures/new/compare.svg"]
    assert Path("figures/new/compare.png").read_bytes().startswith(b"\x89PNG")
    drawn = ElementTree.parse("figures/new/compare.svg").getroot()
    texts = {"".join(element.itertext()) for element in drawn.iter(f"{SVG}text")}
    assert {"small", "large", "examples seen", "dev accuracy"} <= texts
    assert sorted(path.name for path in Path("figures/new").iterdir()) == [
        "compare.png",
        "compare.svg",
    ]

    shown = run("compare", small, large, "--smooth", 64)
    assert shown.code == 0
    assert re.search(r"target batch +│ 8 +│ 32 ", shown.out)
    assert re.search(r"steps x micro-batch +│ 4 x 2 +│ 16 x 2 ", shown.out)
    assert re.search(
        r"best dev accuracy +│ 0.9000 \(update 80\) +│ 0.6000 \(update 10\) ", shown.out
    )
    assert re.search(r"noise of means over 32 +│ 0\.\d{4} +│ 0\.\d{4} ", shown.out)
    assert "mean over the last 64 examples" in shown.out
    assert re.search(r"seed +│ 0 +│ 3 ", shown.out)
    assert "max_seq_length" not in shown.out
    assert Path("compare.png").is_file()


def test_measured_models_are_drawn_against_size_and_latency(run) -> None:
    small, large = two_runs()
    for path, size, value in ((small, 4 * 2**20, 0.7), (large, 64 * 2**20, 0.9)):
        speed = {"model_bytes": size, "milliseconds_per_text": size / 2**20}
        for name in ("test", "test-int8"):
            scores = {"loss": 0.5, "examples": 9, "accuracy": value}
            write_json(path / f"eval-{name}.json", scores | speed)
    write_json(large / "eval-dev.json", {"loss": 0.5, "examples": 9, "accuracy": 0.1})
    values = json.loads(run("compare", small, large, "--json").out)
    assert [(m["run"], m["evaluation"], m["value"]) for m in values["models"]] == [
        (name, split, value)
        for name, value in (("small", 0.7), ("large", 0.9))
        for split in ("test-int8", "test")
    ]
    assert values["figures"][2:] == ["compare-size.png", "compare-size.svg"]
    drawn = ElementTree.parse("compare-size.svg").getroot()
    texts = {"".join(element.itertext()).strip() for element in drawn.iter(f"{SVG}text")}
    assert {"small", "test-int8", "size of the weights (MiB)", "time for one text (ms)"} <= texts
    table = run("compare", small, large).out
    assert re.search(r"large +│ test-int8 +│ accuracy 0.9000 +│ 64 MiB +│ 64.0 ms", table), table


def test_models_without_a_common_metric_are_not_drawn(run) -> None:
    by_f1 = write_run(Path("by-f1"), [0.7, 0.6], accuracies={2: 0.5}, best_by="macro_f1")
    by_accuracy = write_run(Path("by-accuracy"), [0.7, 0.6], accuracies={2: 0.5})
    speed = {"model_bytes": 2**20, "milliseconds_per_text": 1.0, "loss": 0.5, "examples": 9}
    write_json(by_f1 / "eval-test.json", {"macro_f1": 0.25, "accuracy": 0.5} | speed)
    write_json(by_f1 / "eval-dev.json", {"macro_f1": None, "accuracy": 0.5} | speed)
    write_json(by_accuracy / "eval-test.json", {"macro_f1": 0.25, "accuracy": 0.5} | speed)
    values = json.loads(run("compare", by_f1, by_accuracy, "--json").out)
    assert [one["metric"] for one in values["models"]] == ["macro_f1", "accuracy"]
    assert values["figures"] == ["compare.png", "compare.svg"]
    assert "because their metrics differ" in run("compare", by_f1, by_accuracy).out


def test_same_runs_give_identical_figures(run) -> None:
    for folder in ("one", "two"):
        run("compare", *(two_runs() if folder == "one" else ("small", "large")), "--out", folder)
    for name in ("compare.png", "compare.svg"):
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()


def test_short_unfinished_and_nonfinite_runs_can_be_compared(run) -> None:
    write_run(Path("one"), [0.7], batch=2)
    write_run(Path("none"), [], finished=False)
    write_run(Path("nan"), [0.7, None, None], batch=2, accuracies={3: 0.5})
    write_run(Path("under-way"), [0.7, 0.6, 0.5, 0.4], finished=False)
    Path("under-way/plan.json").unlink()
    with Path("under-way/.lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = run("compare", "one", "none", "nan", "under-way", "--json", "--smooth", 2)
        shown = run("compare", "one", "none", "nan", "under-way")
    assert done.code == shown.code == 0
    assert "NaN" not in done.out
    one, none, nan, under_way = json.loads(done.out)["runs"]
    assert (one["training_loss"], one["noise"], one["best_dev_accuracy"]) == (0.7, None, None)
    assert (none["status"], none["updates"], none["training_loss"]) == ("stopped", 0, None)
    assert (nan["training_loss"], nan["final_dev_accuracy"]) == (None, 0.5)
    assert (under_way["status"], under_way["training_loss"]) == ("running", pytest.approx(0.4))
    assert (under_way["micro_batch"], under_way["seconds"]) == (None, 2.0)
    assert under_way["peak_memory_bytes"] == 14 * 2**20
    assert re.search(r"steps x micro-batch +│ 1 x 2 .*│ \? x \? ", shown.out)


def test_runs_of_the_same_name_are_shown_with_their_paths(run) -> None:
    write_run(Path("a/r"), [0.7])
    write_run(Path("b/r"), [0.6])
    values = json.loads(run("compare", "a/r", "b/r", "--json").out)
    assert [row["run"] for row in values["runs"]] == ["a/r", "b/r"]


def test_special_characters_in_run_names_are_drawn_literally(run) -> None:
    names = ("_first", "$a_$b$^$", "<b>&[red]")
    for number, name in enumerate(names):
        write_run(Path(name), [0.7, 0.6 + number])
    done = run("compare", *names)
    assert (done.code, done.err) == (0, "")
    assert all(name in done.out for name in names)
    texts = [*ElementTree.parse("compare.svg").getroot().itertext()]
    assert set(names) <= {text.strip() for text in texts}


def test_other_fonts_draw_the_characters_that_the_usual_one_lacks(run) -> None:
    for name in ("plain", "Ⓐ"):  # DejaVu Sans lacks Ⓐ, and STIXGeneral has it.
        write_run(Path(name), [0.7, 0.6])
    assert fonts_for("plain Ⓐ") == (["DejaVu Sans", "STIXGeneral"], "")
    done = run("compare", "plain", "Ⓐ")
    assert (done.code, done.err) == (0, "")
    assert "STIXGeneral" in Path("compare.svg").read_text()


def test_characters_that_no_font_has_are_named(run, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(Path("plain"), [0.7, 0.6])
    write_run(Path("酒店"), [0.7, 0.6])
    bundled = [f for f in fontManager.ttflist if f.name.startswith(("DejaVu", "Last Resort"))]
    monkeypatch.setattr(fontManager, "ttflist", bundled)
    done = run("compare", "plain", "酒店")
    assert done.code == 0
    assert done.err.startswith("note: no installed font has the characters 店酒, so compare.png")
    assert done.err.count("\n") == 1
    assert "酒店" in Path("compare.svg").read_text(encoding="utf-8")


def test_options_that_only_pretraining_has_are_compared(run) -> None:
    common = {"task": "masked-lm", "text_column": "body"}
    write_run(Path("a"), [0.7], text="/x/a.txt", pack="apart", dev_fraction=0.1, **common)
    write_run(Path("b"), [0.6], text="/x/a.txt,/x/b.txt", whole_words=True, **common)
    write_run(Path("classifier"), [0.5], data="/x/reviews")
    values = json.loads(run("compare", "a", "b", "--json").out)
    assert values["differences"] == {
        "data": ["/x/a.txt", "/x/a.txt,/x/b.txt"],
        "pack": ["apart", "joined"],
        "dev_fraction": [0.1, 0.01],
        "whole_words": [False, True],
    }
    assert "whole_words" in run("compare", "a", "b").out
    for others in (("b", "classifier"), ("classifier", "b")):  # A classifier has no `pack`.
        values = json.loads(run("compare", *others, "--json").out)
        assert {"data", "task"} <= values["differences"].keys()
        assert not {"pack", "text", "text_column"} & values["differences"].keys()


def test_different_training_data_is_listed_as_a_difference(run) -> None:
    two_runs()
    inputs = json.loads(Path("large/inputs.json").read_text())
    write_json(Path("large/inputs.json"), inputs | {"train.tsv": "0123456789abcdef"})
    values = json.loads(run("compare", "small", "large", "--json").out)
    assert values["differences"]["train.tsv"] == ["t" * 12, "0123456789ab"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'RUNS...'"),
        (["small"], "compare needs at least two runs"),
        (["small", "absent"], "absent: there is no run here"),
        (["small", "damaged"], r"damaged/config.yaml: is not the configuration of a run"),
        (["empty", "empty"], "empty: none of these runs has an update yet"),
        (["small", "small", "--out", "small/plan.json"], "--out small/plan.json cannot be written"),
        (["small", "small", "--smooth", "0"], "0 is below 1"),
    ],
)
def test_invalid_input_gives_a_one_line_error(run, arguments: list[str], message: str) -> None:
    write_run(Path("small"), [0.7, 0.6])
    write_run(Path("empty"), [], finished=False)
    write_run(Path("damaged"), [0.7])
    Path("damaged/config.yaml").write_text("seed: [")
    outcome = run("compare", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.err.splitlines()) == 1
    assert re.search(message, outcome.err)
    assert not list(Path().glob("**/compare.*"))


def test_finished_runs_without_updates_have_no_loss(run) -> None:
    write_run(Path("a"), [])
    assert "none of these runs made an update" in run("compare", "a", "a").err
    write_run(Path("b"), [], finished=False)
    assert "wait for the first update" in run("compare", "a", "b").err


def test_figure_of_a_long_run_is_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    losses = (0.5 + 0.1 * rng.normal(size=30_000)).tolist()
    series = read_series(read_record(write_run(tmp_path / "r", losses)))
    assert len(comparison(["r"], [series], 5000, [])[0]["compare.svg"]) < 300_000


def test_compare_does_not_import_tensorflow_or_pyplot(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.7, 0.6])
    code = (
        "import sys\n"
        "from bertaccum.cli.program import cli\n"
        "cli.main(['compare', 'a', 'a'], standalone_mode=False)\n"
        "import bertaccum.reporting.model_card, bertaccum.reporting.report_page\n"
        "heavy = ('tensorflow', 'tf_keras', 'pandas', 'matplotlib.pyplot')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]"
