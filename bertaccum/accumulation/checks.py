"""Checks of tf_keras objects, which raise errors and warnings before anything is built."""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.accumulation import contract
from bertaccum.accumulation.contract import whole_steps

REDUCTIONS = ("mean", "sum")
DTYPES = ("float16", "bfloat16", "float32", "float64")
NONFINITE = ("skip", "raise", "propagate")
# Methods that Keras calls for each micro-batch, before the gradients of a window are summed.
_HOOKS = ("minimize", "compute_gradients", "aggregate_gradients")
_LEGACY_HOOKS = (
    "minimize",
    "_transform_loss",
    "_get_gradients",
    "_compute_gradients",
    "_transform_unaggregated_gradients",
    "_aggregate_gradients",
)
BATCH_NORMALIZATIONS = (
    tf_keras.layers.BatchNormalization,
    tf_keras.layers.experimental.SyncBatchNormalization,
)


def checked_steps(steps: Any, schedule: bool = False) -> Any:
    """Return the user's `accumulation_steps`, as a Python int unless it is a variable or function.

    `schedule` says whether a function of the update number is allowed.
    """
    if isinstance(steps, tf.Variable) or (schedule and callable(steps)):
        return steps
    allowed = "an integer, a tf.Variable or, except for a layer, a function of the update number"
    return whole_steps(steps, allowed)


def accumulates(steps: Any) -> bool:
    """Return whether a window may have several micro-steps; `steps` may also be a variable."""
    return not (isinstance(steps, int) and steps == 1)


def check_inner(optimizer: Any, accumulating: type) -> None:
    """Raise TypeError or ValueError for an optimizer that cannot be wrapped."""
    scaled = isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
    innermost = optimizer.inner_optimizer if scaled else optimizer
    if isinstance(optimizer, accumulating) or isinstance(innermost, accumulating):
        raise ValueError(
            "this optimizer already accumulates; wrap its inner optimizer instead, with the product"
            " of both `accumulation_steps`"
        )
    if not isinstance(innermost, tf_keras.optimizers.Optimizer):
        raise TypeError(
            f"{type(innermost).__module__}.{type(innermost).__name__} is not a tf_keras optimizer;"
            " use one from tf_keras.optimizers, or bertaccum.keras3 with one of Keras 3"
        )
    for one in (optimizer, innermost):
        check_hooks(one)


def check_hooks(optimizer: Any, legacy: bool = False) -> None:
    """Raise TypeError if an optimizer overrides a method of Keras that accumulation would skip."""
    for hook in _LEGACY_HOOKS if legacy else _HOOKS:
        owners = [base.__module__ for base in type(optimizer).__mro__ if hook in vars(base)]
        if hook in vars(optimizer) or not owners[0].startswith(("tf_keras.", "bertaccum.")):
            raise contract.skipped_hook(optimizer, hook)
    # `list` leaves the gradients unchanged.
    aggregator = getattr(optimizer, "gradient_aggregator", list)
    if aggregator is not list and not aggregator.__module__.startswith("tf_keras."):
        raise contract.skipped_hook(optimizer, "gradient_aggregator")


def skip_aggregation(optimizer: Any) -> dict[str, bool]:
    """Return the arguments with which `apply_gradients` does not sum over replicas again.

    Raises:
      ValueError: If an own `apply_gradients` would sum the gradients of several replicas.
    """
    name = "skip_gradients_aggregation"
    parameters = inspect.signature(optimizer.apply_gradients).parameters.values()
    if any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters):
        return {name: True}
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise ValueError(
            f"apply_gradients of {type(optimizer).__name__} does not accept {name}, so it would sum"
            " the gradients of several replicas twice; add this argument, and pass it on"
        )
    return {}


def check_is_model(model: Any) -> None:
    """Raise TypeError if `model` is not a tf_keras model."""
    if not isinstance(model, tf_keras.Model):
        raise TypeError(
            f"{type(model).__module__}.{type(model).__name__} is not a tf_keras model;"
            " for a model of Keras 3 (`keras` or `tf.keras`), use bertaccum.keras3"
        )


def warn_of_batch_normalization(model: tf_keras.Model, known: set[str]) -> None:
    """Warn if the model has trainable batch normalization that does not pool its statistics.

    Args:
      known: Names of layers that a warning has named; those of this warning are added.
    """
    layers = [layer for layer in model.submodules if isinstance(layer, BATCH_NORMALIZATIONS)]
    # AccumBatchNormalization, which has `accumulation_steps`, needs no warning.
    plain = [layer for layer in layers if not hasattr(layer, "accumulation_steps")]
    names = [layer.name for layer in plain if layer.trainable]
    first = "Call replace_batch_normalization(model, accumulation_steps) first"
    contract.warn_of_batch_normalization(names, first, known)


def check_in_replica(strategy: tf.distribute.Strategy | None) -> None:
    """Raise ValueError if the caller is outside the replicas of `strategy`; None is inside."""
    if strategy is not None:
        raise ValueError(
            "gradients were passed outside of a replica; call accumulate() and apply_gradients()"
            f" in a function that is passed to {type(strategy).__name__}.run"
        )


def check_scope(optimizer: tf_keras.optimizers.Optimizer) -> None:
    """Raise ValueError if the optimizer was created outside the current strategy's scope."""
    strategy = tf.distribute.get_strategy()
    if not strategy.extended.variable_created_in_scope(optimizer.iterations):
        raise ValueError(
            f"the optimizer was created outside the scope of {type(strategy).__name__};"
            " create it and its inner optimizer in `with strategy.scope():`"
        )
