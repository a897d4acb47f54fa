"""A transformer layer of attention, projections and normalization with fast gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.accumulation.offload.backward_gates import gate
from bertaccum.bert.attention import SelfAttention
from bertaccum.bert.dropout import ExampleDropout, dropout_masks, present_masks
from bertaccum.bert.layers import (
    Activation,
    LayerNorm,
    Projection,
    for_inference,
    gelu,
    rows_of,
    sizes_of,
)

# Added to variances, as in BERT's original code.
EPSILON = 1e-12


class TransformerLayer(tf_keras.layers.Layer):
    """A transformer layer that `EncoderScaffold` accepts as `hidden_cls`.

    It has the same weights as tf-models' `TransformerEncoderBlock`, in attributes of the same
    names, because checkpoints identify weights by these names.

    If the attribute `recompute` is set to True, the layer keeps only its input for the backward
    pass, which then computes the layer a second time. A `tf.function` reads the attribute while it
    is traced. Source: Chen, Xu, Zhang and Guestrin 2016, "Training Deep Nets with Sublinear Memory
    Cost".

    Args:
      first_site: Number of the layer's first dropout site; the layer has three.
      output_range: Number of leading tokens whose output is computed; None for all tokens.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        intermediate_size: int,
        *,
        dropout: float = 0.0,
        first_site: int = 0,
        mask_width: int = 512,
        output_range: int | None = None,
        kernel_initializer: Callable[[], tf_keras.initializers.Initializer] = (
            tf_keras.initializers.GlorotUniform
        ),
        activation: Activation = gelu,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.recompute = False
        self._output_range, self._activation = output_range, activation

        def dropout_at(site: int) -> ExampleDropout:
            return ExampleDropout(dropout, first_site + site, mask_width)

        def projection(name: str, width: int) -> Projection:
            return Projection((width,), None, kernel_initializer(), name=name)

        def norm(name: str) -> LayerNorm:
            # Normalization always runs in float32, for numerical stability.
            return LayerNorm(name=name, epsilon=EPSILON, dtype=tf.float32)

        self._attention_layer = SelfAttention(
            hidden_size,
            num_attention_heads,
            dropout_at(0),
            kernel_initializer,
            name="self_attention",
        )
        self._attention_dropout = dropout_at(1)
        self._attention_layer_norm = norm("self_attention_layer_norm")
        self._intermediate_dense = projection("intermediate", intermediate_size)
        self._output_dense = projection("output", hidden_size)
        self._output_dropout = dropout_at(2)
        self._output_layer_norm = norm("output_layer_norm")

    def call(self, inputs: list[tf.Tensor], training: bool | None = None) -> tf.Tensor:
        """Return hidden states [batch, length or output_range, hidden] float32.

        Args:
          inputs: Hidden states, floats [batch, length, hidden], and mask [batch, length, length], 0
            for padding.
          training: Whether to apply dropout, with the masks of the `dropout_masks` context.
        """
        hidden, mask = inputs
        if not self.recompute:
            return gate(self._output(hidden, mask, training))
        masks = present_masks()

        # `recompute_grad` differentiates with respect to arguments and variables only.
        @tf.recompute_grad
        def output(hidden: tf.Tensor) -> tf.Tensor:
            # The backward pass calls this function again, after the outer context has ended.
            with dropout_masks(masks):
                return self._output(hidden, mask, training)

        return gate(output(hidden))

    def _output(self, hidden: tf.Tensor, mask: tf.Tensor, training: bool | None) -> tf.Tensor:
        queries = hidden
        if self._output_range is not None:
            queries, mask = hidden[:, : self._output_range], mask[:, : self._output_range]
        # From here on, the layer computes matrices, [batch x queries, width].
        rows, length = rows_of(queries), sizes_of(queries)[1]
        attended = self._attention_layer(queries, hidden, mask, training=training)
        attended = self._attention_dropout(attended, training=training, length=length)
        # Unlike that of `+`, the gradient of `add_n` does not look for axes to sum over.
        attended = self._attention_layer_norm(tf.add_n([rows, attended]))
        activation = self._activation if training else for_inference(self._activation)
        inner = self._intermediate_dense(attended, training, activation)
        output = self._output_dense(inner, training)
        output = self._output_dropout(output, training=training, length=length)
        output = self._output_layer_norm(tf.add_n([tf.cast(output, tf.float32), attended]))
        return tf.reshape(output, tf.shape(queries))
