"""Functions for gradients, which are dense, sparse (`IndexedSlices`) or None in TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

Gradient: TypeAlias = Any  # tf.Tensor, tf.IndexedSlices or None
GradsAndVars: TypeAlias = Iterable[tuple[Gradient, tf.Variable]]


def compute_dtype(variable: Any) -> tf.DType:
    """Return the dtype to compute in: the variable's dtype, but at least float32.

    Under mixed precision, the variable's dtype is the one in which it is stored, not the one to
    which it is cast.
    """
    dtype = getattr(variable, "true_dtype", variable.dtype)
    return dtype if dtype.size > 4 else tf.float32


def values_of(gradient: Gradient) -> tf.Tensor:
    """Return the values of a dense or sparse gradient as a tensor."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def times(gradient: Gradient, factor: tf.Tensor) -> Gradient:
    """Return the gradient times a scalar; a factor of 0 gives zeros, even for NaN gradients."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = times(gradient.values, factor)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    gradient = tf.cast(gradient, compute_dtype(gradient))
    return tf.math.multiply_no_nan(gradient, tf.cast(factor, gradient.dtype))


def dense(gradients: Sequence[Gradient], variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Return each variable's gradient as a dense tensor, with zeros for None.

    Clipping requires this: an embedding's sparse gradient may contain several slices for the same
    row, and only their sum counts.
    """
    return [
        tf.zeros(v.shape, v.dtype) if g is None else tf.convert_to_tensor(g)
        for g, v in zip(gradients, variables, strict=True)
    ]


def current_graph() -> Any:
    """Return the graph that is being traced, or None in eager mode."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def after(gradients: Sequence[Gradient]) -> Any:
    """Return a context whose operations run only after gradients have been computed.

    In a graph, a counter does not wait for the data. Without this context, a step that fails
    because an iterator of unknown length is exhausted would be counted. The context waits only
    for the last gradient in the list: backpropagation computes it first, so nothing is delayed.
    """
    values = [values_of(g) for g in gradients if g is not None]
    return tf.control_dependencies(values[-1:])
