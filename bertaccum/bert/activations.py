"""BERT's activations, in the form that costs least in training."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

# 0.5 (1 + tanh(u)) is sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x**3).
_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR


@tf.autograph.experimental.do_not_convert
def gelu(x: tf.Tensor) -> tf.Tensor:
    """The tanh approximation of the Gaussian error linear unit, which BERT was pretrained with.

    The same numbers as `tf.nn.gelu(x, approximate=True)`, whose gradient keeps every step of
    the formula in memory and goes over all of them again; this one keeps the derivative and
    no more. Computed in no less than float32, whatever the type of `x`, which is the type of
    the result.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units".

    Args:
      x: of any shape and float type.
    """
    return _gelu(x)


@tf.custom_gradient
def _gelu(given: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    x = tf.cast(given, tf.float64 if given.dtype == tf.float64 else tf.float32)
    inner = x * (_LINEAR + _CUBIC * tf.square(x))
    gate = tf.sigmoid(inner)
    # x times the derivative of `inner` is 3 inner - 2 linear x; each line is one pass.
    times_x = tf.add_n([inner, inner, inner, x * (-2 * _LINEAR)])
    derivative = gate + tf.raw_ops.SigmoidGrad(y=gate, dy=times_x)
    derivative = tf.cast(derivative, given.dtype)
    return tf.cast(x * gate, given.dtype), lambda upstream: upstream * derivative
