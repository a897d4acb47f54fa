"""Tables on narrow terminals and in pipes: no line is too long, and every number is whole."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from bertaccum.cli.display import comparison_tables, plan_tables, run_tables, sentences, tables
from bertaccum.cli.display.table_fitting import fitted, layout, print_paths, without_common_folder
from bertaccum.cli.display.terminal_view import Live
from bertaccum.inference.results import Prediction
from bertaccum.planning.plan import Saving, make_plan
from bertaccum.planning.plan_result import Candidate, MeasuredCosts, PlanResult
from bertaccum.training.events import Started, Updated
from data_prep.preparation import PrepareResult

PIPE = 0
WIDTHS = (40, 80, 120)
Show = Callable[..., list[str]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Show:
    """Return a function that returns the lines that a function of `tables` prints.

    Its first argument is the width of the terminal, or PIPE.
    """

    def at(width: int, what: Callable[..., None], *arguments: Any) -> list[str]:
        file = Terminal() if width else io.StringIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", file)
            patch.setenv("COLUMNS", str(width))
            patch.setenv("TERM", "xterm")
            what(*arguments)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
        return [line.rstrip() for line in plain.splitlines()]

    return at


def evaluation(classes: int) -> dict[str, Any]:
    rows = [
        {
            "name": f"class-with-a-long-name-{n}",
            "precision": 0.8765,
            "recall": 0.9876,
            "f1": 0.2 + n / 1000,
            "examples": 12_345 + n,
        }
        for n in range(classes)
    ]
    matrix = [
        [1000 + i if i == j else (i + 2 * j) % 7 for j in range(classes)] for i in range(classes)
    ]
    scores = {"accuracy": 0.75, "macro_f1": 0.7, "loss": 0.5, "matthews_correlation": 0.4}
    baseline = {"majority_accuracy": 0.6, "majority_class": "class-with-a-long-name-0"}
    return {"data": "d/dev.tsv", "update": 12_345, "examples": 9_999, **scores, **baseline,
            "classes": rows, "confusion_matrix": matrix}  # fmt: skip


def manifest(classes: int) -> dict[str, Any]:
    labels = [f"intent_{n}" for n in range(classes)]
    splits = {"train": 10_000, "dev": 100, "test": 1_000}
    counts = {
        split: {
            "rows": base * classes,
            "classes": {label: base + n for n, label in enumerate(labels)},
        }
        for split, base in splits.items()
    }
    return {"source": "csv", "labels": labels, "counts": counts}


def prepared(classes: int) -> PrepareResult:
    return PrepareResult(Path("data"), manifest(classes), unchanged=False)


def prepared_scores() -> PrepareResult:
    scores = {"mean": 3.51625344, "std": 1.02494054, "min": 1.0, "max": 5.0}
    counts = {
        "train": {"rows": 12_345} | scores,
        "dev": {"rows": 444} | scores,
        "test": {"rows": 49},
    }
    values = {"source": "csv", "task": "regression", "labels": [], "counts": counts}
    return PrepareResult(Path("data"), values, unchanged=False)


def prepared_sets(labels: int) -> PrepareResult:
    values = manifest(labels) | {"task": "multi-label"}
    for number, split in enumerate(("train", "dev")):
        values["counts"][split]["without_label"] = 7000 + number
    values["counts"]["test"] = {"rows": 4321}
    return PrepareResult(Path("data"), values, unchanged=False)


FOLDER = "sweeps/on-a-long-path/november"


def outline(number: int) -> dict[str, Any]:
    return {
        "run": f"{FOLDER}/learning-rate-and-warmup-sweep-of-november-{number}",
        "status": "finished",
        "model": "bert_tiny_reviews_pretrained",
        "target_batch": 256,
        "micro_batch": 128,
        "updates": 123_456,
        "planned_updates": 123_456,
        "best_by": "accuracy",
        "best_metric": {"value": 0.9123 + number / 1000, "update": 100_000 + number},
        "seconds": 12_345.0 + number,
    }


def comparison(runs: int) -> dict[str, Any]:
    names = [f"/data/{FOLDER}/batch-{number}/run" for number in range(runs)]
    row = {
        "status": "finished",
        "model": "bert_tiny_reviews",
        "target_batch": 32,
        "micro_batch": 8,
        "accumulation_steps": 4,
        "replicas": 1,
        "updates": 2500,
        "examples": 20_000,
        "noise": 0.2034,
        "noise_of_equal_means": 0.0997,
        "best_metric": {"name": "accuracy", "value": 0.8227, "update": 2400},
        "best_dev_accuracy": 0.8227,
        "best_dev_loss": 0.4123,
        "best_dev_macro_f1": 0.8123,
        "majority_accuracy": 0.5012,
        "final_dev_accuracy": 0.8226,
        "seconds": 173.0,
        "peak_memory_bytes": 83 * 2**20,
    }
    return {
        "smooth": 1000,
        "equal_mean_examples": 32,
        "best_by": "accuracy",
        "runs": [row | {"run": name, "training_loss": 0.4142 + i} for i, name in enumerate(names)],
        "differences": {
            "learning_rate": [2e-05 * (n + 1) for n in range(runs)],
            "data": [f"/data/sets/of-reviews/{n}" for n in range(runs)],
        },
        "models": [
            {
                "run": name,
                "evaluation": "test-int8",
                "metric": "accuracy",
                "value": 0.8227,
                "model_bytes": 17_000_000,
                "milliseconds_per_text": 3.2,
            }
            for name in names
        ],
        "figures": [],
    }


def planned() -> PlanResult:
    plans = [make_plan(512, 2**n, Saving("layer", "all")) for n in range(8)]
    costs = MeasuredCosts(
        model="bert-base",
        parameters=110_000_000,
        train_examples=560_000,
        precision="float32",
        device="CPU",
        memory_bytes=4 * 2**30,
        margin_bytes=2**28,
        longest=512,
        largest_windows=1,
        static_bytes={"parameters": 2**29},
        host_bytes=3 * 2**30,
        update_bytes={},
        example_bytes={"layer": 2**24},
        candidates=[Candidate(plan, 3 * 2**30, 2.5 * 2**30, 123.4, True) for plan in plans],
    )
    why = "it is the fastest that fits"
    known = {"peak_memory_bytes": 2**31, "planning_seconds": 60.0, "timed_on": "mean length"}
    return PlanResult(plans[6], costs, why=why, **known)


def test_plan_tells_how_many_windows_an_example_has() -> None:
    costs = planned().measured
    assert costs is not None
    several = plan_tables.plan_heading(dataclasses.replace(costs, largest_windows=4))
    assert any("16 MiB per example of 4 windows of 512 tokens" in line for line in several)
    assert not any("windows" in line for line in plan_tables.plan_heading(costs))


def details() -> dict[str, Any]:
    evaluations = [
        {"update": 1000 * n, "examples": 2_345, "accuracy": 0.8123, "macro_f1": 0.8012,
         "loss": 0.5678, "matthews_correlation": 0.4321, "best": n == 2} for n in range(1, 4)
    ]  # fmt: skip
    shapes = [[rows, 4096 // rows] for rows in (8, 16, 21, 32, 42, 64, 93, 128)]
    more = {
        "plan": {"why": "why", "shapes": shapes, "real_share": 0.8765},
        "last_update": None, "summary": None, "out_of_memory": [], "peak_memory_bytes": None,
        "config": {"epochs": 3.0}, "resolved": {"micro_batch": 8}, "best": evaluations[1],
        "training_loss": {"mean": 0.4321, "examples": 1_234, "last_update": 0.4567},
        "noise_scale": {
            "noise_scale": None, "standard_error": None, "lowest": 1234.5,
            "first_update": 1_001, "last_update": 1_500,
        },
        "evaluated": {"test": evaluations[1]},
    }  # fmt: skip
    return outline(1) | {"run": "r", "model": "m", "evaluations": evaluations} | more


SPREAD = {
    "runs": 3,
    "best_by": "accuracy",
    "best_dev_accuracy": {"mean": 0.81234, "std": 0.01, "min": 0.8, "max": 0.83},
}
ADVICE = {
    "target_batch": 32, "noise_scale": 210.0, "standard_error": 40.0, "lowest": 150.0,
    "first_update": 1_001, "last_update": 1_500, "is_bound": False,
    "batches": [
        {"target_batch": batch, "updates": 32 / batch, "examples": 1.25, "learning_rate": 3e-5}
        for batch in (8, 32, 64, 2_048)
    ],
}  # fmt: skip


def swept() -> dict[str, Any]:
    cells = [
        {
            "options": {"target_batch": batch, "learning_rate": 3e-5, "epochs": 4.0},
            "runs": 3, "fraction": 1 / 3, "mean": None if batch > 16 else 0.8123, "std": 0.0123,
            "failed": "the loss is not finite; lower `learning_rate`" if batch > 16 else None,
        }
        for batch in (8, 16, 32)
    ]  # fmt: skip
    numbers = {"updates": 123_456, "grid_updates": 1_234_567, "seconds": 98_765.0}
    return {"best_by": "accuracy", "cells": cells, "figures": []} | numbers


def test_sweep_says_that_scores_are_equal(show: Show) -> None:
    found = swept()
    for cell in found["cells"]:
        cell |= {"mean": 0.5, "runs": 1, "std": 0.0}
    lines = show(PIPE, comparison_tables.print_sweep, found, "bertaccum train")
    assert lines[-1] == "best (the first of 3 with the same score): bertaccum train"
    assert not any("0.0000" in line for line in lines)
    found["cells"][0]["fraction"] = 1.0  # Successive halving trained the others less.
    lines = show(PIPE, comparison_tables.print_sweep, found, "bertaccum train")
    assert lines[-1] == "best: bertaccum train"


ALL: dict[str, tuple[Any, ...]] = {
    "eval of 2 classes": (tables.print_evaluation, evaluation(2)),
    "eval of 20 classes": (tables.print_evaluation, evaluation(20)),
    "eval of 60 classes": (tables.print_evaluation, evaluation(60)),
    "prepare with 2 classes": (tables.print_prepared, prepared(2)),
    "prepare with 155 classes": (tables.print_prepared, prepared(155)),
    "prepare with scores": (tables.print_prepared, prepared_scores()),
    "prepare with 2 labels": (tables.print_prepared, prepared_sets(2)),
    "prepare with 155 labels": (tables.print_prepared, prepared_sets(155)),
    "runs": (run_tables.print_runs, [outline(n) for n in range(3)]),
    "one run in a list": (run_tables.print_runs, [outline(1)]),
    "compare": (comparison_tables.print_comparison, comparison(5)),
    "plan": (plan_tables.print_plan, planned(), "plan.json"),
    "show": (run_tables.print_run, details()),
    "seeds": (comparison_tables.print_seeds, SPREAD),
    "sweep": (comparison_tables.print_sweep, swept(), ""),
    "advise": (comparison_tables.print_advice, ADVICE),
}


def numbers(lines: list[str]) -> set[str]:
    return {number for line in lines for number in re.findall(r"(?<!F)\d[\d.,:e-]*", line)}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ALL)
def test_lines_fit_the_terminal_and_numbers_are_not_split(
    show: Show, name: str, width: int
) -> None:
    lines = show(width, *ALL[name])
    assert max(map(cell_len, lines)) <= width
    assert not any("…" in line and "more" not in line for line in lines)
    said = [line for line in lines if line.startswith("…")]
    names = {str(n) for n in range(160)}  # A folded name may end with its number on another line.
    assert numbers(lines) <= numbers(show(PIPE, *ALL[name])) | numbers(said) | names


@pytest.mark.parametrize("name", ALL)
def test_pipe_gets_whole_names_and_all_columns(show: Show, name: str) -> None:
    lines = show(PIPE, *ALL[name])
    cut = [line for line in lines if "…" in line or "no room" in line]
    assert all(line.endswith("more; --json prints the confusion matrix") for line in cut)
    texts = " ".join(lines)
    for value in strings_in(ALL[name][1:]):
        assert value in texts, value


def strings_in(values: Any) -> list[str]:
    """Return the names of runs, classes and models, which a table must show."""
    if isinstance(values, dict):
        named = [v for k, v in values.items() if k in ("name", "run", "model") and v]
        return named + [s for v in values.values() for s in strings_in(v)]
    if isinstance(values, list | tuple):
        return [s for value in values for s in strings_in(value)]
    return []


@pytest.mark.parametrize("width", WIDTHS)
def test_names_of_runs_remain_distinguishable(show: Show, width: int) -> None:
    lines = show(width, *ALL["runs"])
    head = next(line for word in ("status", "best") for line in lines if word in line)
    end = min(head.index(word) for word in ("status", "best") if word in head)
    column = "".join(re.sub(r"[\s│┃]", "", line[:end]) for line in lines)
    for number in range(3):
        assert outline(number)["run"].rpartition("/")[2] in column


def test_compare_shows_the_common_folder_of_runs_only_once(show: Show) -> None:
    lines = show(80, *ALL["compare"])
    text = " ".join(lines)
    assert all(f"batch-{n}/run" in text for n in range(5))
    assert sum("on-a-long" in line for line in lines) == 1
    assert not any("/data/sets" in line and re.search(r"reviews/\d", line) for line in lines)


def test_prepare_shows_statistics_of_scores(show: Show) -> None:
    lines = "\n".join(show(80, *ALL["prepare with scores"]))
    for cell in ("12,345", "444", "49", "mean", "3.516", "std", "1.025", "min", "max"):
        assert cell in lines


@pytest.mark.parametrize("name", ["prepare with 2 labels", "prepare with 155 labels"])
def test_prepare_counts_rows_without_labels(show: Show, name: str) -> None:
    lines = "\n".join(show(80, *ALL[name]))
    assert all(cell in lines for cell in ("no label", "7,000", "7,001", "4,321"))


def test_terminal_shows_the_worst_and_the_largest_of_many_classes(show: Show) -> None:
    scores = show(80, tables.print_evaluation, evaluation(155))
    assert any(
        "… 135 more classes with a higher F1; --json lists all classes" in line for line in scores
    )
    table = "\n".join(scores[: scores.index("most frequent mistakes:")])
    f1 = sorted(f"{row['f1']:.4f}" for row in evaluation(155)["classes"])
    assert all(value in table for value in f1[:20])
    assert not any(value in table for value in f1[20:])
    prepared = show(80, *ALL["prepare with 155 classes"])
    assert any("… 135 more classes with fewer rows" in line for line in prepared)
    assert [n for n in range(155) if re.search(rf"intent_{n}\b", "\n".join(prepared))] == [
        *range(135, 155)
    ]
    assert "10,154" in "\n".join(prepared) and "1,550,000" in "\n".join(prepared)


def test_matrix_that_does_not_fit_becomes_most_frequent_mistakes(show: Show) -> None:
    values = evaluation(20)
    lines = show(80, tables.print_evaluation, values)
    mistakes = lines[lines.index("most frequent mistakes:") :]
    counts = [int(n) for line in mistakes if (n := line.strip("│ ").split(" ")[-1]).isdecimal()]
    flat = [
        c for i, row in enumerate(values["confusion_matrix"]) for j, c in enumerate(row) if i != j
    ]
    assert counts == sorted(flat, reverse=True)[:20]
    total = sum(map(bool, flat))
    assert mistakes[-1] == f"… {total - 20:,} more; --json prints the confusion matrix"


def test_pipe_gets_a_summary_of_very_many_classes(show: Show) -> None:
    values = evaluation(600)
    lines = show(PIPE, tables.print_evaluation, values)
    assert sum(map(len, lines)) < 50_000
    assert "macro-F1" in "\n".join(lines) and "most frequent mistakes:" in lines
    assert "… 400 more classes with a higher F1; --json lists all classes" in lines
    lowest = sorted(values["classes"], key=lambda row: row["f1"])[:200]
    assert all(any(f"{row['name']} " in line for line in lines) for row in lowest)
    counted = show(PIPE, tables.print_prepared, prepared(600))
    assert sum(map(len, counted)) < 20_000
    assert "… 400 more classes with fewer rows; --json lists all classes" in counted


def test_left_out_columns_are_named(show: Show) -> None:
    said = " ".join(show(40, *ALL["runs"]))
    assert "no room for: " in said and "best update" in said and "--json" in said
    assert all(f"{outline(n)['best_metric']['value']:.4f}" in said for n in range(3))


CELLS = st.one_of(
    st.from_regex(r"[a-z/_-]{0,40}", fullmatch=True),
    st.integers(0, 10**9).map(lambda n: f"{n:,}"),
    st.text(alphabet="漢字語かな ", max_size=20),
)


@settings(max_examples=50)
@given(st.data(), st.integers(14, 160))
def test_any_table_fits_and_keeps_its_numbers_whole(data: st.DataObject, width: int) -> None:
    columns, rows = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    head = [
        f"{data.draw(st.from_regex('[a-z ]{1,20}', fullmatch=True))}{n}" for n in range(columns)
    ]
    cells = [[data.draw(CELLS) for _ in range(columns)] for _ in range(rows)]
    table, left_out = fitted(head, cells, width)
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False)
    console.print(table)
    lines = console.file.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    shown = [cell for row in cells for name, cell in zip(head, row, strict=True)
             if name not in left_out]  # fmt: skip
    tokens = " ".join(lines).split() + [t for line in lines for t in re.split(r"[\s│]+", line)]
    assert all(cell in tokens for cell in shown if cell[:1].isdigit())
    letters = sorted("".join("".join(lines).split()))
    for name in "漢字語かな":
        assert letters.count(name) == sum(cell.count(name) for cell in shown)


@pytest.mark.parametrize("width", [PIPE, 80])
def test_column_of_remarks_is_left_out_if_there_are_none(show: Show, width: int) -> None:
    rows = [{"update": 3, "accuracy": 0.5, "best": False}, {"update": 5, "accuracy": 0.4}]
    lines = show(width, run_tables._while_training, rows, ["accuracy"])
    assert lines[1].count("┃") == 3
    lines = show(width, run_tables._while_training, [rows[0] | {"best": True}], ["accuracy"])
    assert lines[1].count("┃") == 4 and "best so far" in lines[3]


def test_names_fold_before_columns_are_left_out() -> None:
    head, rows = ["name", "number"], [["a-very-long-name" * 4, "123,456"]]
    columns = list(zip(head, *rows, strict=True))
    assert layout(columns, 24) is not None
    assert layout(columns, 20) is None
    assert fitted(head, rows, 20)[1] == ["number"]


@pytest.mark.parametrize(
    ("paths", "folder", "shorter"),
    [
        (["a/b/c", "a/b/d"], "a/b/", ["c", "d"]),
        (["/x/a/r", "/x/b/r"], "/x/", ["a/r", "b/r"]),
        (["/a", "/b"], "", ["/a", "/b"]),
        (["a/r", "b/r"], "", ["a/r", "b/r"]),
        (["a/r", "/a/r"], "", ["a/r", "/a/r"]),
        (["a/r"], "", ["a/r"]),
    ],
)
def test_without_common_folder_shortens_paths(
    paths: list[str], folder: str, shorter: list[str]
) -> None:
    assert without_common_folder(paths) == (folder, shorter)


@pytest.mark.parametrize("width", WIDTHS)
def test_display_of_a_run_fits_and_its_numbers_are_not_split(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    plan = make_plan(32, 8)
    started = Started(
        folder=Path("runs/one"), model="m", pretrained=True, parameters=1, train_examples=1,
        dev_examples=1, plan=plan, why="why", updates=123_456, done=0,
    )  # fmt: skip
    updated = Updated(
        update=100_123, epoch=1, loss=12.3456, examples=32, micro_steps=4, tokens=320,
        padded_tokens=352, learning_rate=2.34e-5, grad_norm=1.0, seconds=0.5,
        examples_per_second=1234.5, skipped=False, peak_memory_bytes=900 * 2**20,
    )  # fmt: skip
    with Live(console) as view:
        view.event(started)
        view.event(updated)
        view("tokenizing data/a-long-name-of-a-folder/train.tsv", 123_456, 234_567)
        view._live.refresh()
    screen = re.sub(r"(\x1b\[[0-9;?]*[A-Za-z]|\r)+", "\n", console.file.getvalue())
    bars = screen[screen.rindex("runs/one") :]
    assert max(map(cell_len, bars.splitlines())) <= width
    assert "…" not in screen
    for number in ("123456/234567", "100123/123456", "12.3456"):
        assert number in screen
    assert "2.34e-05" in screen or width == 40


# A colour, a title as one C1 character, a change of direction, and a line break.
HOSTILE = "a\x1b[31m\x9d0;b\u202ec\u2066d\ne"
ESCAPED = r"a\x1b[31m\x9d0;b\u202ec\u2066d\ne"


def test_control_characters_in_names_are_shown_as_escapes(
    show: Show, capsys: pytest.CaptureFixture[str]
) -> None:
    run = outline(0) | {"run": HOSTILE, "model": HOSTILE}
    assert show(PIPE, run_tables.print_runs, [run])[3].count(ESCAPED) == 2
    assert f"{ESCAPED}: written" in show(PIPE, print_paths, [HOSTILE])
    console = Console(file=io.StringIO(), width=120)
    live = Live(console)
    live(HOSTILE, 1, 2)
    live.note(HOSTILE)
    live.note("a\tb")
    console.print(live._render())
    assert console.file.getvalue().count(ESCAPED) == 2
    assert "a       b\n" in console.file.getvalue()
    sentences.note(HOSTILE, sys.stdout)
    sentences.result(HOSTILE)
    assert capsys.readouterr().out == f"{ESCAPED}\n" * 2


def test_columns_of_a_prediction_are_escaped_and_json_is_exact(
    capsys: pytest.CaptureFixture[str],
) -> None:
    label = HOSTILE + "\t"
    found = Prediction(HOSTILE, label=label, probabilities={label: 0.75})
    sentences.prediction(found, as_json=False)
    text = ESCAPED.replace(r"\n", " ")
    assert capsys.readouterr().out == f"{ESCAPED}\\t\t0.7500\t{text}\n"
    sentences.prediction(found, as_json=True)
    line = capsys.readouterr().out
    assert json.loads(line) == {"text": HOSTILE, "label": label, "probabilities": {label: 0.75}}
    assert line.isascii() and line.count("\n") == 1
