"""Overflows that a `LossScaleOptimizer` around the accumulating optimizer has to learn of.

It looks at the first replica's gradients only, and counts every overflow as an update.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bertaccum.accumulation.replicas import first
from bertaccum.accumulation.sums import Gradient, values_of


def overflow_anywhere(gradients: list[Gradient]) -> tf.Tensor:
    """Whether a gradient is not finite on any replica; True on all replicas then."""
    flags = [tf.reduce_all(tf.math.is_finite(values_of(g))) for g in gradients]
    bad = 1.0 - tf.cast(tf.reduce_all(flags), tf.float32)
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync > 1:
        bad = context.all_reduce(tf.distribute.ReduceOp.SUM, bad)
    return bad > 0


def poisoned(pairs: list[Any], overflowed: tf.Tensor) -> list[Any]:
    """The same gradients, one of them NaN if `overflowed`."""
    last = [g for g, _ in pairs if g is not None][-1]
    poison = tf.where(overflowed, float("nan"), 0.0)
    return [(_plus(g, poison) if g is last else g, v) for g, v in pairs]


def take_back_update(iterations: tf.Variable, when: tf.Tensor) -> None:
    """Counts one update less, where `when`, the same on all replicas, holds."""
    context = tf.distribute.get_replica_context()
    less = tf.cast(when, tf.int64)
    context.merge_call(lambda _, less: iterations.assign_sub(first(less)), args=(less,))


def _plus(gradient: Gradient, number: tf.Tensor) -> Gradient:
    number = tf.cast(number, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values + number, gradient.indices, gradient.dense_shape)
    return gradient + number
