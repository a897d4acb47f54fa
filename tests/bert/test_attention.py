"""Attention against that of tf_keras, with the same weights and the same dropout."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from gradients import output_and_gradients

from bertaccum.bert.attention import simplify_attention
from bertaccum.bert.dropout import draw_masks, dropout_masks, seed_dropout

BATCH, LENGTH, HEADS, SIZE = 3, 7, 2, 4


class Attention(tf_keras.Model):
    """As an encoder layer calls it, for the first `queries` tokens."""

    def __init__(self, dtype: str, dropout: float, queries: int) -> None:
        super().__init__(dtype=dtype)
        self.queries = queries
        self.layer = tf_keras.layers.MultiHeadAttention(HEADS, SIZE, dropout=dropout, dtype=dtype)

    def call(self, inputs: tf.Tensor, padding_mask: tf.Tensor, training: bool) -> tf.Tensor:
        mask = tf.tile(padding_mask[:, tf.newaxis], [1, self.queries, 1])
        first = inputs[:, : self.queries]
        return self.layer(first, inputs, attention_mask=mask, training=training)


def outputs(model: Attention, x: tf.Tensor, mask: tf.Tensor, training: bool) -> list[np.ndarray]:
    def call(x: tf.Tensor) -> tf.Tensor:
        with dropout_masks(draw_masks(model, tf.constant([1, 2]), tf.shape(x)[0])):
            return model(x, mask, training=training)

    return output_and_gradients(model, x, call)


@pytest.mark.parametrize("queries", [LENGTH, 1])
@pytest.mark.parametrize(("training", "dropout"), [(True, 0.0), (True, 0.3), (False, 0.3)])
@pytest.mark.parametrize(
    ("dtype", "bound"), [("float64", 1e-12), ("float32", 1e-5), ("mixed_bfloat16", 0.2)]
)
def test_values_and_gradients_are_those_of_keras(
    dtype: str, bound: float, training: bool, dropout: float, queries: int
) -> None:
    tf_keras.utils.set_random_seed(1)
    model = Attention(dtype, dropout, queries)
    x = tf.random.normal([BATCH, LENGTH, 8], dtype="float64" if dtype == "float64" else "float32")
    mask = tf.sequence_mask([7, 2, 5], LENGTH, tf.int32)
    model(x, mask, training=False)
    seed_dropout(model, 8)
    theirs = outputs(model, x, mask, training)
    simplify_attention(model)
    for one, other in zip(outputs(model, x, mask, training), theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound)


def test_nobody_looks_at_padding() -> None:
    model = Attention("float32", 0.0, LENGTH)
    x = tf.random.normal([BATCH, LENGTH, 8])
    mask = tf.sequence_mask([4] * BATCH, LENGTH, tf.int32)
    model(x, mask, training=False)
    simplify_attention(model)
    changed = tf.concat([x[:, :4], 100 * x[:, 4:]], 1)
    np.testing.assert_array_equal(
        model(x, mask, training=False)[:, :4], model(changed, mask, training=False)[:, :4]
    )
