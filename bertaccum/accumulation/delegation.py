"""A Keras optimizer that delegates to an inner optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import contract


def delegated(owner: str, name: str) -> property:
    """Return a property that reads and writes the attribute `name` of `self.owner`."""
    return property(
        lambda self: getattr(getattr(self, owner), name),
        lambda self, value: setattr(getattr(self, owner), name, value),
    )


_PACKAGE = __name__.partition(".")[0] + "."


class DelegatingOptimizer(tf_keras.optimizers.Optimizer):
    """A Keras optimizer with the attributes, variables and iterations of an inner one.

    Public attributes that bertaccum's own classes do not define are those of the inner optimizer,
    when they are read and when they are set. The constructor does not call that of the base class,
    which would create a second set of hyperparameters and a second `iterations` variable.
    """

    inner: Any
    name: str

    # A LossScaleOptimizer around this optimizer reads these two attributes to see whether DTensor
    # is used, which is not supported.
    _mesh = None
    _run_with_dtensor = False

    def __init__(self, inner: Any, name: str) -> None:
        self.inner = inner
        self.name = name

    @property
    def _innermost(self) -> tf_keras.optimizers.Optimizer:
        """The optimizer that updates the variables, without the `LossScaleOptimizer` around it."""
        scaled = isinstance(self.inner, tf_keras.mixed_precision.LossScaleOptimizer)
        return self.inner.inner_optimizer if scaled else self.inner

    iterations = delegated("inner", "iterations")
    learning_rate = delegated("inner", "learning_rate")
    # The base class has these methods as well, so `__getattr__` is not called for them.
    update_step = delegated("_innermost", "update_step")
    add_variable = delegated("_innermost", "add_variable")
    add_variable_from_reference = delegated("_innermost", "add_variable_from_reference")

    @property
    def _learning_rate(self) -> Any:
        """The schedule or number that the inner optimizer was given."""
        return getattr(self._innermost, "_learning_rate", None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "inner":  # `inner` is missing while an object is copied.
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._owner(name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or _is_defined_by(type(self), name):
            super().__setattr__(name, value)
            return
        try:
            owner = self._owner(name)
        except AttributeError:
            if type(self).__module__.startswith(_PACKAGE):
                raise
            super().__setattr__(name, value)  # A subclass may have attributes of its own.
            return
        setattr(owner, name, value)

    def _owner(self, name: str) -> Any:
        """Return the inner optimizer that has an attribute: the innermost one if it does."""
        for optimizer in (self._innermost, self.inner):
            if hasattr(optimizer, name):
                return optimizer
        raise contract.no_attribute(self, self._innermost, name)

    def finalize_variable_values(self, var_list: Sequence[tf.Variable]) -> None:
        """Let the inner optimizer assign its moving averages to the weights at the end of `fit`."""
        self.inner.finalize_variable_values(var_list)

    def exclude_from_weight_decay(self, *args: Any, **kwargs: Any) -> None:
        """Exclude variables from the inner optimizer's weight decay."""
        self._innermost.exclude_from_weight_decay(*args, **kwargs)

    def _own_variables(self) -> list[tf.Variable]:
        """Return this optimizer's own variables."""
        return []

    @property
    def variables(self) -> list[tf.Variable]:
        """The inner optimizer's variables, followed by this optimizer's own variables."""
        return _tf_compat.callable_list([*self.inner.variables, *self._own_variables()])

    @property
    def _variables(self) -> list[tf.Variable]:
        return self.variables

    def save_own_variables(self, store: Any) -> None:
        """Save this optimizer's own variables to a .keras file; the inner one saves its own."""
        for number, variable in enumerate(self._own_variables()):
            store[str(number)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load the variables that `save_own_variables` saved."""
        # If a model was saved before its first step, its file contains no variables.
        for number, variable in enumerate(self._own_variables() if store.keys() else []):
            variable.assign(store[str(number)][()])

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        return _tf_compat.trackable_children(self, self.inner, save_type, **kwargs)


def _is_defined_by(kind: type, name: str) -> bool:
    """Return whether a class, without those of Keras, defines or annotates an attribute."""
    classes = kind.__mro__[: kind.__mro__.index(tf_keras.optimizers.Optimizer)]
    own = [vars(base) for base in classes]
    return any(name in members or name in members.get("__annotations__", ()) for members in own)
