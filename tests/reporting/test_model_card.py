"""Model cards: their contents, and the escaping of names in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from writing import write_json, write_run

from bertaccum.reporting import run_facts
from bertaccum.reporting.model_card import model_card, write_card
from bertaccum.reporting.run_summaries import details, outline
from bertaccum.runs.record import read_record

EVALUATION: dict[str, Any] = {
    "run": "r",
    "data": "/home/someone/data/reviews/test.tsv",
    "examples": 2000,
    "accuracy": 0.91234,
    "loss": 0.25,
    "matthews_correlation": 0.8,
    "macro_f1": 0.5,
    "majority_class": "good",
    "majority_accuracy": 0.51,
    "only_prediction": None,
    "classes": [],
}


def front_matter(card: str) -> dict[str, Any]:
    assert card.startswith("---\n")
    values = yaml.safe_load(card.split("---\n")[1])
    assert isinstance(values, dict)
    return values


@pytest.fixture
def run(tmp_path: Path) -> Path:
    losses = [1 / number for number in range(1, 41)]
    plan = {"memory_bytes": 4 * 2**30, "device": "a GPU"}
    folder = write_run(tmp_path / "r", losses, accuracies={20: 0.8, 40: 0.75}, plan=plan, seed=7)
    (folder / "best").mkdir()
    write_json(folder / "best/labels.json", {"values": ["0", "1"], "names": ["bad", "good"]})
    return folder


def test_card_describes_data_recipe_and_results(run: Path) -> None:
    write_card(run)
    card = (run / "model-card.md").read_text()
    for line in (
        "# r",
        "A text classifier: bert-tiny, fine-tuned on reviews with bertaccum. Its classes: bad,"
        " good.",
        "| best dev accuracy | 0.8000 (update 20) |",
        "| final dev accuracy | 0.7500 |",
        "| examples seen | 160 |",
        "| peak memory | 99 MiB |",
        f"| train.tsv | 1,200 rows, SHA-256 {'t' * 64} |",
        "| truncation of train.tsv | 38% of the texts are longer than max\\_seq\\_length 8"
        " (median 8, longest 10 tokens) |",
        "| target\\_batch | 4 |",
        "| seed | 7 |",
        "| micro-batch | 2 |",
        "| memory | 4,096 MiB |",
        "| device | a GPU |",
        "| tensorflow | 2.20.0 |",
        "bertaccum eval --run runs/r       # scores on test.tsv",
    ):
        assert line in card.splitlines(), line
    # The recipe lists only the options that affect the updates.
    assert "save\\_every" not in card
    assert "someone" not in card
    assert "language" not in front_matter(card)
    assert front_matter(card)["library_name"] == "tf-keras"


def test_card_of_pretraining_has_no_local_paths(tmp_path: Path) -> None:
    home = "/home/someone"
    texts = ",".join(f"{home}/texts/{number}.txt" for number in range(300))
    paths = {"text": texts, "add_words": f"{home}/words.txt", "vocab": f"{home}/vocab.txt"}
    run = write_run(tmp_path / "r", [0.5], task="masked-lm", pack="apart", **paths)
    card = model_card(read_record(run))
    assert "trained further on 0.txt, 1.txt, 2.txt, " in card
    assert {"| add\\_words | words.txt |", "| pack | apart |"} <= {*card.splitlines()}
    assert "someone" not in card
    shown = run_facts.options(read_record(run).config)
    assert shown["text"].endswith(", 298.txt, 299.txt") and "data" not in shown
    assert not any("someone" in value for value in shown.values())


def test_card_omits_truncation_if_it_is_unknown(run: Path) -> None:
    inputs = json.loads((run / "inputs.json").read_text())
    del inputs["truncation"]
    write_json(run / "inputs.json", inputs)
    card = model_card(read_record(run))
    assert "| train.tsv | 1,200 rows" in card
    assert "truncation" not in card


def test_curve_has_ten_rows_and_ends_at_the_last_update(run: Path) -> None:
    card = model_card(read_record(run))
    rows = card.split("## Curve")[1].split("## Versions")[0].strip().splitlines()[4:]
    assert len(rows) == 10
    assert rows[0].startswith("| 16 | 4 | ")
    assert rows[4].endswith("| 0.8000 |")
    assert rows[-1] == "| 160 | 40 | 0.0253 | 2.50e-05 | 0.7500 |"


def test_card_contains_the_evaluations(run: Path) -> None:
    write_json(run / "eval-test.json", EVALUATION)
    (run / "eval-dev.json").write_text('{"accuracy": ')
    write_json(run / "eval-file-x.json", {"accuracy": "high"})
    card = model_card(read_record(run), library="transformers")
    assert "| test.tsv | 2,000 | 0.9123 | 0.5100 (always predicting" in card
    assert "someone" not in card
    known = front_matter(card)
    assert known["library_name"] == "transformers"
    (result,) = known["model-index"][0]["results"]
    assert result["dataset"] == {"name": "reviews (test)", "type": "reviews", "split": "test"}
    assert {"type": "accuracy", "name": "accuracy", "value": 0.9123} in result["metrics"]
    assert {"type": "f1", "name": "macro-F1", "value": 0.5} in result["metrics"]


def test_card_tells_files_with_the_same_name_apart(run: Path) -> None:
    for name, data in (("x", "a/x.csv"), ("x-1a2b3c4d", "b/x.csv"), ("x-int8", "a/x.csv")):
        mode = {"quantize": "int8"} if "int8" in name else {}
        write_json(run / f"eval-file-{name}.json", EVALUATION | {"data": data} | mode)
    card = model_card(read_record(run))
    for file in ("x.csv (file-x)", "x.csv (file-x-1a2b3c4d)", "x.csv (int8, file-x-int8)"):
        assert f"| {file} | 2,000 |" in card


def test_card_and_show_contain_only_evaluations_of_the_best_model(run: Path) -> None:
    """`eval` may have run before a better update, or before a temperature was fitted."""
    current = EVALUATION | {"update": 20, "temperature": 1.5}
    write_json(run / "best/decoding.json", {"temperature": 1.5, "thresholds": None})
    write_json(run / "eval-test.json", current)
    write_json(run / "eval-test-int8.json", current | {"quantize": "int8", "examples": 1999})
    write_json(run / "eval-dev.json", current | {"update": 10, "examples": 777})
    write_json(run / "eval-file-a.json", current | {"temperature": 1.0, "examples": 778})
    write_json(run / "eval-file-b.json", current | {"thresholds": [0.2, 0.5], "examples": 779})
    card = model_card(read_record(run))
    assert "| test.tsv | 2,000 |" in card
    assert "| test.tsv (int8) | 1,999 |" in card
    assert not any(f"| {examples} |" in card for examples in (777, 778, 779))
    assert len(front_matter(card)["model-index"][0]["results"]) == 2
    assert details(read_record(run))["evaluated"].keys() == {"test", "test-int8"}


@pytest.mark.parametrize("task", ["text-classification", "token-classification"])
def test_results_for_the_hub_name_the_task(run: Path, task: str) -> None:
    with (run / "config.yaml").open("a") as file:
        file.write(f"task: {task.removeprefix('text-')}\n")
    write_json(run / "eval-test.json", EVALUATION)
    known = front_matter(model_card(read_record(run)))
    assert known["pipeline_tag"] == task
    assert known["model-index"][0]["results"][0]["task"] == {"type": task}


def test_evaluations_with_other_metrics_keep_their_columns(run: Path) -> None:
    write_json(run / "eval-dev.json", {"examples": 9, "loss": 0.5})
    write_json(run / "eval-test.json", EVALUATION)
    write_json(run / "eval-file-z.json", {"examples": 8, "loss": 0.25, "macro_f1": 0.125})
    card = model_card(read_record(run))
    lines = card.split("evaluated by `bertaccum eval`:")[1].split("## Data")[0].splitlines()
    heads, _, *rows = ([cell.strip() for cell in ln.split("|")[1:-1]] for ln in lines if "|" in ln)
    found = [dict(zip(heads, row, strict=True)) for row in rows]
    assert [row["loss"] for row in found] == ["0.5000", "0.2500", f"{EVALUATION['loss']:.4f}"]
    assert [row["macro-F1"] for row in found] == ["", "0.1250", "0.5000"]


def test_special_characters_in_names_are_escaped(tmp_path: Path) -> None:
    name = "a: [b] | `c` <script>*d*"
    run = write_run(tmp_path / name, [0.5, None], accuracies={2: 0.5}, data=f"/x/{name}")
    (run / "best").mkdir()
    write_json(run / "best/labels.json", {"values": ["0"], "names": ["<b>\n# one | two"]})
    write_json(run / "eval-test.json", EVALUATION)
    card = model_card(read_record(run))
    known = front_matter(card)
    assert known["model-index"][0]["name"] == name
    body = card.split("---\n", 2)[2]
    assert "# a: \\[b\\] \\| \\`c\\` \\<script\\>\\*d\\*" in body
    assert "\\<b\\> \\# one \\| two." in body
    assert "bertaccum predict --run RUN " in body
    for line in body.splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") in (3, 6, 8), line


def test_control_characters_in_names_are_visible(run: Path) -> None:
    names = {"values": ["0"], "names": ["\x1b]0;title\x07 \x9b31m \u202ered"]}
    write_json(run / "best/labels.json", names)
    card = model_card(read_record(run), usage="first\n\x1b[31msecond")
    assert r"Its classes: \x1b\]0;title\x07 \x9b31m \u202ered." in card
    assert "first\n\\x1b[31msecond" in card
    assert card.replace("\n", "").isprintable()


def test_usage_can_be_replaced_and_unfinished_runs_get_no_card(run: Path) -> None:
    card = model_card(read_record(run), usage="Load it so.")
    assert card.endswith("## Use\n\nLoad it so.\n")
    (run / "summary.json").unlink()
    write_card(run)
    assert not (run / "model-card.md").exists()
    # An export of an unfinished run still needs a card.
    assert "final dev accuracy" not in model_card(read_record(run))


def test_card_says_whether_updates_depend_on_the_cut(tmp_path: Path) -> None:
    same = "The split does not change the updates"
    first = write_run(tmp_path / "a", [0.5])
    other = write_run(tmp_path / "b", [0.5], dropout_stream="micro-batch")
    assert same in model_card(read_record(first))
    assert same not in model_card(read_record(other))


def test_card_of_a_run_with_one_nonfinite_update(tmp_path: Path) -> None:
    card = model_card(read_record(write_run(tmp_path / "r", [None])))
    assert "| 4 | 1 |  | 1.00e-03 |  |" in card
    assert "null" not in json.dumps(card)


@pytest.mark.parametrize("finished", [True, False])
def test_custom_model_is_named_without_its_folder(tmp_path: Path, finished: bool) -> None:
    path = "/home/someone/bert_config.json"
    options = {"bert_config": path, "model": None, "init_checkpoint": "none"}
    run = write_run(tmp_path / "r", [0.5], finished=finished, **options)
    if finished:
        write_json(run / "summary.json", {"model": path, "total_seconds": 1.0})
    record = read_record(run)
    assert "someone" not in model_card(record)
    assert outline(record)["model"] == "bert_config.json"
