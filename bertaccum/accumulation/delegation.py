"""Keras optimizers that delegate to an inner optimizer, one of which adapts legacy optimizers.

The optimizers of tf-models-official (AdamWeightDecay, LAMB, LARS) are legacy optimizers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import contract, loss_scaling, serialization
from bertaccum.accumulation.checks import check_hooks


def delegated(owner: str, name: str) -> property:
    """Return a property that reads and writes the attribute `name` of `self.owner`."""
    return property(
        lambda self: getattr(getattr(self, owner), name),
        lambda self, value: setattr(getattr(self, owner), name, value),
    )


class DelegatingOptimizer(contract.Delegation, tf_keras.optimizers.Optimizer):
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
        return loss_scaling.innermost(self.inner)

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

    def _is_own(self, name: str) -> bool:
        """Return whether a class, without those of Keras, defines or annotates an attribute."""
        classes = type(self).__mro__
        members = map(vars, classes[: classes.index(tf_keras.optimizers.Optimizer)])
        return any(name in own or name in own.get("__annotations__", ()) for own in members)

    def _owners(self) -> Sequence[Any]:
        return self._innermost, self.inner

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
        """Load what `save_own_variables` saved; warn if it is the state of another optimizer."""
        own = self._own_variables()
        saved = [store[str(number)][()] for number in range(len(store.keys()))]
        if contract.fits_state(self, own, saved):
            for variable, value in zip(own, saved, strict=False):
                variable.assign(value)

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        return _tf_compat.trackable_children(self, self.inner, save_type, **kwargs)


Legacy = tf_keras.optimizers.legacy.Optimizer


class LegacyOptimizer(DelegatingOptimizer):
    """A legacy optimizer with the interface that an `AccumulatingOptimizer` calls.

    It receives gradients that are already summed over replicas, does not sum them again, and
    clips the mean gradient of the whole window.
    """

    use_ema = False

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer, _tf_compat.legacy_name(optimizer))
        _stop_summing(optimizer)
        # Legacy optimizers create `iterations` when it is first read, which may happen while a
        # function is traced. Read it now, to create it in the strategy's scope.
        _ = optimizer.iterations

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Create the optimizer's slots and hyperparameters."""
        _tf_compat.build_legacy(self.inner, var_list)
        _tf_compat.mark_built(self)

    def apply_gradients(
        self, grads_and_vars: Iterable[Any], name: str | None = None, **kwargs: Any
    ) -> tf.Variable:
        """Update the variables; `kwargs` are ignored, because the gradients are already summed."""
        self.inner.apply_gradients(list(grads_and_vars), name)
        return self.iterations

    def finalize_variable_values(self, var_list: Sequence[tf.Variable]) -> None:
        """Do nothing: legacy optimizers do not change the weights when `fit` ends."""

    def _own_variables(self) -> list[tf.Variable]:
        return list(self.inner.weights)

    @property
    def variables(self) -> list[tf.Variable]:
        """The legacy optimizer's variables."""
        return _tf_compat.callable_list(self._own_variables())

    @property
    def _learning_rate(self) -> Any:
        return self.inner.learning_rate

    def get_config(self) -> dict[str, Any]:
        """Return the legacy optimizer's config, with the arguments that its own method omits.

        For example, AdamWeightDecay omits the names of the weights that it excludes from weight
        decay. Without these names, it would decay the weights after it is loaded.
        """
        config = tf_keras.optimizers.serialize(self.inner)
        for name in inspect.signature(type(self.inner).__init__).parameters:
            value = _tf_compat.legacy_argument(self.inner, name)
            if name not in config["config"] and isinstance(value, int | float | str | list):
                config["config"][name] = value
        return {"optimizer": config}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> LegacyOptimizer:
        """Create the optimizer from the config that `get_config` returns."""
        legacy = vars(tf_keras.optimizers.legacy)
        return cls(serialization.revived(config["optimizer"], {**(custom_objects or {}), **legacy}))


# The older file formats store only the name of the class.
tf_keras.saving.get_custom_objects()[LegacyOptimizer.__name__] = LegacyOptimizer


def adapted(optimizer: Any) -> Any:
    """Return a legacy optimizer as a `LegacyOptimizer`, and any other object unchanged."""
    if not isinstance(optimizer, Legacy):
        return optimizer
    if not loss_scaling.is_scaled(optimizer):
        return LegacyOptimizer(optimizer)
    settings = optimizer.dynamic, optimizer.initial_scale, optimizer.dynamic_growth_steps
    return loss_scaling.LossScaleOptimizer(LegacyOptimizer(optimizer.inner_optimizer), *settings)


def _stop_summing(optimizer: Any) -> None:
    """Make a legacy optimizer, and any inside it, use gradients without summing them first."""
    check_hooks(optimizer, legacy=True)
    optimizer.gradient_aggregator = list
    for part in list(vars(optimizer).values()):
        if isinstance(part, Legacy):
            _stop_summing(part)
