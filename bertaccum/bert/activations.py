"""BERT's activation functions, with gradients that keep a single tensor in memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

# 0.5 (1 + tanh(u)) equals sigmoid(2 u), where u = sqrt(2 / pi) (x + 0.044715 x**3).
_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR
# The normal distribution: the scale of x in erf, and the peak of the density.
_ROOT_HALF, _PEAK = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)

Activation = Callable[[tf.Tensor], tf.Tensor]
# A value and its gradient function; `tf.custom_gradient` returns only the value to callers.
_WithGradient = tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]


@tf.autograph.experimental.do_not_convert
@tf.custom_gradient
def gelu(given: tf.Tensor) -> _WithGradient:
    """Apply the tanh approximation of the Gaussian error linear unit.

    BERT was pretrained with it. The values equal those of `tf.nn.gelu(x, approximate=True)`, whose
    gradient keeps every intermediate result in memory; this one keeps only the derivative. Half
    precision is computed in float32.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units".
    """
    x = _precise(given)
    inner = x * (_LINEAR + _CUBIC * tf.square(x))
    gate = tf.sigmoid(inner)
    # x times the derivative of `inner` equals 3 inner - 2 linear x. Each line below makes one pass
    # over memory.
    times_x = tf.add_n([inner, inner, inner, x * (-2 * _LINEAR)])
    derivative = gate + tf.raw_ops.SigmoidGrad(y=gate, dy=times_x)
    derivative = tf.cast(derivative, given.dtype)
    return tf.cast(x * gate, given.dtype), lambda upstream: upstream * derivative


@tf.autograph.experimental.do_not_convert
@tf.custom_gradient
def gelu_erf(given: tf.Tensor) -> _WithGradient:
    """Apply the exact GELU, x times the normal CDF at x, which Hugging Face calls `gelu`."""
    x = _precise(given)
    twice = 1.0 + tf.math.erf(x * _ROOT_HALF)
    derivative = tf.cast(0.5 * twice + x * _PEAK * tf.exp(-0.5 * tf.square(x)), given.dtype)
    # TensorFlow Lite has no erf. Its converter recognizes these products as a GELU.
    return tf.cast(0.5 * x * twice, given.dtype), lambda upstream: upstream * derivative


def for_inference(activation: Activation) -> Activation:
    """Return a function with the same values, to apply directly to the result of a dense layer.

    On CPUs, TensorFlow recognizes its own GELU after a product in float32, and computes both in one
    kernel (`_FusedMatMul`). A gradient of the result would take more memory.
    """
    approximate = {gelu: True, gelu_erf: False}.get(activation)

    def fused(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.gelu(x, approximate) if x.dtype == tf.float32 else activation(x)

    return activation if approximate is None else fused


def _precise(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32)
