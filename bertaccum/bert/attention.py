"""Self-attention with a closed-form gradient. It takes half the time of einsum, and less memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.bert.dropout import ExampleDropout
from bertaccum.bert.layers import Projection, rows_of, sizes_of


@tf.autograph.experimental.do_not_convert
def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    bias: tf.Tensor,
    keep: tf.Tensor | None,
    scale: float,
) -> tf.Tensor:
    """Compute scaled dot-product attention.

    Sources: Vaswani et al. 2017, "Attention Is All You Need"; Dao et al. 2022, "FlashAttention",
    for the gradient of softmax, which is computed from the output.

    Args:
      query: Floats [batch, queries, heads, size], like the result; all floats have the same dtype.
      key, value: Floats [batch, keys, heads, size].
      bias: Floats [batch, 1, 1, keys], added to the scores.
      keep: Booleans [batch, heads, queries, keys], false for the attention weights that dropout
        drops. None keeps all of them.
      scale: Factor that multiplies the kept weights.
    """
    shrink = 1 / math.sqrt(query.shape[-1])

    def dropped(weights: tf.Tensor) -> tf.Tensor:
        # In bfloat16, multiplication is faster than `tf.where`.
        return weights if keep is None else weights * tf.cast(keep, weights.dtype)

    @tf.custom_gradient
    def run(
        query: tf.Tensor, key: tf.Tensor, value: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor]]]:
        # Scale the query and the value, not the (larger) score matrix.
        query, key, value = (_swapped(query * shrink), _swapped(key), _swapped(value * scale))
        weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + bias)
        output = tf.matmul(dropped(weights), value)

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            upstream = _swapped(upstream)
            of_output = tf.reduce_sum(upstream * output, -1, keepdims=True)
            kept = dropped(weights)
            of_value = tf.matmul(kept, upstream, transpose_a=True) * scale
            of_kept = tf.matmul(upstream, value, transpose_b=True)
            of_scores = kept * of_kept - weights * of_output
            of_query = tf.matmul(of_scores, key) * shrink
            of_key = tf.matmul(of_scores, query, transpose_a=True)
            return [_swapped(of_query), _swapped(of_key), _swapped(of_value)]

        return _swapped(output), gradient

    return run(query, key, value)


def _swapped(x: tf.Tensor) -> tf.Tensor:
    """Return x with its two middle axes, length and heads, swapped."""
    return tf.transpose(x, [0, 2, 1, 3])


class SelfAttention(tf_keras.layers.Layer):
    """A multi-head attention layer in which each token attends to the tokens of its example.

    It has the same weights as Keras' `MultiHeadAttention`, in attributes of the same names, because
    checkpoints identify weights by these names.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        dropout: ExampleDropout,
        kernel_initializer: Callable[[], tf_keras.initializers.Initializer],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

        def projection(name: str, shape: tuple[int, ...], inputs: Any = None) -> Projection:
            return Projection(shape, inputs, kernel_initializer(), name=name)

        self._heads = heads = (num_heads, hidden_size // num_heads)
        self._query_dense = projection("query", heads)
        self._key_dense = projection("key", heads)
        self._value_dense = projection("value", heads)
        self._dropout_layer = dropout
        self._output_dense = projection("attention_output", (hidden_size,), heads)

    def call(
        self, queries: tf.Tensor, tokens: tf.Tensor, mask: tf.Tensor, training: bool | None = None
    ) -> tf.Tensor:
        """Return the attention of `queries` to `tokens`, [batch x queries, hidden].

        Args:
          queries: Floats [batch, queries, hidden].
          tokens: Floats [batch, length, hidden] of the same dtype.
          mask: Numbers [batch, 1 or queries, length], 0 for padding, the same for all queries of an
            example.
        """
        rows, (batch, length, _) = rows_of(tokens), sizes_of(tokens)
        of_queries, count = rows, length
        if queries is not tokens:
            of_queries, count = rows_of(queries), sizes_of(queries)[1]
        query = self._query_dense(of_queries, training)
        key, value = self._key_dense(rows, training), self._value_dense(rows, training)
        shape = tf.stack([batch, length, *self._heads])
        query = tf.reshape(query, shape if queries is tokens else [batch, count, *self._heads])
        key, value = tf.reshape(key, shape), tf.reshape(value, shape)
        keep, scale = None, 1.0
        if training:
            keep, scale = self._dropout_layer.keep([self._heads[0], count], length)
        padding = 1 - tf.cast(mask[:, tf.newaxis, :1], query.dtype)
        # Adding a score to half of the lowest number cannot overflow, and gives a weight of 0.
        bias = padding * (float(query.dtype.min) / 2)
        attended = attention(query, key, value, bias, keep, scale)
        return self._output_dense(tf.reshape(attended, [-1, math.prod(self._heads)]), training)
