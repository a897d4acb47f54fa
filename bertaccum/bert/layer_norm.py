"""Layer normalization with a closed-form gradient, which takes less memory than TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
import tf_keras

_Gradients = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


@tf.autograph.experimental.do_not_convert
def layer_norm(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalize the last axis of `x` to zero mean and unit variance, then scale and shift it.

    The gradient keeps fewer tensors in memory than TensorFlow's own, which keeps every intermediate
    result. `scale` and `offset` are [width], and all floats have the same dtype.

    Source: Ba, Kiros and Hinton 2016, "Layer Normalization".
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
    """Return the sum [width] of rows [..., width], twice as fast as `reduce_sum` on CPUs."""
    rows = x if x.shape.rank == 2 else tf.reshape(x, [-1, x.shape[-1]])
    return tf.raw_ops.BiasAddGrad(out_backprop=rows)


class LayerNorm(tf_keras.layers.LayerNormalization):
    """Keras' layer normalization over the last axis, computed by `layer_norm`.

    It has the same weights as Keras' layer, and its arguments except `axis`, `center` and `scale`.
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Normalize `inputs` [..., width] in float32 or float64, whatever their dtype."""
        x = tf.cast(inputs, tf.float64 if inputs.dtype == tf.float64 else tf.float32)
        scale, offset = (tf.cast(v, x.dtype) for v in (self.gamma, self.beta))
        return tf.cast(layer_norm(x, scale, offset, self.epsilon), self.compute_dtype)
