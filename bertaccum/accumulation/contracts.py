"""Optional interfaces with which inner optimizers and gradient transforms save memory.

The mean gradients of all variables take as much memory as the model. An `AccumulatingOptimizer`
does not compute them if the transform can return the factor by which it multiplies all gradients
(`ScalesByFactor`), and the inner optimizer multiplies each gradient by a factor itself when it
updates the variable (`TakesScaledSum`). Both interfaces are optional: a transform may be any
callable, and the inner optimizer may be any tf_keras optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, runtime_checkable

import tensorflow as tf

MeanGradients: TypeAlias = list[tuple[tf.Tensor, tf.Variable]]
GradientTransform: TypeAlias = Callable[[MeanGradients], MeanGradients]
# A function of the gradients summed over all replicas, keyed by the position of their variable; of
# the factor that turns the sums into mean gradients, a float64 scalar; and of whether all replicas
# agree to the update, a bool scalar. It returns a tensor that the update waits for.
Observer: TypeAlias = Callable[[Mapping[int, Any], tf.Tensor, tf.Tensor], tf.Tensor]


@runtime_checkable
class ScalesByFactor(Protocol):
    """A gradient transform that multiplies all gradients by the same factor."""

    def __call__(self, grads_and_vars: MeanGradients) -> MeanGradients:
        """Return the gradients, each multiplied by the `factor` for their global norm."""

    def factor(self, norm: tf.Tensor) -> tf.Tensor:
        """Return the factor by which the gradients are multiplied.

        Args:
          norm: Global norm of the mean gradients, a float64 scalar.

        Returns:
          The factor, a float64 scalar.
        """


@runtime_checkable
class TakesScaledSum(Protocol):
    """A tf_keras optimizer that can multiply gradients by a factor as it applies them."""

    def scaling(self, factor: tf.Tensor) -> AbstractContextManager[None]:
        """Return a context in which `apply_gradients` multiplies every gradient by `factor`.

        The gradients may be variables whose float dtype differs from the model's. The optimizer
        must read each gradient only when it updates the model's variable.

        Args:
          factor: The factor, a float64 scalar.
        """
