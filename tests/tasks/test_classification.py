"""Scores and predictions of one class per example, against independent formulas."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.task import Decoding

LABELS = Labels(["0", "1", "2"], ["a", "b", "c"])


def logits_of(predicted: list[int]) -> np.ndarray:
    return np.eye(3, dtype=np.float32)[predicted]


CLASS = st.integers(0, 2)


@given(st.lists(st.tuples(CLASS, CLASS), min_size=1, max_size=30))
def test_scores_match_the_definitions(pairs: list[tuple[int, int]]) -> None:
    labels, predicted = (np.array(column) for column in zip(*pairs, strict=True))
    found = make_task(LABELS).report(logits_of(predicted), labels)
    matrix = np.array([[pairs.count((a, b)) for b in range(3)] for a in range(3)])
    assert found["confusion_matrix"] == matrix.tolist()
    total, right = matrix.sum(), np.diag(matrix)
    assert found["accuracy"] == pytest.approx(right.sum() / total)
    both = matrix.sum(0) + matrix.sum(1)
    # The mean of the classes that occur among labels or predictions.
    assert found["macro_f1"] == pytest.approx(
        np.mean([2 * r / n for r, n in zip(right, both, strict=True) if n])
    )
    rows, columns = matrix.sum(1), matrix.sum(0)
    shared = right.sum() * total - rows @ columns
    scale = np.sqrt(float(total**2 - rows @ rows) * float(total**2 - columns @ columns))
    assert found["matthews_correlation"] == pytest.approx(shared / scale if scale else 0, abs=1e-9)
    assert found["majority_accuracy"] == pytest.approx(rows.max() / total)


def test_loss_with_label_smoothing_matches_a_value_by_hand() -> None:
    shares = np.array([[0.7, 0.2, 0.1]])
    logits, labels = tf.constant(np.log(shares), tf.float32), tf.constant([1])
    targets = [0.1, 0.8, 0.1]  # 0.3 of the target is spread over three classes.
    losses = make_task(LABELS, smoothing=0.3).losses(logits, labels)
    assert float(losses[0]) == pytest.approx(-np.dot(targets, np.log(shares[0])), rel=1e-6)
    # The loss of an evaluation is not smoothed, so that runs can be compared.
    found = make_task(LABELS, smoothing=0.3).scores(logits.numpy(), np.array([1]))
    assert found["loss"] == pytest.approx(-np.log(0.2))


def test_predictions_have_all_probabilities_by_name() -> None:
    task = make_task(LABELS, Decoding(temperature=2.0))
    logits = 2 * np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]], np.float32))
    first, second = task.predictions(logits)
    assert (first["label"], second["label"]) == ("a", "c")
    assert list(first["probabilities"]) == ["a", "b", "c"]
    assert first["probabilities"] == pytest.approx({"a": 0.7, "b": 0.2, "c": 0.1})
    served = task.serve(tf.constant(logits))
    np.testing.assert_allclose(served["probabilities"][0], [0.7, 0.2, 0.1], rtol=1e-6)
    assert served["label"].numpy().tolist() == [b"a", b"c"]
    (mistake,) = task.mistakes(logits, np.array([0, 1]), 5)
    assert (mistake["label"], mistake["prediction"]) == ("b", "c")
    assert mistake["probability"] == pytest.approx(0.7)
    assert mistake["label_probability"] == pytest.approx(0.2)
