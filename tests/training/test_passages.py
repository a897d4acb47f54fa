"""A text of several passages is one example: the same updates, however a window is cut."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from small import CLASSIFICATION, ONE_LAYER

from bertaccum.bert.encoder import build_encoder, set_recompute
from bertaccum.bert.packed_tokens import example_shapes
from bertaccum.bert.tokenization import NEXT_PASSAGE
from bertaccum.data.token_store import TokenStore
from bertaccum.data.window_cuts import Cut, cut_by_count, make_cut
from bertaccum.data.windows import batches_by_length, make_window
from bertaccum.inference.predictor import Predictor
from bertaccum.options.commands import TrainConfig
from bertaccum.system.progress import silent
from bertaccum.tasks import forward
from bertaccum.tasks.forward import deciding_passages
from bertaccum.tasks.head import build_classifier
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.step import make_update

CONFIG = TrainConfig(learning_rate=5e-4, target_batch=12, warmup_fraction=0.0)
LENGTH, UPDATES = 10, 2


def store_of_passages(most: int, texts: int = UPDATES * CONFIG.target_batch) -> TokenStore:
    """Return a store of random texts, of one passage up to `most`."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(texts):
        lengths = [LENGTH] * (number % most) + [int(rng.integers(3, LENGTH + 1))]
        tokens = rng.integers(1, 50, sum(lengths)).astype(np.int32)
        tokens[np.cumsum(lengths)[:-1]] += NEXT_PASSAGE
        rows.append(tokens)
    token_ids, offsets = np.concatenate(rows), np.cumsum([0, *map(len, rows)])
    labels = rng.integers(0, 2, len(rows)).astype(np.int32)
    weights = np.ones(len(rows), np.float32)
    return TokenStore(token_ids, offsets, example_shapes(token_ids, offsets), labels, weights)


def build(dropout: float = 0.0, pool: str | None = "mean") -> tf_keras.Model:
    tf_keras.utils.set_random_seed(1)
    return build_classifier(build_encoder(ONE_LAYER, dropout), ONE_LAYER, 2, dropout, pool)


def train(
    store: TokenStore, model: tf_keras.Model, micro_batch: int, cut: Cut = cut_by_count
) -> np.ndarray:
    """Return the weights after some updates."""
    steps = -(-CONFIG.target_batch // micro_batch)
    optimizer = make_optimizer(CONFIG, UPDATES + 1, steps)
    update = make_update(CLASSIFICATION, model, optimizer, 0, steps > 1)
    for rows in np.arange(len(store)).reshape(UPDATES, -1):
        assert update(make_window(store, rows, micro_batch, cut))["applied"]
    return np.concatenate([w.numpy().ravel() for w in model.trainable_variables])


def passages_of(store: TokenStore, row: int) -> list[np.ndarray]:
    tokens = store.token_ids[store.offsets[row] : store.offsets[row + 1]]
    starts = np.flatnonzero(tokens >= NEXT_PASSAGE)
    return [part % NEXT_PASSAGE for part in np.split(tokens, starts)]


@pytest.mark.parametrize("pool", ["mean", pytest.param("max", marks=pytest.mark.slow)])
def test_updates_equal_those_of_plain_keras(pool: str) -> None:
    """The reference reads one passage at a time, without padding, masks or ragged tensors."""
    store, model = store_of_passages(4), build(pool=pool)
    encoder, head = model.checkpoint_items["encoder"], model.get_layer("sentence_prediction")
    optimizer = make_optimizer(CONFIG, UPDATES + 1, 1)
    for rows in np.arange(len(store)).reshape(UPDATES, -1):
        with tf.GradientTape() as tape:
            logits = []
            for row in rows:
                pooled = [
                    encoder([tokens[None], np.ones_like(tokens[None]), np.zeros_like(tokens[None])])
                    for tokens in passages_of(store, row)
                ]
                outputs = tf.concat([one["pooled_output"] for one in pooled], axis=0)
                reduced = getattr(tf, f"reduce_{pool}")(outputs, axis=0, keepdims=True)
                logits.append(head(reduced))
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                store.labels[rows], tf.concat(logits, axis=0)
            )
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        optimizer.apply_sums(list(zip(gradients, model.trainable_variables, strict=True)), 1.0)
    expected = np.concatenate([w.numpy().ravel() for w in model.trainable_variables])
    weights = train(store, build(pool=pool), 5)
    np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-6)


