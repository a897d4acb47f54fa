"""BERT's activation functions, in the form that costs least in training."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

# 0.5 (1 + tanh(u)) is sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x**3).
_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR
# Of the normal distribution.
_ROOT_HALF, _PEAK = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)

# For callers, `tf.custom_gradient` leaves the first.
_WithGradient = tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]


@tf.autograph.experimental.do_not_convert
@tf.custom_gradient
def gelu(given: tf.Tensor) -> _WithGradient:
    """Apply the tanh approximation of the Gaussian error linear unit.

    BERT was pretrained with it. The values are those of `tf.nn.gelu(x, approximate=True)`, whose
    gradient keeps every step of the formula in memory; this one keeps the derivative only. It
    computes in float32 at least.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units".

    Args:
      given: x, of any shape and float type.

    Returns:
      A tensor of the shape and type of x.
    """
    x = _precise(given)
    inner = x * (_LINEAR + _CUBIC * tf.square(x))
    gate = tf.sigmoid(inner)
    # x times the derivative of `inner` is 3 inner - 2 linear x; each line is one pass.
    times_x = tf.add_n([inner, inner, inner, x * (-2 * _LINEAR)])
    derivative = gate + tf.raw_ops.SigmoidGrad(y=gate, dy=times_x)
    derivative = tf.cast(derivative, given.dtype)
    return tf.cast(x * gate, given.dtype), lambda upstream: upstream * derivative


@tf.autograph.experimental.do_not_convert
@tf.custom_gradient
def gelu_erf(given: tf.Tensor) -> _WithGradient:
    """Apply the Gaussian error linear unit: x times the normal distribution's share below x.

    Hugging Face's configurations call it `gelu`. Like `gelu` here, it keeps the derivative only
    and computes in float32 at least.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units".

    Args:
      given: x, of any shape and float type.

    Returns:
      A tensor of the shape and type of x.
    """
    x = _precise(given)
    below = 0.5 + 0.5 * tf.math.erf(x * _ROOT_HALF)
    derivative = tf.cast(below + x * _PEAK * tf.exp(-0.5 * tf.square(x)), given.dtype)
    return tf.cast(x * below, given.dtype), lambda upstream: upstream * derivative


def _precise(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32)
