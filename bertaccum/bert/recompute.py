"""Activation recomputation: an encoder layer's insides are forgotten and computed again.

What stays in memory of a layer is its input; the backward pass runs the layer once more to
have the rest. Source: Chen, Xu, Zhang and Guestrin 2016, "Training Deep Nets with Sublinear
Memory Cost".
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
import tf_keras
from official.nlp.modeling import networks
from tf_keras.src.engine.base_layer_utils import call_context

from bertaccum.bert.dropout import dropout_masks, present_masks


def recompute_layers(encoder: networks.BertEncoder) -> None:
    """Makes every transformer layer of an encoder recompute; dropout is repeated as it was."""
    for layer in encoder.transformer_layers:
        layer.call = _recomputed(layer)


def keep_activations(encoder: networks.BertEncoder) -> None:
    """Undoes `recompute_layers`, for what is traced from now on."""
    for layer in encoder.transformer_layers:
        vars(layer).pop("call", None)


def _recomputed(layer: tf_keras.layers.Layer) -> Callable[..., tf.Tensor]:
    call = layer.call

    def run(inputs: list[tf.Tensor], output_range: int | None = None) -> tf.Tensor:
        hidden, mask = inputs  # [batch, length, hidden], [batch, length, length]
        masks, arguments = present_masks(), call_context().call_context_args

        # Of what is no argument no gradient is computed.
        @tf.recompute_grad
        def again(hidden: tf.Tensor) -> tf.Tensor:
            # The second time, what the layers inside ask for, as `training`, would be gone.
            with dropout_masks(masks), call_context().enter(layer, hidden, True, arguments):
                return call([hidden, mask], output_range=output_range)

        return again(hidden)

    return run