def test_cut_and_recomputation_do_not_change_updates_with_dropout() -> None:
    store = store_of_passages(4)
    whole, recomputed = train(store, build(0.1), 12), build(0.1)
    set_recompute(recomputed.checkpoint_items["encoder"], True)
    weights = train(store, recomputed, 5, make_cut("cost", store.largest))
    np.testing.assert_allclose(weights, whole, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def of_one_passage() -> np.ndarray:
    """Return the weights after updates with texts of one passage, and with dropout."""
    return train(store_of_passages(1), build(0.1), 5)


def test_texts_of_one_passage_give_the_same_updates_as_without_windows(
    of_one_passage: np.ndarray,
) -> None:
    without = train(store_of_passages(1), build(0.1, pool=None), 5)
    np.testing.assert_array_equal(of_one_passage, without)


def test_passages_of_a_text_have_different_masks(of_one_passage: np.ndarray) -> None:
    """Otherwise, a text that repeats one passage would be trained like that passage alone."""
    store = store_of_passages(1)
    rows = [
        np.tile(store.token_ids[a:b], 2)
        for a, b in zip(store.offsets, store.offsets[1:], strict=False)
    ]
    for row in rows:
        row[len(row) // 2] += NEXT_PASSAGE
    token_ids, offsets = np.concatenate(rows), 2 * store.offsets
    shapes = example_shapes(token_ids, offsets)
    twice = dataclasses.replace(store, token_ids=token_ids, offsets=offsets, shapes=shapes)
    predict = Predictor(build(), 24)
    np.testing.assert_allclose(predict(twice, silent), predict(store, silent), rtol=0, atol=1e-6)
    assert np.abs(train(twice, build(0.1), 5) - of_one_passage).max() > 1e-4


def test_padded_tokens_count_all_passages() -> None:
    store = store_of_passages(4)
    window = make_window(store, np.arange(12), 5)
    expected = 0
    for start, end in zip(window.cuts, window.cuts[1:], strict=False):
        own = window.token_ids[window.row_splits[start] : window.row_splits[end]]
        shapes = example_shapes(own, window.row_splits[start : end + 1] - window.row_splits[start])
        expected += shapes[:, 0].sum() * shapes[:, 1].max()
    assert window.padded_tokens == expected


def test_predictions_do_not_depend_on_the_batch_and_name_the_deciding_passage() -> None:
    store, model = store_of_passages(4, 48), build()
    batches = batches_by_length(store, 8)
    tokens = [store.shapes[rows, 0].sum() * store.shapes[rows, 1].max() for rows in batches]
    assert max(tokens) <= 8 * store.largest[1]
    assert np.sort(np.concatenate(batches)).tolist() == list(range(48))

    logits = Predictor(model, 8).with_passages(store, silent)
    assert logits.shape == (48, 5, 2)
    np.testing.assert_allclose(Predictor(model, 1)(store, silent), logits[:, 0], rtol=0, atol=1e-6)
    # The mean of the passages' logits is the text's, because the head is linear.
    np.testing.assert_allclose(np.nanmean(logits[:, 1:], axis=1), logits[:, 0], rtol=0, atol=1e-6)
    assert (~np.isnan(logits[:, 1:, 0])).sum(axis=1).tolist() == store.shapes[:, 0].tolist()
    deciding = deciding_passages(CLASSIFICATION.support, logits).numpy()
    for row, number in enumerate(deciding):
        margins = np.diff(logits[row, 1:], axis=-1)[:, 0] * np.sign(np.diff(logits[row, 0]))
        assert number == np.nanargmax(margins) + 1
    assert set(deciding) == {1, 2, 3, 4}


def test_pooling_keeps_nan() -> None:
    """A text without passages, which fills up a shape, has zeros instead of the lowest number."""
    model, nan = build(pool="max"), float("nan")
    pooled = tf.constant([[nan, 1.0], [-2.0, -1.0], [-3.0, nan]])
    found = forward._of_texts(model, pooled, tf.constant([0, 2, 2]), tf.constant(3)).numpy()
    np.testing.assert_array_equal(found, [[nan, 1.0], [0.0, 0.0], [-2.0, nan]])
