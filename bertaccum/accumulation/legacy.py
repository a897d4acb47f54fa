"""An adapter that gives legacy tf_keras optimizers the interface of the new ones.

The optimizers of tf-models-official (AdamWeightDecay, LAMB, LARS) are legacy optimizers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import serialization
from bertaccum.accumulation.checks import check_hooks
from bertaccum.accumulation.delegation import DelegatingOptimizer

Legacy = tf_keras.optimizers.legacy.Optimizer
LossScale = tf_keras.mixed_precision.LossScaleOptimizer


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
    if not isinstance(optimizer, LossScale):
        return LegacyOptimizer(optimizer)
    inner, scale = LegacyOptimizer(optimizer.inner_optimizer), optimizer.initial_scale
    return LossScale(inner, optimizer.dynamic, scale, optimizer.dynamic_growth_steps)


def _stop_summing(optimizer: Any) -> None:
    """Make a legacy optimizer, and any inside it, use gradients without summing them first."""
    check_hooks(optimizer, legacy=True)
    optimizer.gradient_aggregator = list
    for part in list(vars(optimizer).values()):
        if isinstance(part, Legacy):
            _stop_summing(part)
