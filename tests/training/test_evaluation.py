"""Scores against figures worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bertaccum.training.evaluation import classification_report


def test_scores_by_hand() -> None:
    # Labels 0 0 0 1 1 2, predictions 0 0 1 1 2 2.
    labels = np.array([0, 0, 0, 1, 1, 2])
    logits = np.log(np.full((6, 3), 0.25))
    logits[np.arange(6), [0, 0, 1, 1, 2, 2]] = math.log(0.5)
    report = classification_report(logits, labels, ["a", "b", "c"])
    assert report["confusion_matrix"] == [[2, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert report["accuracy"] == pytest.approx(4 / 6)
    assert report["loss"] == pytest.approx((4 * math.log(2) + 2 * math.log(4)) / 6)
    assert [row["name"] for row in report["classes"]] == ["a", "b", "c"]
    assert report["classes"][0] == {
        "name": "a",
        "precision": pytest.approx(1.0),
        "recall": pytest.approx(2 / 3),
        "f1": pytest.approx(0.8),
        "examples": 3,
    }
    # Gorodkin 2004: (c s - Σ p t) / sqrt((s² - Σ p²)(s² - Σ t²)) with c 4, s 6.
    assert report["matthews_correlation"] == pytest.approx((24 - 12) / math.sqrt(24 * 22))


def test_a_class_that_never_occurs_scores_zero() -> None:
    report = classification_report(np.array([[2.0, 1.0]] * 3), np.zeros(3, int), ["a", "b"])
    assert report["classes"][1] | {"name": ""} == dict(
        name="", precision=0.0, recall=0.0, f1=0.0, examples=0
    )
    assert report["matthews_correlation"] == 0.0
