"""Updates with a teacher: the same for any micro-batch, also compiled, as in a plain Keras loop.

The cases are those of the updates without a teacher. A fifth of the examples have no label.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from test_task_updates import (
    CASES,
    CONFIG,
    TAG_WEIGHTS,
    UPDATES,
    apply_plainly,
    crossentropy,
    encoded,
    flat,
    model_of,
    task_of,
    windows_of,
)

from bertaccum.bert.packed_tokens import PaddedTexts, encoder_inputs, unpack
from bertaccum.bert.tokenization import TAG
from bertaccum.data.teacher_labels import LOGITS, OFFSETS, TeacherLabels, TeacherLogits
from bertaccum.data.token_store import TokenStore
from bertaccum.data.window_cuts import make_cut
from bertaccum.data.windows import make_window
from bertaccum.planning.plan import make_plan
from bertaccum.tasks import forward
from bertaccum.tasks.distilled import Distilled
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.step import make_update

NAMES = ("regression", "multi-label", "tags", "all weights")
FEW = ("tags", "all weights")
WEIGHT, TEMPERATURE = 0.6, 3.0
LABELED = 80


def teacher_of(name: str, store: TokenStore, folder: Path) -> tuple[TokenStore, TeacherLabels]:
    """Return the store of a case whose last examples have no label, and labels with logits.

    A teacher of tags reads at most two words of a sentence.
    """
    case, rng = CASES[name], np.random.default_rng(4)
    data, outputs, words = encoded(case, store), case.labels.outputs, None
    counts = np.ones(len(store), int)
    if name == "tags":
        words, counts = int(data.words.max()), data.words
    logits = rng.normal(0, 2, (counts.sum(), outputs)).astype(np.float32)
    if name == "tags":
        starts = np.cumsum(counts) - counts
        logits[np.arange(len(logits)) - np.repeat(starts, counts) >= 2] = np.nan
    files = []
    for part in (slice(0, LABELED), slice(LABELED, None)):
        offsets = np.concatenate([[0], np.cumsum(counts[part])])
        rows = logits[counts[: part.start].sum() :][: offsets[-1]]
        own = folder / str(part.start)
        own.mkdir()
        rows.tofile(own / LOGITS)
        np.save(own / OFFSETS, offsets)
        files.append(TeacherLogits.open(own, outputs, name == "tags"))
    weights = data.weights.copy()
    if name == "tags":
        weights[LABELED:] = files[1].read_words()
        tokens, start = data.token_ids.copy(), data.offsets[LABELED]
        tokens[start:] = np.where(tokens[start:] >= TAG, tokens[start:] % TAG + TAG, tokens[start:])
        data = dataclasses.replace(data, token_ids=tokens)
    objective = Distilled(task_of(case), words, WEIGHT, TEMPERATURE)
    return dataclasses.replace(data, weights=weights), TeacherLabels(objective, *files, LABELED)


def softened(logits: Any) -> tf.Tensor:
    return tf.nn.softmax(logits / TEMPERATURE)


def of_teacher(name: str, logits: Any, teacher: Any) -> tf.Tensor:
    """Return the losses that compare the logits of two models, [..., outputs]."""
    if name == "regression":
        return (logits - teacher)[..., 0] ** 2
    if name == "multi-label":
        p, q = tf.sigmoid(teacher / TEMPERATURE), tf.sigmoid(logits / TEMPERATURE)
        both = p * tf.math.log(p / q) + (1 - p) * tf.math.log((1 - p) / (1 - q))
        return TEMPERATURE**2 * tf.reduce_mean(both, axis=-1)
    p, q = softened(teacher), softened(logits)
    return TEMPERATURE**2 * tf.reduce_sum(p * tf.math.log(p / q), axis=-1)


def window_loss(
    name: str, data: TokenStore, labels: TeacherLabels, rows: np.ndarray, model: tf_keras.Model
) -> tf.Tensor:
    """Return the weighted mean loss of a window, padded to the maximum."""
    tokens = tf.ragged.constant(
        [data.token_ids[data.offsets[r] : data.offsets[r + 1]] for r in rows], tf.int32
    ).to_tensor(shape=[None, 32])
    ids, segments = unpack(tokens)
    positions = tf.zeros_like(ids) + tf.range(32) if name == "tags" else None
    inputs = encoder_inputs(ids, tf.cast(ids != 0, tf.int32), segments, positions)
    logits, labeled = model(inputs, training=True), rows < LABELED
    teachers = np.concatenate([labels.labeled.rows, labels.unlabeled.rows])
    if name != "tags":
        own = (1 - WEIGHT) * labeled * CASES[name].loss(data.labels[rows], logits)
        losses = own + WEIGHT * of_teacher(name, logits, teachers[rows])
        return tf.reduce_sum(losses * data.weights[rows]) / data.weights[rows].sum()
    starts = [*labels.labeled.offsets[:-1], *labels.unlabeled.offsets + len(labels.labeled.rows)]
    means = []
    for row, given, found in zip(rows, tokens.numpy(), logits, strict=True):
        tags = given[given >= TAG] // TAG - 1
        found, teacher = found[given >= TAG], teachers[starts[row] :][: len(tags)]
        known = ~np.isnan(teacher).any(axis=1)
        losses = WEIGHT * known * of_teacher(name, found, np.nan_to_num(teacher))
        weights = known.astype(np.float32)
        if row < LABELED:
            losses += (1 - WEIGHT) * crossentropy(tags, found)
            weights = TAG_WEIGHTS[tags]
        means.append(tf.math.divide_no_nan(tf.reduce_sum(losses * weights), weights.sum()))
    return tf.reduce_sum(tf.stack(means) * data.weights[rows]) / data.weights[rows].sum()


def reference(name: str, data: TokenStore, labels: TeacherLabels) -> tuple[np.ndarray, list[float]]:
    """Train on whole windows; return the weights and the losses."""
    model, losses = model_of(CASES[name]), []
    optimizer = make_optimizer(CONFIG, UPDATES, 1).inner
    for rows in windows_of(data):
        with tf.GradientTape() as tape:
            loss = window_loss(name, data, labels, rows, model)
        apply_plainly(optimizer, model, tape.gradient(loss, model.trainable_variables))
        losses.append(float(loss))
    return flat(model), losses


@pytest.fixture(scope="module")
def cases(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Return a function that returns the data of a case, and its reference, computed once."""

    def of(name: str) -> tuple[TokenStore, TeacherLabels, tuple[np.ndarray, list[float]]]:
        data, labels = teacher_of(name, store, tmp_path_factory.mktemp("teacher"))
        return data, labels, reference(name, data, labels)

    return functools.cache(of)


