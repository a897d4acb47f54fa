"""Metrics: comparing evaluations, and wording their scores."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bertaccum.metrics import METRICS, is_worse, metric_of, one_class, outcome, sentence

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
        ("majority baseline", "0.9950 (always predicting 'ham')"),
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


def test_no_warning_if_data_has_one_class_or_predictions_vary() -> None:
    assert not one_class(SCORES | {"majority_accuracy": 1.0})
    assert not one_class(SCORES | {"only_prediction": None})
