"""A Keras optimizer that stands for another one inside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat


def delegated(owner: str, name: str) -> property:
    """Return a property that reads and writes an attribute of the optimizer inside.

    Args:
      owner: the attribute of this object that holds it.
      name: the attribute's name, here and there.
    """
    return property(
        lambda self: getattr(getattr(self, owner), name),
        lambda self, value: setattr(getattr(self, owner), name, value),
    )


class DelegatingOptimizer(tf_keras.optimizers.Optimizer):
    """A Keras optimizer with the hyperparameters, variables and iterations of an inner one.

    The base class's constructor is not called: it would make a second set of hyperparameters
    and a second count of iterations.

    Args:
      inner: the optimizer that updates the variables, or a `LossScaleOptimizer` around it.
      name: of this optimizer.
    """

    # A LossScaleOptimizer around this one reads them: it does not run with DTensor.
    _mesh = None
    _run_with_dtensor = False

    def __init__(self, inner: Any, name: str) -> None:
        self.inner = inner
        self.name = name

    @property
    def _innermost(self) -> tf_keras.optimizers.Optimizer:
        """The optimizer that changes the variables, without a loss scale around it."""
        scaled = isinstance(self.inner, tf_keras.mixed_precision.LossScaleOptimizer)
        return self.inner.inner_optimizer if scaled else self.inner

    iterations = delegated("inner", "iterations")
    learning_rate = delegated("inner", "learning_rate")
    clipnorm = delegated("_innermost", "clipnorm")
    clipvalue = delegated("_innermost", "clipvalue")
    global_clipnorm = delegated("_innermost", "global_clipnorm")
    weight_decay = delegated("_innermost", "weight_decay")
    use_ema = delegated("_innermost", "use_ema")
    ema_momentum = delegated("_innermost", "ema_momentum")
    ema_overwrite_frequency = delegated("_innermost", "ema_overwrite_frequency")
    jit_compile = delegated("_innermost", "jit_compile")

    def finalize_variable_values(self, var_list: Sequence[tf.Variable]) -> None:
        """Let the inner optimizer put its moving averages in the weights; `fit` ends with it."""
        self.inner.finalize_variable_values(var_list)

    def exclude_from_weight_decay(self, *args: Any, **kwargs: Any) -> None:
        """Exclude variables from the inner optimizer's weight decay."""
        self.inner.exclude_from_weight_decay(*args, **kwargs)

    def _own_variables(self) -> list[tf.Variable]:
        """Return the variables that are not the inner optimizer's; a subclass may have some."""
        return []

    @property
    def variables(self) -> list[tf.Variable]:
        """The inner optimizer's variables, then this one's own."""
        return [*self.inner.variables, *self._own_variables()]

    @property
    def _variables(self) -> list[tf.Variable]:
        return self.variables

    def save_own_variables(self, store: Any) -> None:
        """Save this optimizer's own variables to a .keras file; the inner one's go by themselves.

        Args:
          store: a dict-like object of arrays.
        """
        for number, variable in enumerate(self._own_variables()):
            store[str(number)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load what `save_own_variables` saved."""
        # A model that was saved before its first step has none.
        for number, variable in enumerate(self._own_variables() if store.keys() else []):
            variable.assign(store[str(number)][()])

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        return _tf_compat.trackable_children(self, self.inner, save_type, **kwargs)
