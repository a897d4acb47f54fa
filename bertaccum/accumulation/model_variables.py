"""The variables of a model in a fixed order, and which of them get gradients together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation.gradient_tensors import Gradient, GradsAndVars


class ModelVariables:
    """The variables that an optimizer was built with.

    Args:
      optimizer: any tf_keras optimizer, which tells variables apart.
      variables: all that can be trained. They belong to the model, so no checkpoint of an
        optimizer is to hold them: this is no trackable object.

    Attributes:
      variables: the same, in order.
      together: sets of variables, by position, that have had gradients in one micro-step; the
        optimizer adds to it.
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
        """Return the number of a variable in `variables`.

        Raises:
          ValueError: it is not one of them.
        """
        try:
            return self._positions[_tf_compat.variable_key(self._optimizer, variable)]
        except KeyError:
            raise ValueError(
                f"AccumulatingOptimizer was built with other variables, without {variable.name};"
                " build() it with all of them before the first step, or make a new one for"
                " another model"
            ) from None

    def in_order(self, grads_and_vars: GradsAndVars) -> list[Gradient]:
        """Return one gradient or None for each of the variables."""
        gradients: list[Gradient] = [None] * len(self.variables)
        for gradient, variable in grads_and_vars:
            if gradient is not None:
                gradients[self.position(variable)] = gradient
        return gradients

    def candidates(self) -> list[frozenset[int]]:
        """Return the sets of positions that may have gradients in a window, small ones first.

        They are the sets noted so far, the unions of two of them, and all variables.
        """
        pairs = {one | other for one, other in itertools.product(self.together, repeat=2)}
        return sorted(pairs | {frozenset(range(len(self.variables)))}, key=len)


def positions_of(gradients: Sequence[Gradient]) -> frozenset[int]:
    """Return the positions at which there is a gradient."""
    return frozenset(i for i, gradient in enumerate(gradients) if gradient is not None)
