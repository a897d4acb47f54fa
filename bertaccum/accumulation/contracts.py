"""What inner optimizers and gradient transforms may offer to an `AccumulatingOptimizer`.

The mean gradients of all variables at once are one more copy of the model. They are not made if
the transform says by how much it would multiply them (`ScalesByFactor`) and the inner optimizer
multiplies by itself, one variable at a time (`TakesScaledSum`). Both are optional: any callable
is a transform, and any tf_keras optimizer can be inside.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, runtime_checkable

import tensorflow as tf

MeanGradients: TypeAlias = list[tuple[tf.Tensor, tf.Variable]]
GradientTransform: TypeAlias = Callable[[MeanGradients], MeanGradients]


@runtime_checkable
class ScalesByFactor(Protocol):
    """A gradient transform that multiplies all gradients by the same number."""

    def __call__(self, grads_and_vars: MeanGradients) -> MeanGradients:
        """Return the gradients, each multiplied by `factor` of their joint norm."""

    def factor(self, norm: tf.Tensor) -> tf.Tensor:
        """Return what gradients of a joint norm are multiplied by.

        Args:
          norm: float64 scalar, the norm of all mean gradients together.

        Returns:
          A float64 scalar.
        """


@runtime_checkable
class TakesScaledSum(Protocol):
    """A tf_keras optimizer that can multiply gradients while it applies them."""

    def scaling(self, factor: tf.Tensor) -> AbstractContextManager[None]:
        """Return a context in which `apply_gradients` multiplies every gradient by `factor`.

        Gradients may be variables of another float type than the model's; the optimizer reads
        each one only when it updates its variable.

        Args:
          factor: float64 scalar.
        """
