"""Mean and variance of all values in a window, pooled one micro-batch at a time."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.accumulation.replicas import replicated


class PooledMoments(_tf_compat.AutoTrackable):
    """The count, mean and variance of all values in a window, on each replica.

    No method communicates between replicas. The class is not a `tf.Module`, because Keras would
    add a module's variables to the layer's weights.

    Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for
    computing sample variances".

    Args:
      shape: Shape of the layer's moving statistics.
      dtype: Dtype of mean and variance.
    """

    def __init__(self, shape: Sequence[int], dtype: tf.DType) -> None:
        first, mean = tf.VariableAggregation.ONLY_FIRST_REPLICA, tf.VariableAggregation.MEAN
        self.calls = replicated(tf.zeros([], tf.int64), first)
        self.length = replicated(tf.zeros([], tf.int64), first)
        # A window of large images may have more values than float32 can count.
        self.count = replicated(tf.zeros(shape, tf.float64), mean)
        self.mean = replicated(tf.zeros(shape, dtype), mean)
        self.variance = replicated(tf.zeros(shape, dtype), mean)

    @property
    def moments(self) -> tuple[tf.Variable, tf.Variable, tf.Variable]:
        """Count, mean and variance."""
        return self.count, self.mean, self.variance

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """All variables, keyed by the names under which a .keras file stores them."""
        return {n: getattr(self, n) for n in ("calls", "length", "count", "mean", "variance")}

    def add(self, count: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> None:
        """Add the moments of a micro-batch to those of the window.

        The formula weights the new moments by the micro-batch's share of all values. Unlike a
        formula with sums of squares, it never subtracts large, nearly equal numbers.

        Args:
          count: Number of values of each channel in the micro-batch, float64.
          mean: Mean of these values, for each channel.
          variance: Variance of these values, for each channel.
        """
        total = self.count + count
        share = tf.cast(tf.math.divide_no_nan(count, total), mean.dtype)
        shift = mean - self.mean
        growth = variance - self.variance + (1 - share) * shift**2
        # A micro-batch without values has NaN moments and a share of zero.
        self.variance.assign_add(tf.math.multiply_no_nan(growth, share))
        self.mean.assign_add(tf.math.multiply_no_nan(shift, share))
        self.count.assign(total)

    def count_call(self, steps: int | tf.Variable) -> tf.Tensor:
        """Count a call, and return whether it is the last of the window, a bool scalar."""
        first = tf.equal(self.calls, 0)
        self.length.assign(tf.where(first, tf.cast(steps, tf.int64), self.length))
        self.calls.assign_add(1)
        return tf.identity(self.calls) >= tf.identity(self.length)

    def reset(self) -> tf.Operation:
        """Discard all values."""
        for variable in (self.calls, *self.moments):
            variable.assign(tf.zeros(variable.shape, variable.dtype))
        return tf.no_op()


def count_values(
    inputs: tf.Tensor, axes: Sequence[int], keep_dims: bool = False, mask: tf.Tensor | None = None
) -> tf.Tensor:
    """Return the number of values of each channel, float64; a scalar if there is no mask."""
    shape = tf.shape(inputs, tf.int64)
    if mask is None:
        return tf.cast(tf.reduce_prod(tf.gather(shape, axes)), tf.float64)
    counted = tf.broadcast_to(tf.cast(mask, tf.float32)[..., tf.newaxis], shape)
    return tf.cast(tf.reduce_sum(counted, axes, keepdims=keep_dims), tf.float64)


def bessel_correction(count: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return n / (n - 1), the factor that makes a variance unbiased, or 1 if n is at most 1."""
    return tf.cast(tf.where(count > 1, count / tf.maximum(count - 1, 1), 1), dtype)
