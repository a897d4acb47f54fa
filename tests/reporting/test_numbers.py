"""Commands and reports show the same value under the same name."""

from __future__ import annotations

import fcntl
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writing import write_json, write_run

from bertaccum.cli.display.sentences import run_line
from bertaccum.reporting.model_card import model_card
from bertaccum.reporting.report_page import page
from bertaccum.reporting.run_summaries import outline
from bertaccum.runs.record import read_record

PLACES = ("runs", "show", "card", "page", "compare")


def scored(update: int, accuracy: float, matthews: float, best: bool, **more: Any) -> Any:
    values = {"update": update, "accuracy": accuracy, "matthews_correlation": matthews}
    baseline = {"majority_class": "good", "majority_accuracy": 0.6907, "examples": 527}
    return values | {"loss": 0.61, "macro_f1": 0.55, "best": best} | baseline | more


@pytest.fixture
def places(run: Any) -> Any:
    """Return the text of each command and report about one run, by name.

    The best checkpoint of the run does not have the highest accuracy.
    """
    losses = (0.5 + 0.1 * np.random.default_rng(0).normal(size=400)).tolist()
    scores = [scored(200, 0.6926, 0.1, True), scored(400, 0.6888, 0.2469, True)]
    folder = write_run(Path("runs/r"), losses, scores=scores, best_by="matthews_correlation")
    write_run(Path("runs/other"), losses[:100], best_by="matthews_correlation")
    shown = {name: run(name).out for name in ("runs",)}
    shown["show"] = run("show", "runs/r").out
    shown["card"] = model_card(read_record(folder))
    shown["page"] = re.sub("<[^>]+>", " ", page(read_record(folder), None, []))
    shown["compare"] = run("compare", "runs/r", "runs/other").out
    return shown


def test_metric_of_best_by_is_shown_everywhere(places: dict[str, str]) -> None:
    for name in PLACES:
        assert re.search(r"best dev Matthews correlation", places[name]), name
        assert "training time" in places[name], name
        assert "0.2469" in places[name], name
        assert re.search(r"update 400|│ 400 +│", places[name]), name
    for name in ("show", "card", "page", "compare"):
        accuracy = r"dev accuracy of the best checkpoint[ |│]*0\.6888"
        assert re.search(accuracy, places[name]), name
        assert re.search(r"dev majority baseline[ |│]*0\.6907", places[name]), name


def test_training_loss_is_the_same_everywhere(places: dict[str, str]) -> None:
    losses = (0.5 + 0.1 * np.random.default_rng(0).normal(size=400)).tolist()
    # The default span is a twentieth of the run: 80 examples, which are 20 updates.
    mean = f"{np.mean(losses[-20:]):.4f}"
    for name in ("show", "card", "page", "compare"):
        assert re.search(rf"training loss[ |│]*{mean}", places[name]), name
        assert "mean over the last 80 examples" in places[name], name
    assert f"last update {losses[-1]:.4f}" in places["show"]
    # The last row of the card's curve shows the same mean.
    assert re.search(rf"\| 1,600 \| 400 \| {mean} \|", places["card"])


def test_metrics_are_named_if_runs_differ_in_best_by(run: Any) -> None:
    for name, metric in (("a", "accuracy"), ("b", "loss")):
        scores = [scored(2, 0.7, 0.1, True)]
        write_run(Path("runs") / name, [0.7, 0.6], scores=scores, best_by=metric)
    found = run("runs").out
    assert re.search(r"0.7000 accuracy +│", found) and re.search(r"0.6100 loss +│", found)
    values = json.loads(run("compare", "runs/a", "runs/b", "--json").out)
    assert values["best_by"] is None
    assert values["runs"][1]["best_metric"] == {"name": "loss", "value": 0.61, "update": 2}
    shown = run("compare", "runs/a", "runs/b").out
    assert re.search(r"accuracy 0.7000 \(update 2\) +│ loss 0.6100 \(update 2\)", shown)


def test_best_checkpoint_that_predicts_one_class_gets_a_warning(run: Any) -> None:
    only = scored(2, 0.6907, 0.0, True, only_prediction="good")
    folder = write_run(Path("runs/r"), [0.7, 0.6], scores=[only])
    found = run("show", "runs/r").out
    assert "best so far, but predicts only 'good'" in found
    said = "the model predicts class 'good' for all 527 examples"
    assert said in found and said in model_card(read_record(folder))
    assert said in html.unescape(page(read_record(folder), None, []))
    text = page(
        read_record(folder),
        only | {"data": "x/test.tsv", "classes": [], "confusion_matrix": []},
        [],
    )
    assert f"On test.tsv, {said}." in html.unescape(text)


