"""Loss scaling: inside the accumulating optimizer, and by a `LossScaleOptimizer` around it.

float16 gradients are computed of a loss times a scale, which an overflow lowers. Inside, gradients
stay scaled until the window is complete. A `LossScaleOptimizer` around sees each micro-step:
`report_overflow` is for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.accumulation.gradient_tensors import Gradient, values_of
from bertaccum.accumulation.replicas import first, replicas_in_sync

LossScaleOptimizer: Any = tf_keras.mixed_precision.LossScaleOptimizer


def is_scaled(optimizer: tf_keras.optimizers.Optimizer) -> bool:
    """Return whether an inner optimizer has a loss scale."""
    return isinstance(optimizer, LossScaleOptimizer)


def scaled_loss(optimizer: tf_keras.optimizers.Optimizer, loss: tf.Tensor) -> tf.Tensor:
    """Return the loss times the inner optimizer's scale, which is constant within a window."""
    return optimizer.get_scaled_loss(loss) if is_scaled(optimizer) else loss


def unscaling(optimizer: tf_keras.optimizers.Optimizer) -> Any:
    """Return what gradients of the scaled loss are to be multiplied by."""
    if not is_scaled(optimizer):
        return 1.0
    # Computed by this method, or tf_keras would warn that it was never called.
    [factor] = optimizer.get_unscaled_gradients([tf.ones([])])
    return factor


def update_if(
    optimizer: tf_keras.optimizers.Optimizer, finite: tf.Tensor, update: Callable[[], tf.Tensor]
) -> tf.Tensor:
    """Call `update` if the window's gradient is finite; return whether it is.

    Args:
      optimizer: the inner one. If it has a loss scale that adapts, `update` is called in any
        case: the scale has to see an overflow, and skips the update by itself.
      finite: bool scalar.
      update: calls the inner optimizer and returns True.
    """
    due = finite | optimizer.dynamic if is_scaled(optimizer) else finite
    done = tf.cond(due, update, lambda: tf.constant(False))
    with tf.control_dependencies([done]):
        return tf.identity(finite)


def report_overflow(
    pairs: list[Any], iterations: tf.Variable, overflowed: tf.Variable, skipped: tf.Variable
) -> list[Any]:
    """Let a `LossScaleOptimizer` around learn of an overflow; count the window as skipped.

    It looks at the first replica's gradients only, and counts every overflow as an update; but
    only a whole window is one.

    Args:
      pairs: (gradient, variable) of one micro-step on this replica.
      iterations: the count of updates.
      overflowed: whether there was an overflow in the window; updated.
      skipped: the count of windows without update; updated.

    Returns:
      The pairs; with a NaN on all replicas if there was an overflow on any.
    """
    now = _overflow_anywhere([g for g, _ in pairs if g is not None])
    before = tf.identity(overflowed)
    _take_back_update(iterations, now & before)
    skipped.assign_add(tf.cast(now & ~before, tf.int64))
    overflowed.assign(now | before)
    return _poisoned(pairs, now)


def _overflow_anywhere(gradients: list[Gradient]) -> tf.Tensor:
    """Return whether a gradient is not finite on any replica, the same on all of them."""
    flags = [tf.reduce_all(tf.math.is_finite(values_of(g))) for g in gradients]
    bad = 1.0 - tf.cast(tf.reduce_all(flags), tf.float32)
    if replicas_in_sync() > 1:
        context = tf.distribute.get_replica_context()
        bad = context.all_reduce(tf.distribute.ReduceOp.SUM, bad)
    return bad > 0


def _take_back_update(iterations: tf.Variable, when: tf.Tensor) -> None:
    """Count one update less if `when`, the same on all replicas, holds."""
    context = tf.distribute.get_replica_context()
    less = tf.cast(when, tf.int64)
    context.merge_call(lambda _, less: iterations.assign_sub(first(less)), args=(less,))


def _poisoned(pairs: list[Any], overflowed: tf.Tensor) -> list[Any]:
    """Return the same gradients, the last of them NaN if `overflowed`."""
    last = [g for g, _ in pairs if g is not None][-1]
    poison = tf.where(overflowed, float("nan"), 0.0)
    return [(_plus(g, poison) if g is last else g, v) for g, v in pairs]


def _plus(gradient: Gradient, number: tf.Tensor) -> Gradient:
    number = tf.cast(number, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values + number, gradient.indices, gradient.dense_shape)
    return gradient + number
