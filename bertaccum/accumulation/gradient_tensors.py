"""Gradients as TensorFlow gives them: dense, of some rows only (`IndexedSlices`), or None."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

Gradient: TypeAlias = Any  # tf.Tensor, tf.IndexedSlices or None
GradsAndVars: TypeAlias = Iterable[tuple[Gradient, tf.Variable]]


def compute_dtype(variable: Any) -> tf.DType:
    """Return the type to compute in: the variable's own, but at least float32.

    The own type of a variable under mixed precision is not the one that it is cast to.
    """
    dtype = getattr(variable, "true_dtype", variable.dtype)
    return dtype if dtype.size > 4 else tf.float32


def values_of(gradient: Gradient) -> tf.Tensor:
    """Return the numbers in a gradient, dense or `IndexedSlices`."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def times(gradient: Gradient, factor: tf.Tensor) -> Gradient:
    """Return the gradient times a scalar; with a factor of 0, zero, whatever the gradient is."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = times(gradient.values, factor)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    gradient = tf.cast(gradient, compute_dtype(gradient))
    return tf.math.multiply_no_nan(gradient, tf.cast(factor, gradient.dtype))


def dense(gradients: Sequence[Gradient], variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Return each variable's gradient as one tensor of its shape, zeros for None.

    Clipping must see the sum of the rows that an embedding's gradient consists of.
    """
    return [
        tf.zeros(v.shape, v.dtype) if g is None else tf.convert_to_tensor(g)
        for g, v in zip(gradients, variables, strict=True)
    ]


def after(gradients: Sequence[Gradient]) -> Any:
    """Return a context of what may only happen if the gradients could be computed.

    In a graph, counting does not wait for the data: without this, a step that fails because an
    iterator of unknown length has come to its end would be counted. The last gradient stands for
    all, because backpropagation comes to it first: nothing is kept waiting.
    """
    values = [values_of(g) for g in gradients if g is not None]
    return tf.control_dependencies(values[-1:])
