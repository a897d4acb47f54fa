"""Dense layers, computed as products of matrices, which are faster than einsum."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import tensorflow as tf
import tf_keras

_Gradients = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


@tf.autograph.experimental.do_not_convert
@tf.custom_gradient
def dense(
    rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], _Gradients]]:
    """Return `rows` [rows, inputs] times `kernel` [inputs, outputs], plus `bias` [outputs].

    `tf.custom_gradient` hides the gradient function from callers.
    """

    def gradient(upstream: tf.Tensor) -> _Gradients:
        return (
            # In float32 on CPUs, einsum is a third faster than matmul with a transposed kernel.
            tf.einsum("ab,cb->ac", upstream, kernel),
            tf.matmul(rows, upstream, transpose_a=True),
            tf.raw_ops.BiasAddGrad(out_backprop=upstream),
        )

    return tf.nn.bias_add(tf.matmul(rows, kernel), bias), gradient


def dense_for_inference(rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Compute what `dense` does, in operations that TensorFlow can fuse with an activation."""
    return tf.nn.bias_add(tf.matmul(rows, kernel), bias)


def rows_of(tensor: tf.Tensor) -> tf.Tensor:
    """Return a tensor [..., width] as a matrix [rows, width]."""
    return tensor if tensor.shape.rank == 2 else tf.reshape(tensor, [-1, tensor.shape[-1]])


def sizes_of(tensor: tf.Tensor) -> list[Any]:
    """Return the size of each axis: a number if it is known, otherwise an int32 scalar."""
    known = list(tensor.shape)
    if None not in known:
        return known
    sizes = tf.unstack(tf.shape(tensor), len(known))
    return [size if size is not None else sizes[i] for i, size in enumerate(known)]


class Projection(tf_keras.layers.Layer):
    """A dense layer on rows, whose weights have those of its axes that a checkpoint has.

    It has the same weights as an `EinsumDense` layer: a kernel [*input axes, *output axes] and a
    bias [*output axes].

    Args:
      input_shape: Sizes of the input axes; None for a single axis with the width of the rows.
    """

    def __init__(
        self,
        output_shape: tuple[int, ...],
        input_shape: tuple[int, ...] | None = None,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._outer, self._inner = output_shape, input_shape
        self._kernel_initializer = tf_keras.initializers.get(kernel_initializer)

    def build(self, rows_shape: tf.TensorShape) -> None:
        """Create the kernel and the bias for rows of this shape."""
        inner = self._inner or rows_shape[-1:]
        self.kernel = self.add_weight(
            "kernel", [*inner, *self._outer], initializer=self._kernel_initializer
        )
        self.bias = self.add_weight("bias", self._outer, initializer="zeros")
        super().build(rows_shape)

    def call(
        self,
        rows: tf.Tensor,
        training: bool | None = None,
        activation: Callable[[tf.Tensor], tf.Tensor] = lambda outputs: outputs,
    ) -> tf.Tensor:
        """Return `activation` of the outputs [rows, outputs] of `rows` [rows, inputs].

        Args:
          training: Whether a gradient of the result will be computed.
        """
        inputs, outputs = rows.shape[-1], prod(self._outer)
        # Keras casts the variables to the compute dtype when they are read.
        kernel, bias = _shaped(self.kernel, [inputs, outputs]), _shaped(self.bias, [outputs])
        return activation((dense if training else dense_for_inference)(rows, kernel, bias))


def _shaped(variable: tf.Variable, shape: list[int]) -> tf.Tensor:
    """Return a variable's value in a shape, without an operation if that is its own shape."""
    value = tf.convert_to_tensor(variable)
    return value if value.shape == shape else tf.reshape(value, shape)