KINDS = [(name, 12, False) for name in NAMES]
SLOW = [(name, *kind) for name in FEW for kind in ((1, False), (32, False), (12, True))]


@pytest.mark.parametrize(
    ("name", "size", "compile"),
    [*KINDS, *(pytest.param(*kind, marks=pytest.mark.slow) for kind in SLOW)],
)
def test_updates_are_those_of_a_plain_loop(
    cases: Callable[[str], Any], name: str, size: int, compile: bool
) -> None:
    data, labels, (expected, losses) = cases(name)
    model, steps, shapes = model_of(CASES[name]), make_plan(32, size).accumulation_steps, ()
    optimizer = make_optimizer(CONFIG, UPDATES, steps)
    update = make_update(labels.objective, model, optimizer, 0, steps > 1, compile=compile)
    if compile:
        shapes = ((8, 12), (12, 20))
    cut = make_cut("cost" if compile else "count", data.largest, allowed=shapes)
    found = []
    for rows in windows_of(data):
        own = labels.of_window(data, rows)
        window = make_window(own, np.arange(len(rows)), size, cut, allowed=shapes)
        found.append(update(window)["loss"])
    np.testing.assert_allclose(flat(model), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found, losses, rtol=1e-5)


def test_words_of_a_text_are_counted_over_its_passages() -> None:
    """Three passages of a text have 2, 0 and 1 words; the next text has 2."""
    read = tf.constant([[1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0]]) > 0
    some = tf.zeros(4, tf.int32)
    texts = PaddedTexts(some, some, tf.constant([0, 0, 0, 1]), some)
    numbers = forward._word_numbers(texts, read).numpy()
    assert numbers[read].tolist() == [0, 1, 2, 0, 1]
