"""Gradients, which are dense, sparse (`IndexedSlices`) or None, and the variables of a model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import contract

Gradient: TypeAlias = Any  # tf.Tensor, tf.IndexedSlices or None
GradsAndVars: TypeAlias = Iterable[tuple[Gradient, tf.Variable]]


def stored_dtype(variable: Any) -> tf.DType:
    """Return the dtype of a variable; under mixed precision, not the one to which it is cast."""
    return getattr(variable, "true_dtype", variable.dtype)


def compute_dtype(variable: Any) -> tf.DType:
    """Return the dtype to compute in: the variable's dtype, but at least float32."""
    dtype = stored_dtype(variable)
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


class ModelVariables:
    """The variables that an optimizer was built with.

    They belong to the model. This object is not trackable, so that checkpoints of the optimizer do
    not contain them.

    Attributes:
      together: The sets of positions whose variables had gradients in the same micro-step.
    """

    def __init__(
        self, optimizer: tf_keras.optimizers.Optimizer, variables: Sequence[tf.Variable] = ()
    ) -> None:
        self._optimizer = optimizer
        self.variables = list(variables)
        keys = [_tf_compat.variable_key(optimizer, v) for v in variables]
        self._positions = {key: position for position, key in enumerate(keys)}
        self.together: set[frozenset[int]] = set()

    def position(self, variable: tf.Variable) -> int:
        """Return a variable's position; raise ValueError if the optimizer does not know it."""
        try:
            return self._positions[_tf_compat.variable_key(self._optimizer, variable)]
        except KeyError:
            raise ValueError(
                f"AccumulatingOptimizer was built without the variable {variable.name};"
                " call build() with all variables before the first step, or create a new optimizer"
                " for another model"
            ) from None

    def in_order(self, grads_and_vars: GradsAndVars) -> list[Gradient]:
        """Return a gradient or None for each variable, and note which have one."""
        gradients: list[Gradient] = [None] * len(self.variables)
        for gradient, variable in grads_and_vars:
            if gradient is not None:
                position = self.position(variable)
                if gradients[position] is not None:
                    raise contract.two_gradients(variable)
                gradients[position] = gradient
        self.together.add(positions_of(gradients))
        return gradients

    def candidates(self) -> list[frozenset[int]]:
        """Return the sets of variables that may have gradients in a window, smallest first.

        They are the sets in `together`, all unions of two of them, and the set of all variables.
        """
        pairs = {one | other for one, other in itertools.product(self.together, repeat=2)}
        return sorted(pairs | {frozenset(range(len(self.variables)))}, key=len)


def positions_of(gradients: Sequence[Gradient]) -> frozenset[int]:
    return frozenset(i for i, gradient in enumerate(gradients) if gradient is not None)
