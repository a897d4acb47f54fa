"""Moments of a window of batches, pooled batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.accumulation.replicas import replicated


class PooledMoments(_tf_compat.AutoTrackable):
    """Number, mean and variance of all values in a window, on each replica.

    Nothing here communicates. It is no `tf.Module`, whose variables Keras would count among the
    layer's weights.

    Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for
    computing sample variances".

    Args:
      shape: of a channel's moments, as the layer has them.
      dtype: of mean and variance.
    """

    def __init__(self, shape: Sequence[int], dtype: tf.DType) -> None:
        first, mean = tf.VariableAggregation.ONLY_FIRST_REPLICA, tf.VariableAggregation.MEAN
        self.calls = replicated(tf.zeros([], tf.int64), first)
        self.length = replicated(tf.zeros([], tf.int64), first)
        # Of large images, a window has more values than float32 can count.
        self.count = replicated(tf.zeros(shape, tf.float64), mean)
        self.mean = replicated(tf.zeros(shape, dtype), mean)
        self.variance = replicated(tf.zeros(shape, dtype), mean)

    @property
    def moments(self) -> tuple[tf.Variable, tf.Variable, tf.Variable]:
        """Count, mean and variance."""
        return self.count, self.mean, self.variance

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """All variables by name, as the .keras format saves them."""
        return {n: getattr(self, n) for n in ("calls", "length", "count", "mean", "variance")}

    def add(self, count: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> None:
        """Pool the moments with those of further values.

        The formula uses the share that the new values have in all: it never subtracts large
        numbers that are nearly equal, as sums of squares would.

        Args:
          count: how many values each channel has, float64.
          mean, variance: of these values, for each channel.
        """
        total = self.count + count
        share = tf.cast(tf.math.divide_no_nan(count, total), mean.dtype)
        shift = mean - self.mean
        growth = variance - self.variance + (1 - share) * shift**2
        # Without values, moments are NaN and the share is zero.
        self.variance.assign_add(tf.math.multiply_no_nan(growth, share))
        self.mean.assign_add(tf.math.multiply_no_nan(shift, share))
        self.count.assign(total)

    def count_call(self, steps: int | tf.Variable) -> tf.Tensor:
        """Count one call; return whether it is the last of the window."""
        first = tf.equal(self.calls, 0)
        self.length.assign(tf.where(first, tf.cast(steps, tf.int64), self.length))
        self.calls.assign_add(1)
        return tf.identity(self.calls) >= tf.identity(self.length)

    def reset(self) -> tf.Operation:
        """Forget all values."""
        for variable in (self.calls, *self.moments):
            variable.assign(tf.zeros(variable.shape, variable.dtype))
        return tf.no_op()


def count_values(
    inputs: tf.Tensor,
    axes: Sequence[int],
    keep_dims: bool = False,
    mask: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return how many values a channel's moments are of, float64, a scalar without a mask."""
    shape = tf.shape(inputs, tf.int64)
    if mask is None:
        return tf.cast(tf.reduce_prod(tf.gather(shape, axes)), tf.float64)
    counted = tf.broadcast_to(tf.cast(mask, tf.float32)[..., tf.newaxis], shape)
    return tf.cast(tf.reduce_sum(counted, axes, keepdims=keep_dims), tf.float64)


def bessel_correction(count: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return n / (n - 1), which makes a population's variance unbiased; 1 for n up to 1."""
    return tf.cast(tf.where(count > 1, count / tf.maximum(count - 1, 1), 1), dtype)
