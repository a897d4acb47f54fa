"""Dense layers as plain matrix products, which are faster than einsum's."""

from __future__ import annotations

import re
from collections.abc import Callable

import tensorflow as tf
import tf_keras

_Gradients = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def simplify_dense(model: tf_keras.Model) -> None:
    """Makes the einsum layers of a model that are matrix products compute as such.

    Weights and outputs stay the same. A layer whose equation is no product of what can be
    seen as two matrices, or that has no bias, is left as it is.
    """
    for part in model.submodules:
        if isinstance(part, tf_keras.layers.EinsumDense) and (axes := _inner_axes(part)):
            part.call = _simplified(part, axes)


def _inner_axes(layer: tf_keras.layers.EinsumDense) -> int:
    """How many of the kernel's first axes are summed over with the input's last; 0 if others."""
    match = re.fullmatch(r"(?:\.\.\.)?(\w+),(\w+)->(?:\.\.\.)?(\w+)", layer.equation)
    assert match is not None
    inputs, kernel, outputs = match.groups()
    inner = sum(axis in inputs for axis in kernel)
    plain = (
        layer.bias is not None
        and inputs.endswith(kernel[:inner])
        and outputs == inputs[: len(inputs) - inner] + kernel[inner:]
        and layer.bias.shape == layer.kernel.shape[inner:]
    )
    return inner if plain else 0


def _simplified(layer: tf_keras.layers.EinsumDense, axes: int) -> Callable[[tf.Tensor], tf.Tensor]:
    @tf.autograph.experimental.do_not_convert
    def call(inputs: tf.Tensor) -> tf.Tensor:
        batch_axes, outer = inputs.shape.rank - axes, layer.kernel.shape[axes:]
        width = outer.num_elements()
        # The variables are converted to the compute type when they are read.
        kernel = tf.reshape(layer.kernel, [-1, width])
        rows = tf.reshape(inputs, [-1, kernel.shape[0]])
        outputs = dense(rows, kernel, tf.reshape(layer.bias, [width]))
        outputs = tf.reshape(outputs, tf.concat([tf.shape(inputs)[:batch_axes], outer], 0))
        outputs.set_shape([*inputs.shape[:batch_axes], *outer])
        return outputs if layer.activation is None else layer.activation(outputs)

    return call


@tf.custom_gradient
def dense(
    rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], _Gradients]]:
    """A matrix product plus bias.

    Args:
      rows: [rows, inputs].
      kernel: [inputs, outputs].
      bias: [outputs].
    """

    def gradient(upstream: tf.Tensor) -> _Gradients:
        return (
            # A third faster than a product with the kernel transposed, on CPUs in float32.
            tf.einsum("ab,cb->ac", upstream, kernel),
            tf.matmul(rows, upstream, transpose_a=True),
            tf.raw_ops.BiasAddGrad(out_backprop=upstream),
        )

    return tf.nn.bias_add(tf.matmul(rows, kernel), bias), gradient
