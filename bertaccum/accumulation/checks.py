"""Errors and warnings for arguments that make no sense, raised before anything is built."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

REDUCTIONS = ("mean", "sum", "running_mean")
NONFINITE = ("skip", "raise", "propagate")
ON_PARTIAL = ("apply", "carry", "drop")
BATCH_NORMALIZATIONS = (
    tf_keras.layers.BatchNormalization,
    tf_keras.layers.experimental.SyncBatchNormalization,
)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise ValueError for a value that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(choices)}")


def checked_steps(steps: Any, schedule: bool = False) -> Any:
    """Return a number of micro-steps, as a plain int unless it is a variable.

    Args:
      steps: what the user gave.
      schedule: a function of the update's number is allowed; it is returned as it is.

    Raises:
      TypeError, ValueError: it makes no sense.
    """
    if isinstance(steps, tf.Variable) or (schedule and callable(steps)):
        return steps
    if isinstance(steps, bool) or not isinstance(steps, numbers.Integral):
        raise TypeError(
            f"accumulation_steps is {steps!r}; give a whole number, a tf.Variable or, except to a"
            " layer, a function of the update's number"
        )
    if steps < 1:
        raise ValueError(f"accumulation_steps is {steps}; a window has at least 1 micro-step")
    return int(steps)


def check_inner(optimizer: Any, accumulating: type) -> None:
    """Raise TypeError or ValueError for an optimizer that cannot be wrapped."""
    innermost = optimizer
    while isinstance(innermost, tf_keras.mixed_precision.LossScaleOptimizer) and not isinstance(
        innermost, accumulating
    ):
        innermost = innermost.inner_optimizer
    if isinstance(innermost, accumulating):
        raise ValueError(
            "this optimizer accumulates already; wrap the optimizer inside it, with the product"
            " of both accumulation_steps"
        )
    if not isinstance(innermost, tf_keras.optimizers.Optimizer):
        raise TypeError(
            f"{type(innermost).__module__}.{type(innermost).__name__} is not a tf_keras optimizer;"
            " use one of tf_keras.optimizers (`tf.keras` is Keras 3)"
        )


def check_is_model(model: Any) -> None:
    """Raise TypeError for anything but a tf_keras model."""
    if not isinstance(model, tf_keras.Model):
        raise TypeError(
            f"{type(model).__module__}.{type(model).__name__} is not a tf_keras model;"
            " build it with tf_keras (`tf.keras` is Keras 3)"
        )


def warn_of_batch_normalization(model: tf_keras.Model) -> None:
    """Warn if the model trains batch normalizations that normalize each micro-batch by itself."""
    layers = [layer for layer in model.submodules if isinstance(layer, BATCH_NORMALIZATIONS)]
    # AccumBatchNormalization has steps, and whoever uses it knows of this.
    plain = [layer for layer in layers if not hasattr(layer, "accumulation_steps")]
    names = [layer.name for layer in plain if layer.trainable]
    if names:
        warnings.warn(
            f"accumulation cannot be exact with BatchNormalization ({', '.join(names)}): each"
            " micro-batch is normalized by itself and moves the statistics. Call"
            " replace_batch_normalization(model, accumulation_steps) first, freeze these layers,"
            " or use group or layer normalization",
            stacklevel=3,
        )


def check_in_replica(strategy: tf.distribute.Strategy | None) -> None:
    """Raise ValueError if gradients come from outside the replicas of `strategy`."""
    if strategy is not None:
        raise ValueError(
            "gradients belong to a replica: call accumulate() and apply_gradients() in"
            f" replica context, in a function given to {type(strategy).__name__}.run"
        )


def check_scope(optimizer: tf_keras.optimizers.Optimizer) -> None:
    """Raise ValueError if the optimizer was made outside the strategy it is used under."""
    strategy = tf.distribute.get_strategy()
    if not strategy.extended.variable_created_in_scope(optimizer.iterations):
        raise ValueError(
            f"the optimizer was made outside the scope of {type(strategy).__name__};"
            " make it, and the one inside, in `with strategy.scope():`"
        )
