"""Results of the Python API as notebooks show them."""

from __future__ import annotations

from pathlib import Path

from test_report_page import CANDIDATE, EVALUATION, Outline
from writing import write_run

from bertaccum.inference.results import EvalResult
from bertaccum.planning.plan import make_plan
from bertaccum.planning.plan_result import PlanResult
from bertaccum.reporting import notebook
from bertaccum.training.events import RunResult


def test_result_of_a_run_has_scores_and_curves(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r & d", [0.5, 0.4], accuracies={1: 0.8, 2: 0.7}, best_by="accuracy")
    result = RunResult(run, True, 2, None, None)
    outline = Outline(result._repr_html_())
    for text in ("r & d: bert-tiny on reviews, finished", "0.8000 (update 1)", "99 MiB"):
        assert text in outline.texts
    assert [name for name, _ in outline.elements].count("svg") == 3
    assert not {"script", "img", "link"} & {name for name, _ in outline.elements}


def test_plot_shows_the_loss_and_the_dev_metric(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.5, 0.4], accuracies={1: 0.8, 2: 0.7})
    figure = RunResult(run, True, 2, None, None).plot()
    losses, scores = figure.axes
    assert losses.lines[0].get_ydata().tolist() == [0.5, 0.4]
    assert scores.lines[0].get_xydata().tolist() == [[4, 0.8], [8, 0.7]]
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_evaluation_has_a_row_for_each_class_and_the_confusion_matrix() -> None:
    scores = {name: value for name, value in EVALUATION.items() if name != "data"}
    result = EvalResult("runs/one", 3, "/somewhere/dev.tsv", "classification", scores)
    texts = Outline(result._repr_html_()).texts
    assert "one, evaluated on dev.tsv" in texts
    assert {"<good>", "0.6667", "0.7000", "label \\ predicted"} <= set(texts)


def test_plan_marks_the_chosen_candidate() -> None:
    values = {"candidates": [CANDIDATE, CANDIDATE | {"micro_batch": 4, "fits": False}]}
    values |= {"micro_batch": 2, "recompute": "none", "offload": "none", "why": "`x` fits"}
    values["candidates"] = [row | {"offload": "none"} for row in values["candidates"]]
    texts = Outline(notebook.plan_html(values, "2 x 2")).texts
    assert {"2 x 2", "x fits", "2 *", "4", "7.2"} <= set(texts)
    assert str(make_plan(32, 8)) in PlanResult(make_plan(32, 8))._repr_html_()
