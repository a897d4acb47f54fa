"""What a Keras optimizer has to be, passed on to the one inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras


def _of_inner(name: str) -> property:
    """Return a property that reads and writes an attribute of the optimizer that updates."""
    return property(
        lambda self: getattr(self._innermost, name),
        lambda self, value: setattr(self._innermost, name, value),
    )


class OptimizerWrapper(tf_keras.optimizers.Optimizer):
    """A Keras optimizer that stands for its `inner` one, and has variables of its own.

    The base class's constructor is not called: it would make a second set of
    hyperparameters and a second count of iterations.
    """

    inner: tf_keras.optimizers.Optimizer
    _own_variables: Callable[[], list[tf.Variable]]

    # What a LossScaleOptimizer asks of what it wraps, besides the interface.
    _mesh = None
    _run_with_dtensor = False
    _is_wrapped_by_loss_scale_optimizer = False

    @property
    def iterations(self) -> tf.Variable:
        """Updates so far: the inner optimizer's count."""
        return self.inner.iterations

    @iterations.setter
    def iterations(self, variable: tf.Variable) -> None:
        self.inner.iterations = variable

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's; with a schedule, that of the last update."""
        return self.inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner.learning_rate = learning_rate

    @property
    def _innermost(self) -> tf_keras.optimizers.Optimizer:
        """The optimizer that changes the variables, also where a loss scale is around it."""
        return self.inner

    clipnorm = _of_inner("clipnorm")
    clipvalue = _of_inner("clipvalue")
    global_clipnorm = _of_inner("global_clipnorm")
    weight_decay = _of_inner("weight_decay")
    use_ema = _of_inner("use_ema")
    ema_momentum = _of_inner("ema_momentum")
    ema_overwrite_frequency = _of_inner("ema_overwrite_frequency")
    jit_compile = _of_inner("jit_compile")

    def finalize_variable_values(self, var_list: Sequence[tf.Variable]) -> None:
        """Called by `fit` at its end: the inner optimizer may put averages in the weights."""
        self.inner.finalize_variable_values(var_list)

    def exclude_from_weight_decay(self, *args: Any, **kwargs: Any) -> None:
        """The inner optimizer's."""
        self.inner.exclude_from_weight_decay(*args, **kwargs)

    @property
    def variables(self) -> list[tf.Variable]:
        """The inner optimizer's variables, then our own."""
        return [*self.inner.variables, *self._own_variables()]

    # Under this name the base class's get_weights and set_weights know them.
    _variables = variables

    def save_own_variables(self, store: Any) -> None:
        """For the .keras format, which saves the inner optimizer by itself."""
        for number, variable in enumerate(self._own_variables()):
            store[str(number)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """The reverse of `save_own_variables`."""
        # A model that was saved before its first step has none.
        for number, variable in enumerate(self._own_variables() if store.keys() else []):
            variable.assign(store[str(number)][()])

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        if save_type == "savedmodel":
            # From there, optimizers come back as a base class and without state; two of them,
            # one in the other, would claim the same count.
            return self.inner._trackable_children(save_type, **kwargs)
        # The base class keeps its first answer, and would miss what is built later.
        tracked = tf.__internal__.tracking.AutoTrackable
        return tracked._trackable_children(self, save_type, **kwargs)
