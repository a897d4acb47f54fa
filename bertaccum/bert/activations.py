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
    the formula in memory and goes over all of them again; this one keeps the input and one
    more.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units".

    Args:
      x: of any shape and float type.
    """
    return _gelu(x)


@tf.custom_gradient
def _gelu(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    gate = tf.sigmoid(x * (_LINEAR + _CUBIC * tf.square(x)))

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        slope = x * (1 - gate) * (_LINEAR + 3 * _CUBIC * tf.square(x))
        return upstream * gate * (1 + slope)

    return x * gate, gradient
