"""Metrics: comparing evaluations, and wording their scores."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bertaccum.options.metrics import (
    METRICS,
    is_worse,
    metric_of,
    near_baseline,
    one_class,
    outcome,
    scores,
    sentence,
    shown,
    warning,
    written,
)

SCORES: dict[str, Any] = {
    "update": 1200,
    "accuracy": 0.9950,
    "macro_f1": 0.4987,
    "matthews_correlation": 0.0,
    "loss": 0.03,
    "examples": 1000,
    "majority_class": "ham",
    "majority_accuracy": 0.9950,
    "only_prediction": "ham",
}
# Earlier versions wrote fewer scores.
OLD = {"update": 3, "accuracy": 0.5, "loss": 0.7, "matthews_correlation": 0.1, "best": True}


@pytest.mark.parametrize("metric", METRICS)
def test_higher_is_better_except_for_errors_and_ties_are_not_worse(metric: str) -> None:
    assert is_worse(0.2, 0.3, metric) == (metric not in ("loss", "mse"))
    assert is_worse(0.3, 0.2, metric) == (metric in ("loss", "mse"))
    assert not is_worse(0.3, 0.3, metric)


@pytest.mark.parametrize("metric", METRICS)
def test_nan_never_counts_as_an_improvement(metric: str) -> None:
    assert is_worse(math.nan, 0.3, metric)
    assert not is_worse(0.3, math.nan, metric)


def test_metric_of_best_by_comes_first() -> None:
    found = sentence(SCORES, "matthews_correlation", with_baseline=True)
    assert found == (
        "dev Matthews correlation 0.0000, accuracy 0.9950 (majority baseline 0.9950),"
        " macro-F1 0.4987, loss 0.0300"
    )
    facts = outcome(SCORES, "macro_f1")
    assert list(facts.items())[:3] == [
        ("best dev macro-F1", "0.4987 (update 1,200)"),
        ("dev accuracy of the best checkpoint", "0.9950"),
        ("dev majority baseline", "0.9950 (always predicting 'ham')"),
    ]
    assert facts["note"] == "the model predicts class 'ham' for all 1,000 examples"
    assert metric_of(SCORES, "loss") == {"name": "loss", "value": 0.03, "update": 1200}
    assert metric_of(None, "loss") is None


def test_wording_omits_scores_that_earlier_versions_lack() -> None:
    assert sentence(OLD, "accuracy", with_baseline=True) == "dev accuracy 0.5000, loss 0.7000"
    assert outcome(OLD, "accuracy") == {
        "best dev accuracy": "0.5000 (update 3)",
        "dev loss of the best checkpoint": "0.7000",
    }


def test_small_squared_errors_keep_their_digits() -> None:
    """Their unit is that of the labels, squared. Other scores have four decimals."""
    values = {"mse": 3.14159e-5, "mean_baseline_mse": 2.9e-5, "accuracy": 0.00314159}
    assert scores(values) == {
        "mean squared error": "3.142e-05",
        "mean baseline": "2.9e-05 (always predicting the mean of train.tsv)",
        "accuracy": "0.0031",
    }
    assert shown({"value": 3.14159e-5}, "value", metric="mse") == "3.142e-05"
    assert "3.142e-05 is not better than the mean baseline 2.9e-05" in near_baseline(
        values | {"examples": 9}
    )
    assert [written(one, "mse") for one in (0.5, 0.0, -0.0012345)] == [
        "0.5000",
        "0.0000",
        "-0.001234",
    ]


def test_no_warning_if_data_has_one_class_or_predictions_vary() -> None:
    assert not one_class(SCORES | {"majority_accuracy": 1.0})
    assert not one_class(SCORES | {"only_prediction": None})


def classified(
    accuracy: float, majority: float, matthews: float | None, examples: int
) -> dict[str, Any]:
    scores = {"accuracy": accuracy, "majority_accuracy": majority, "examples": examples}
    return scores | ({} if matthews is None else {"matthews_correlation": matthews})


def regressed(mse: float, baseline: float, pearson: float, examples: int) -> dict[str, Any]:
    return {"mse": mse, "mean_baseline_mse": baseline, "pearson": pearson, "examples": examples}


NEAR = {
    # Two standard errors of 1,000 examples with baseline 0.5 are 0.0316.
    "balanced": (classified(0.531, 0.5, 0.062, 1000), "accuracy 0.5310 is barely better than the"),
    "small": (classified(0.60, 0.5, 0.2, 40), "barely better than the majority baseline 0.5000"),
    "below": (classified(0.6698, 0.6926, 0.06, 527), "not better than the majority baseline 0.69"),
    "many classes": (classified(0.005, 0.004, 0.002, 5000), "barely better"),
    "without correlation": (classified(0.51, 0.5, None, 1000), "barely better"),
    "regression": (regressed(0.99, 1.0, 0.1, 500), "squared error 0.9900 is barely better than"),
    "multi-label": (
        {"micro_f1": 0.25, "constant_micro_f1": 0.24, "examples": 1000},
        "micro-F1 0.2500 is barely better than the constant baseline 0.2400",
    ),
    "no label is predicted": (
        {"micro_f1": 0.0, "constant_micro_f1": 0.24, "examples": 1000},
        "micro-F1 0.0000 is not better than the constant baseline",
    ),
    "worse than the mean": (regressed(1.2, 1.0, 0.5, 500), "not better than the mean baseline"),
}
FAR = {
    "balanced": classified(0.533, 0.5, 0.066, 1000),
    "small": classified(0.80, 0.5, 0.6, 40),
    "rare class is told apart": classified(0.985, 0.98, 0.6, 1000),
    "one class in the data": classified(1.0, 1.0, 0.0, 1000),
    "regression": regressed(0.7, 1.0, 0.55, 500),
    "regression with few examples": regressed(0.6, 1.0, 0.63, 16),
    "constant labels": regressed(0.1, 0.0, math.nan, 16),
    "multi-label": {"micro_f1": 0.3, "constant_micro_f1": 0.24, "examples": 1000},
    "nothing": {},
}


@pytest.mark.parametrize("case", NEAR)
def test_scores_near_a_constant_prediction_give_a_warning(case: str) -> None:
    evaluation, said = NEAR[case]
    assert said in near_baseline(evaluation)
    assert warning(SCORES) == one_class(SCORES)


def test_tags_without_a_correct_entity_give_a_warning() -> None:
    tags = {"entity_f1": 0.0, "accuracy": 0.918, "examples": 30}
    assert warning(tags).startswith("no entity is correct, although 91.8% of the tags are")
    assert warning(tags | {"entity_f1": 0.1}) == ""


@pytest.mark.parametrize("case", FAR)
def test_scores_above_a_constant_prediction_give_no_warning(case: str) -> None:
    assert near_baseline(FAR[case]) == ""
