"""Loss scaling by a `LossScaleOptimizer` inside or around the accumulating optimizer.

In float16 the loss is multiplied by a scale before its gradients are computed; an overflow lowers
the scale. With an inner `LossScaleOptimizer`, gradients stay scaled until the window is complete.
An outer one handles each micro-step, and `report_overflow` reports overflows to it.
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
    """Return whether an optimizer is a `LossScaleOptimizer`."""
    return isinstance(optimizer, LossScaleOptimizer)


def innermost(optimizer: tf_keras.optimizers.Optimizer) -> tf_keras.optimizers.Optimizer:
    """Return the optimizer that updates variables, without a `LossScaleOptimizer` around it."""
    return optimizer.inner_optimizer if is_scaled(optimizer) else optimizer


def scale(optimizer: tf_keras.optimizers.Optimizer) -> Any:
    """Return the factor of the scaled loss, a scalar; None without a loss scale."""
    return optimizer.loss_scale if is_scaled(optimizer) else None


def unscaling(optimizer: tf_keras.optimizers.Optimizer) -> Any:
    """Return the factor that unscales the gradients of the scaled loss, a scalar."""
    if not is_scaled(optimizer):
        return 1.0
    # tf_keras warns if this method is never called.
    [factor] = optimizer.get_unscaled_gradients([tf.ones([])])
    return factor


def update_if(
    optimizer: tf_keras.optimizers.Optimizer, finite: tf.Tensor, update: Callable[[], tf.Tensor]
) -> tf.Tensor:
    """Call `update` if the window's gradient is finite, and return `finite` once that is done.

    With a dynamic loss scale, `update` is always called: the loss scale must detect an overflow,
    and skips the update itself.
    """
    due = finite | optimizer.dynamic if is_scaled(optimizer) else finite
    done = tf.cond(due, update, lambda: tf.constant(False))
    with tf.control_dependencies([done]):
        return tf.identity(finite)


def report_overflow(
    pairs: list[Any], iterations: tf.Variable, overflowed: tf.Variable, skipped: tf.Variable
) -> list[Any]:
    """Report an overflow to an outer `LossScaleOptimizer`, and count the window as skipped.

    A `LossScaleOptimizer` checks only the first replica's gradients, and adds 1 to `iterations`
    for every micro-step that overflows. This function takes back all but the first in a window.

    Args:
      pairs: (gradient, variable) pairs of one micro-step on this replica.
      iterations: Number of updates, which is corrected.
      overflowed: Whether the window has overflowed, which is updated.
      skipped: Number of skipped windows, which is updated.

    Returns:
      The pairs. If any replica overflowed, one gradient is NaN on all replicas, so that the outer
      optimizer skips the update.
    """
    now = _overflow_anywhere([g for g, _ in pairs if g is not None])
    before = tf.identity(overflowed)
    context, less = tf.distribute.get_replica_context(), tf.cast(now & before, tf.int64)
    context.merge_call(lambda _, less: iterations.assign_sub(first(less)), args=(less,))
    skipped.assign_add(tf.cast(now & ~before, tf.int64))
    overflowed.assign(now | before)
    last = [g for g, _ in pairs if g is not None][-1]
    poison = tf.where(now, float("nan"), 0.0)
    return [(_plus(g, poison) if g is last else g, v) for g, v in pairs]


def _overflow_anywhere(gradients: list[Gradient]) -> tf.Tensor:
    flags = [tf.reduce_all(tf.math.is_finite(values_of(g))) for g in gradients]
    bad = 1.0 - tf.cast(tf.reduce_all(flags), tf.float32)
    if replicas_in_sync() > 1:
        context = tf.distribute.get_replica_context()
        bad = context.all_reduce(tf.distribute.ReduceOp.SUM, bad)
    return bad > 0


def _plus(gradient: Gradient, number: tf.Tensor) -> Gradient:
    number = tf.cast(number, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values + number, gradient.indices, gradient.dense_shape)
    return gradient + number