def test_show_separates_set_options_from_resolved_ones(run: Any) -> None:
    options = {"epochs": 3.0, "micro_batch": 2, "precision": "float32", "seed": 7}
    folder = write_run(Path("runs/r"), [0.7], **options)
    inputs = json.loads((folder / "inputs.json").read_text())
    write_json(folder / "inputs.json", inputs | {"named": ["seed", "epochs"]})
    values = json.loads(run("show", "--run", "runs/r", "--json").out)
    assert values["config"] == {"epochs": 3.0, "seed": 7}
    assert values["resolved"]["micro_batch"] == 2 and "seed" not in values["resolved"]
    shown = run("show", "runs/r").out
    assert "options set:\n  epochs: 3.0\n  seed: 7\noptions resolved automatically:" in shown


def test_show_includes_the_results_of_eval(run: Any) -> None:
    folder = write_run(Path("runs/r"), [0.7], scores=[scored(1, 0.5, 0.1, True)])
    found = scored(1, 0.7125, 0.3, False) | {"data": "/x/test.tsv", "examples": 2000}
    write_json(folder / "eval-test.json", found | {"classes": [], "confusion_matrix": []})
    values = json.loads(run("show", "runs/r", "--json").out)
    assert values["evaluated"]["test"]["accuracy"] == 0.7125
    assert "classes" not in values["evaluated"]["test"]
    assert re.search(r"test +│ 1 +│ 2,000 +│ 0.7125 ", run("show", "runs/r").out)


@pytest.mark.parametrize("command", ["show", "report"])
def test_run_is_named_by_an_option_or_an_argument(run: Any, command: str) -> None:
    write_run(Path("runs/r"), [0.7])
    write_run(Path("runs/other"), [0.7])
    by_option, by_argument = run(command, "--run", "runs/r"), run(command, "runs/r")
    assert (by_option.code, by_option.out) == (0, by_argument.out)
    assert "runs/r" in by_option.out
    both = run(command, "runs/r", "--run", "runs/other")
    assert (both.code, both.out) == (2, "")
    assert "RUN runs/r and --run runs/other both name the run; omit one" in both.err


def test_progress_of_an_unfinished_run_is_reported(run: Any) -> None:
    scores = [scored(1, 0.5, 0.1, True), scored(2, 0.4, 0.1, False)]
    more: Any = {"scores": scores, "finished": False, "plan": {"updates": 4000}}
    folder = write_run(Path("runs/r"), [0.7] * 3, **more)
    best = "its best checkpoint so far: update 1"
    assert f"run: runs/r, stopped at update 3 of 4,000; {best}\n" in run("report", folder).err
    assert re.search(r"^updates +3 of 4,000$", run("show", folder).out, re.MULTILINE)
    with (folder / ".lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = f"run: runs/r, still running (update 3 of 4,000); {best}"
        assert run_line(outline(read_record(folder))) == said
    old = write_run(Path("runs/old"), [0.7] * 3, scores=scores, finished=False)
    assert run_line(outline(read_record(old))) == f"run: runs/old, stopped at update 3; {best}"
    over = write_run(Path("runs/over"), [0.7], scores=scores[:1])
    said = "run: runs/over; its best checkpoint: update 1"
    assert run_line(outline(read_record(over))) == said


def test_scores_may_be_large(run: Any) -> None:
    """A mean squared error has the square of the labels' unit."""
    values = {"update": 2, "loss": 0.9, "mse": 9.3e12, "pearson": 0.5, "best": True}
    write_run(Path("r"), [0.5, 0.4], scores=[values], best_by="mse", task="regression")
    assert outline(read_record(Path("r")))["best_metric"]["value"] == 9.3e12
    assert run("show", "r").code == 0


def test_peak_memory_is_that_of_all_updates(run: Any) -> None:
    folder = write_run(Path("r"), [0.5] * 3, finished=False)
    lines = (folder / "metrics.jsonl").read_text().replace(f"{12 * 2**20}", f"{900 * 2**20}")
    (folder / "metrics.jsonl").write_text(lines)
    assert re.search(r"peak memory +900 MiB", run("show", "r").out)


def test_strict_scores_are_named(run: Any) -> None:
    folder = write_run(Path("r"), [0.5], task="token-classification")
    values = {"run": "r", "update": None, "data": "test.tsv", "loss": 0.5, "examples": 9}
    write_json(folder / "eval-test-strict.json", values | {"entity_f1": 0.5, "strict": True})
    assert "| test.tsv (strict) |" in model_card(read_record(folder))
