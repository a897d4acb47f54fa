"""The loss with a teacher, compared with other ways to compute it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from bertaccum.options.task_names import MULTI_LABEL, REGRESSION, TOKEN_CLASSIFICATION
from bertaccum.tasks.distilled import Distilled
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.token_classification import TokenClassification

RNG = np.random.default_rng(0)
LOGITS, TEACHER = RNG.normal(0, 2, (2, 5, 3)).astype(np.float32)
CLASSES = Labels.numbered(3)
NAMES = CLASSES.names
WEIGHT, TEMPERATURE = 0.3, 4.0


def distilled(task: Any, **options: Any) -> Distilled:
    return Distilled(task, weight=WEIGHT, temperature=TEMPERATURE, **options)


def mixed(of_labels: Any, of_teacher: Any, unlabeled: list[int]) -> np.ndarray:
    labeled = np.ones(np.shape(of_teacher))
    labeled[unlabeled] = 0
    return (1 - WEIGHT) * labeled * np.array(of_labels) + WEIGHT * np.array(of_teacher)


def softened(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities [..., classes] float64 at the temperature."""
    exponentials = np.exp(logits.astype(np.float64) / TEMPERATURE)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def divergence(logits: np.ndarray, teacher: np.ndarray) -> np.ndarray:
    return TEMPERATURE**2 * tf_keras.losses.kl_divergence(softened(teacher), softened(logits))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_classification_adds_the_divergence_of_softened_probabilities(smoothing: float) -> None:
    labels = np.array([0, 2, 1, 1, 0])
    targets = tf.one_hot(labels, 3)
    of_labels = tf_keras.losses.categorical_crossentropy(
        targets, LOGITS, from_logits=True, label_smoothing=smoothing
    )
    expected = mixed(of_labels, divergence(LOGITS, TEACHER), [3])
    own = np.where(np.arange(5) == 3, np.nan, labels)[:, None]
    objective = distilled(make_task(CLASSES, smoothing=smoothing))
    given = np.concatenate([own, TEACHER], axis=1).astype(np.float32)
    assert given.shape[1:] == objective.label_shape
    np.testing.assert_allclose(objective.losses(LOGITS, given), expected, rtol=1e-5)


def test_several_labels_take_the_mean_divergence_of_their_probabilities() -> None:
    sets = np.array([[0, 1, 1], [0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 0]], np.float32)
    both = [1 / (1 + np.exp(-x.astype(np.float64) / TEMPERATURE)) for x in (TEACHER, LOGITS)]
    two = [np.stack([p, 1 - p], axis=-1) for p in both]
    of_teacher = TEMPERATURE**2 * tf.reduce_mean(tf_keras.losses.kl_divergence(*two), axis=-1)
    of_labels = tf_keras.losses.binary_crossentropy(sets, LOGITS, from_logits=True)
    sets[2] = np.nan
    objective = distilled(make_task(Labels(NAMES, NAMES, task=MULTI_LABEL)))
    given = np.concatenate([sets, TEACHER], axis=1)
    assert given.shape[1:] == objective.label_shape
    expected = mixed(of_labels, of_teacher, [2])
    np.testing.assert_allclose(objective.losses(LOGITS, given), expected, rtol=1e-5)


def test_regression_adds_the_squared_error_to_the_teacher_at_any_temperature() -> None:
    numbers, logits, teacher = RNG.normal(0, 1, (3, 5, 1)).astype(np.float32)
    expected = mixed((logits - numbers)[:, 0] ** 2, (logits - teacher)[:, 0] ** 2, [0, 4])
    numbers[[0, 4]] = np.nan
    objective = distilled(make_task(Labels([], [], task=REGRESSION)))
    given = np.concatenate([numbers, teacher], axis=1)
    assert given.shape[1:] == objective.label_shape
    np.testing.assert_allclose(objective.losses(logits, given), expected, rtol=1e-5)


def test_word_that_the_teacher_did_not_read_has_only_the_loss_of_its_tag() -> None:
    """The words are: known, unread by the teacher, without a tag, neither, and no word."""
    task = make_task(Labels(NAMES, NAMES, task=TOKEN_CLASSIFICATION))
    assert isinstance(task, TokenClassification)
    weighted = TokenClassification(task.labels, weights=(1.0, 5.0, 1.0))
    tags, labeled = np.array([1, 1, 0, 0, -1]), np.array([1, 1, 0, 0, 0], np.float32)
    teacher = np.where(np.isin(np.arange(5), [1, 3])[:, None], np.nan, TEACHER)
    labels = np.concatenate([labeled[:, None], teacher], axis=1).astype(np.float32)
    losses, weights = distilled(weighted, words=5).word_losses(LOGITS, tags, labels)
    of_tags = tf_keras.losses.sparse_categorical_crossentropy(
        np.maximum(tags, 0), LOGITS, from_logits=True
    ).numpy()
    of_teacher = np.where(np.isnan(teacher[:, 0]), 0, divergence(LOGITS, TEACHER))
    np.testing.assert_allclose(losses[:4], mixed(of_tags, of_teacher, [2, 3])[:4], rtol=1e-5)
    assert np.isfinite(losses).all()
    np.testing.assert_array_equal(weights, [5, 5, 1, 0, 0])


def test_missing_labels_and_logits_leave_gradients_finite() -> None:
    objective = distilled(make_task(CLASSES))
    labels = np.concatenate([np.full((5, 1), np.nan), TEACHER], axis=1).astype(np.float32)
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = tf.reduce_sum(objective.losses(logits, labels))
    soft = softened(LOGITS) - softened(TEACHER)
    expected = WEIGHT * TEMPERATURE * soft
    np.testing.assert_allclose(tape.gradient(loss, logits), expected, atol=1e-6)
