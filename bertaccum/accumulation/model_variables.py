"""A model's variables in a fixed order, and the sets of them that receive gradients together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation.gradient_tensors import Gradient, GradsAndVars


class ModelVariables:
    """The variables that an optimizer was built with.

    This object is not trackable: the variables belong to the model, so a checkpoint of the
    optimizer must not contain them.

    Args:
      optimizer: A tf_keras optimizer, which supplies the variables' keys.
      variables: All trainable variables.

    Attributes:
      variables: The same variables, in the given order.
      together: The sets of variables that had gradients in the same micro-step, as positions in
        `variables`. The optimizer adds new sets.
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
        """Return the position of a variable in `variables`.

        Raises:
          ValueError: If the optimizer was built without this variable.
        """
        try:
            return self._positions[_tf_compat.variable_key(self._optimizer, variable)]
        except KeyError:
            raise ValueError(
                f"AccumulatingOptimizer was built without the variable {variable.name};"
                " call build() with all variables before the first step, or create a new optimizer"
                " for another model"
            ) from None

    def in_order(self, grads_and_vars: GradsAndVars) -> list[Gradient]:
        """Return a gradient or None for each variable, in the order of `variables`."""
        gradients: list[Gradient] = [None] * len(self.variables)
        for gradient, variable in grads_and_vars:
            if gradient is not None:
                gradients[self.position(variable)] = gradient
        return gradients

    def candidates(self) -> list[frozenset[int]]:
        """Return the sets of variables that may have gradients in a window, smallest first.

        The sets contain positions in `variables`. They are the sets in `together`, all unions of
        two of them, and the set of all variables.
        """
        pairs = {one | other for one, other in itertools.product(self.together, repeat=2)}
        return sorted(pairs | {frozenset(range(len(self.variables)))}, key=len)


def positions_of(gradients: Sequence[Gradient]) -> frozenset[int]:
    """Return the positions of the gradients that are not None."""
    return frozenset(i for i, gradient in enumerate(gradients) if gradient is not None)
