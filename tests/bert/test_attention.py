"""Tests that attention matches tf_keras, with the same weights and dropout."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from gradients import output_and_gradients

from bertaccum.bert.dropout import ExampleDropout, draw_masks, dropout_masks
from bertaccum.bert.transformer_layer import SelfAttention

BATCH, LENGTH, WIDTH, HEADS = 3, 7, 8, 2


class Attention(tf_keras.Model):
    """A model that attends from the first `queries` tokens, as a transformer layer does."""

    def __init__(self, layer: tf_keras.layers.Layer, queries: int) -> None:
        super().__init__(dtype=layer.dtype_policy)
        self.layer, self.queries = layer, queries

    def call(self, inputs: tf.Tensor, padding_mask: tf.Tensor, training: bool) -> tf.Tensor:
        mask = tf.tile(padding_mask[:, tf.newaxis], [1, self.queries, 1])
        first = inputs[:, : self.queries]
        attended = self.layer(first, inputs, **{self.mask: mask}, training=training)
        return tf.reshape(attended, tf.shape(first))

    @property
    def mask(self) -> str:
        return "mask" if isinstance(self.layer, SelfAttention) else "attention_mask"


def product(rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.matmul(rows, tf.cast(kernel, rows.dtype)) + bias


def ours(dtype: str, dropout: float, queries: int) -> Attention:
    tf_keras.utils.set_random_seed(1)
    tf_keras.mixed_precision.set_global_policy(dtype)
    try:
        drop, kernel = ExampleDropout(dropout, 0, WIDTH), tf_keras.initializers.GlorotUniform
        return Attention(SelfAttention(WIDTH, HEADS, drop, kernel), queries)
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")


def keras(dtype: str, dropout: float, queries: int) -> Attention:
    layer = tf_keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, dropout=dropout, dtype=dtype)
    return Attention(layer, queries)


def outputs(model: Attention, x: tf.Tensor, mask: tf.Tensor, training: bool) -> list[np.ndarray]:
    def call(x: tf.Tensor) -> tf.Tensor:
        with dropout_masks(draw_masks(model, tf.constant([1, 2]), tf.shape(x)[0])):
            return model(x, mask, training=training)

    return output_and_gradients(model, x, call)


# Float64 shows an error in the formulas, with dropout or without, for all queries or the first one.
@pytest.mark.parametrize(
    ("dtype", "bound", "training", "dropout", "queries"),
    [
        ("float64", 1e-12, True, 0.0, 1),
        ("float64", 1e-12, True, 0.3, LENGTH),
        ("float64", 1e-12, False, 0.3, LENGTH),
        ("float32", 1e-5, True, 0.3, 1),
        ("float32", 1e-5, False, 0.3, 1),
        ("mixed_bfloat16", 0.2, True, 0.3, LENGTH),
    ],
)
def test_values_and_gradients_match_keras(
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    bound: float,
    training: bool,
    dropout: float,
    queries: int,
) -> None:
    # Use Keras' matrix products, so that only the attention differs.
    for name in ("dense", "dense_for_inference"):
        monkeypatch.setattr(f"bertaccum.bert.layers.{name}", product)
    mine, theirs = (made(dtype, dropout, queries) for made in (ours, keras))
    x = tf.random.normal([BATCH, LENGTH, 8], dtype="float64" if dtype == "float64" else "float32")
    mask = tf.sequence_mask([7, 2, 5], LENGTH, tf.int32)
    for model in (mine, theirs):
        model(x, mask, training=False)
    theirs.set_weights(mine.get_weights())
    theirs.layer._dropout_layer = ExampleDropout(dropout, 0, WIDTH, dtype=dtype)
    expected = outputs(theirs, x, mask, training)
    for one, other in zip(outputs(mine, x, mask, training), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound)


def test_padding_does_not_change_the_output() -> None:
    model = ours("float32", 0.0, LENGTH)
    x = tf.random.normal([BATCH, LENGTH, 8])
    mask = tf.sequence_mask([4] * BATCH, LENGTH, tf.int32)
    changed = tf.concat([x[:, :4], 100 * x[:, 4:]], 1)
    np.testing.assert_array_equal(
        model(x, mask, training=False)[:, :4], model(changed, mask, training=False)[:, :4]
    )
