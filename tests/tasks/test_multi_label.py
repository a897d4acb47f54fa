"""Scores, thresholds and predictions of several labels, against independent formulas."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from bertaccum.options.task_names import MULTI_LABEL
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.multi_label import _best_threshold
from bertaccum.tasks.task import Decoding

SETS = Labels(["0", "1", "2"], ["a", "b", "c"], task=MULTI_LABEL)


def counts(wanted: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return twice the right predictions, and all predictions plus all labels, of each column."""
    return 2 * (wanted & predicted).sum(0), wanted.sum(0) + predicted.sum(0)


def average_precision(wanted: np.ndarray, scores: np.ndarray) -> float:
    """Return the mean precision at each example of a label; the scores are all different."""
    ordered = wanted[np.argsort(-scores)]
    precisions = np.cumsum(ordered) / np.arange(1, len(ordered) + 1)
    return float(precisions[ordered].mean())


def test_scores_match_the_definitions() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(30, 3)).astype(np.float32)
    wanted = rng.random((30, 3)) < [0.2, 0.4, 0.7]
    found = make_task(SETS).report(logits, wanted.astype(np.float32))
    predicted = logits >= 0
    right, all_of_them = counts(wanted, predicted)
    assert found["micro_f1"] == pytest.approx(right.sum() / all_of_them.sum())
    assert found["macro_f1"] == pytest.approx(np.mean(right / all_of_them))
    assert found["average_precision"] == pytest.approx(
        np.mean([average_precision(wanted[:, i], logits[:, i]) for i in range(3)])
    )
    assert found["exact_match"] == np.mean([list(row) == [True] * 3 for row in wanted == predicted])
    for number, row in enumerate(found["classes"]):
        hits = (wanted & predicted)[:, number].sum()
        assert row.precision == pytest.approx(hits / predicted[:, number].sum())
        assert row.recall == pytest.approx(hits / wanted[:, number].sum())
        assert row.examples == wanted[:, number].sum()


def test_constant_baseline_is_the_best_of_all_constant_predictions() -> None:
    rng = np.random.default_rng(1)
    for shares in ([0.2, 0.4, 0.7], [0.05, 0.1, 0.1], [0, 0, 0], [0.9, 0.9, 0.9]):
        wanted = rng.random((40, 3)) < shares
        found = make_task(SETS).scores(np.zeros([40, 3], np.float32), wanted.astype(np.float32))
        sets = [np.tile(one, (40, 1)) for one in itertools.product([False, True], repeat=3)]
        each = [counts(wanted, predicted) for predicted in sets]
        best = max(right.sum() / max(of.sum(), 1) for right, of in each)
        assert found["constant_micro_f1"] == pytest.approx(best)


def test_loss_is_the_mean_over_examples_and_labels() -> None:
    logits = np.log(np.array([[1, 3, 1 / 3], [1, 1, 3]], np.float32))  # 0.5, 0.75 or 0.25.
    labels = np.array([[1, 1, 1], [0, 0, 0]], np.float32)
    likelihoods = [0.5, 0.75, 0.25, 0.5, 0.5, 0.25]
    expected = -np.log(likelihoods)
    np.testing.assert_allclose(
        make_task(SETS).losses(tf.constant(logits), tf.constant(labels)),
        [expected[:3].mean(), expected[3:].mean()],
        rtol=1e-6,
    )
    assert make_task(SETS).scores(logits, labels)["loss"] == pytest.approx(expected.mean())


def test_mistakes_start_with_the_least_likely_labels() -> None:
    logits = np.log(np.array([[3, 1 / 3, 1 / 9], [3, 3, 1 / 9], [1 / 3, 1 / 3, 1 / 3]], np.float32))
    labels = np.array([[1, 0, 0], [0, 0, 0], [1, 0, 0]], np.float32)
    first, second = make_task(SETS).mistakes(logits, labels, 9)
    # The probabilities are 0.75, 0.25 and 0.1; the first example is right.
    assert first == {
        "index": 1,
        "label": "",
        "label_probability": pytest.approx(0.25 * 0.25 * 0.9),
        "prediction": "a|b",
        "probability": pytest.approx(0.75 * 0.75 * 0.9),
    }
    assert (second["index"], second["label"], second["prediction"]) == (2, "a", "")
    assert make_task(SETS).mistakes(logits, labels, 1) == [first]


def f1(wanted: np.ndarray, predicted: np.ndarray) -> float:
    right, all_of_them = counts(wanted, predicted)
    return float(right / all_of_them) if all_of_them else 0.0


PROBABILITIES = st.lists(
    st.tuples(st.floats(0, 1, width=32, allow_subnormal=False), st.booleans()),
    min_size=1,
    max_size=12,
)


@given(PROBABILITIES)
def test_no_midpoint_has_a_higher_f1_than_the_fitted_threshold(
    examples: list[tuple[float, bool]],
) -> None:
    probabilities = np.array([p for p, _ in examples], np.float32)
    wanted = np.array([own for _, own in examples])
    threshold = _best_threshold(probabilities, wanted)
    if not wanted.any():
        assert threshold == 0.5
        return
    # A label is predicted from its threshold on, so 0 stands for "always" and 2 for "never".
    different = np.unique(probabilities).astype(np.float64)
    midpoints = [0.0, *(different[1:] + different[:-1]) / 2, 2.0]
    best = max(f1(wanted, probabilities >= midpoint) for midpoint in midpoints)
    assert f1(wanted, probabilities >= threshold) == pytest.approx(best)


def test_fitted_thresholds_are_those_of_each_label() -> None:
    labels = np.array([[1, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0]], np.float32)
    probabilities = np.array([[0.2, 0.9, 0.6], [0.1, 0.8, 0.7], [0.04, 0.7, 0.1], [0.02, 0.1, 0.1]])
    logits = np.log(probabilities / (1 - probabilities)).astype(np.float32)
    task = make_task(SETS)
    found = task.fit_decoding(logits, labels, calibrate=False, thresholds=True)
    # For label b, predicting it three times has F1 2/4, and twice or once has 0.
    assert found.thresholds == pytest.approx([0.07, 0.4, 0.35])
    assert make_task(SETS, found).scores(logits, labels)["micro_f1"] == pytest.approx(2 * 4 / 11)
    assert task.scores(logits, labels)["micro_f1"] == pytest.approx(2 * 2 / 9)
    unchanged = task.fit_decoding(logits, labels, calibrate=False, thresholds=False)
    assert unchanged == Decoding()


def test_savedmodel_and_predict_agree_on_neighboring_probabilities() -> None:
    """No float32 number is between these probabilities, but the threshold is."""
    logits = np.float32(0.3) + np.arange(300, dtype=np.float32)[:, np.newaxis] * np.spacing(
        np.float32(0.3)
    )
    probabilities = np.unique(tf.sigmoid(logits))
    labels = Labels(["0"], ["a"], task=MULTI_LABEL)
    for threshold in (probabilities[1:].astype(np.float64) + probabilities[:-1]) / 2:
        task = make_task(labels, Decoding(thresholds=[float(threshold)]))
        served = task.serve(tf.constant(logits))["predicted"].numpy()
        own = [[one["labels"] == ["a"]] for one in task.predictions(logits)]
        np.testing.assert_array_equal(served, own)


def cell(found: Any) -> list[list[int]]:
    table = pd.DataFrame({"row": range(len(found)), "label": found})
    return make_task(SETS).encode(Path("x"), table).astype(int).tolist()


def test_cells_contain_any_number_of_labels() -> None:
    assert cell(["0|2", "2|0", "1", "|", "1|1", " 0 | 1 "]) == [
        [1, 0, 1],
        [1, 0, 1],
        [0, 1, 0],
        [0, 0, 0],
        [0, 1, 0],
        [1, 1, 0],
    ]
