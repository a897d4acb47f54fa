"""The state of accumulation on each replica: summed gradients and their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.accumulation.compiled import maybe_compiled
from bertaccum.accumulation.gradient_tensors import Gradient, compute_dtype, values_of
from bertaccum.accumulation.offload.host_memory import free
from bertaccum.accumulation.replicas import alike, here, summed


class GradientSums(tf.Module):
    """An accumulator for each variable, and the total weight of the gradients added to them.

    Each replica has its own accumulators; no method communicates between replicas. Accumulators
    narrower than float32 store the running mean. Unlike a sum, it does not grow during the
    window, so the narrow dtype loses less precision. A checkpoint saved in the middle of a window
    contains the sums over replicas; for running means, this is exact only if all replicas have
    the same weight.

    Args:
      variables: The model's variables.
      dtype: Dtype of the accumulators. None stands for the dtype of each variable, but at least
        float32.
      running_mean: Whether to store the mean of the gradients added so far instead of the sum.
      prefix: Prefix of the accumulators' names, for optimizers with several `GradientSums`.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        dtype: tf.DType | None,
        running_mean: bool,
        prefix: str = "",
    ) -> None:
        super().__init__(name="gradient_sums")
        self.running_mean = running_mean or (dtype is not None and dtype.size < 4)
        # HDF5 files need unique names, so the accumulators are numbered.
        self.totals = [
            summed(tf.zeros(v.shape, dtype or compute_dtype(v)), f"{prefix}sum_{number}")
            for number, v in enumerate(variables)
        ]
        self.weight = summed(tf.zeros([], tf.float64), f"{prefix}weight")
        self.touched = alike([False] * len(variables), tf.bool, f"{prefix}touched")
        # Positions of the accumulators that received IndexedSlices.
        self._scattered: set[int] = set()
        # With a constant zero, constant folding would keep a tensor of zeros per accumulator.
        self._zero = summed(tf.zeros([]), f"{prefix}zero")

    def add(self, gradients: Sequence[Gradient], weight: tf.Tensor) -> None:
        """Add the gradients of a loss summed over examples.

        Args:
          gradients: One gradient for each variable: dense, `IndexedSlices`, or None to add
            nothing.
          weight: Weight of the gradients, a float64 scalar.
        """
        self.weight.assign_add(weight)
        self.touched.assign(self.touched | [g is not None for g in gradients])
        total_weight = tf.identity(here(self.weight))
        for position, (total, gradient) in enumerate(zip(self.totals, gradients, strict=True)):
            if self.running_mean:
                _add_to_mean(total, gradient, weight, total_weight)
            else:
                _add(total, gradient)
                if isinstance(gradient, tf.IndexedSlices):
                    self._scattered.add(position)

    def read(self, alone: bool) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return the summed gradients of this replica and their weight.

        Args:
          alone: Whether no other replica's sums will be added. Running means are then returned
            unchanged, with weight 1, because converting them to sums would take as much memory
            as the model.

        Returns:
          One tensor or variable for each of the model's variables, and their weight, a float64
          scalar. Sums are returned as variables, which the caller should read one at a time,
          because reading may copy them.
        """
        weight = tf.identity(here(self.weight))
        totals = [here(t) for t in self.totals]
        if not self.running_mean:
            return totals, weight
        if alone:
            return totals, weight / weight  # A total weight of 0 has no mean, hence NaN.
        return [
            tf.cast(t, compute_dtype(t)) * tf.cast(weight, compute_dtype(t)) for t in totals
        ], weight

    def avoid_copies(self) -> None:
        """Avoid copies when the accumulators that received IndexedSlices are read."""
        for position in self._scattered:
            tf.raw_ops.DisableCopyOnRead(resource=here(self.totals[position]).handle)

    def reset(self, compile: bool = False) -> tf.Operation:
        """Assign zero to all accumulators; multiplication by zero would keep a NaN.

        Args:
          compile: Whether XLA compiles it.
        """
        maybe_compiled(self._reset_compiled if compile else self._reset_totals, compile)
        self.weight.assign(tf.zeros([], tf.float64))
        self.touched.assign(tf.zeros_like(self.touched))
        return tf.no_op()

    def _reset_compiled(self) -> None:
        zero = self._zero.read_value()
        for total in map(here, self.totals):
            # XLA writes into the memory of variables that it reads.
            own = tf.cast(zero, total.dtype)
            total.assign(tf.where(tf.equal(own, 0), own, total.read_value()))

    def _reset_totals(self) -> None:
        done: list[tf.Operation] = []
        zero = self._zero.read_value()
        zeros = {dtype: tf.cast(zero, dtype) for dtype in {total.dtype for total in self.totals}}
        for position, total in enumerate(map(here, self.totals)):
            # New zeros need memory before the old sum is freed, so reset one at a time.
            with tf.control_dependencies(done):
                zeroed = _zeroed(total, zeros[total.dtype], position in self._scattered)
            done = [] if zeroed is None else [zeroed]


class WindowState:
    """The current window of a replica: its accumulators and its number of micro-steps.

    Attributes:
      step: Number of micro-steps so far, an int64 scalar.
      window_steps: Number of micro-steps in this window, fixed when it starts, an int64 scalar.
      overflowed: Whether an outer `LossScaleOptimizer` found an overflow in this window, a bool
        scalar.
      sums: Summed gradients of the loss; None until they are needed.
      parts: Summed gradients of the parts of the loss that have their own divisors.

    Args:
      make_sums: A function that creates a `GradientSums` from a prefix.
      track: A function that adds an object to the optimizer's checkpoints under a name.
    """

    def __init__(
        self, make_sums: Callable[[str], GradientSums], track: Callable[[str, Any], Any]
    ) -> None:
        self._make_sums, self._track = make_sums, track
        self.step = track("_step", alike(0, tf.int64, "step"))
        self.window_steps = track("_window_steps", alike(0, tf.int64, "window_steps"))
        self.overflowed = track("_overflowed", alike(False, tf.bool, "overflowed"))
        self.sums: GradientSums | None = None
        self.parts: list[GradientSums] = track("_parts", _tf_compat.tracked_list())

    def renew_sums(self) -> None:
        """Discard the window, and create new sums where there were some."""
        for sums in self.all_sums:
            for total in sums.totals:
                free(total)
        had_sums, parts = self.sums is not None, len(self.parts)
        self.sums, self.parts = None, self._track("_parts", _tf_compat.tracked_list())
        if had_sums:
            self.main()
        for number in range(parts):
            self.part(number)
        self.reset()

    def main(self) -> GradientSums:
        """Return the summed gradients of the loss; create them on the first call."""
        if self.sums is None:
            with tf.init_scope():
                self.sums = self._track("_sums", self._make_sums(""))
        return self.sums

    def part(self, number: int) -> GradientSums:
        """Return the summed gradients of a part of the loss; create them on the first call."""
        while len(self.parts) <= number:
            with tf.init_scope():
                self.parts.append(self._make_sums(f"part_{len(self.parts)}_"))
        return self.parts[number]

    @property
    def all_sums(self) -> list[GradientSums]:
        """All `GradientSums` created so far: those of the loss, then those of its parts."""
        return [] if self.sums is None else [self.sums, *self.parts]

    def begin(self, steps: tf.Tensor, accumulate: bool) -> tf.Operation:
        """Start a window.

        Args:
          steps: Number of micro-steps in the window, an int64 scalar.
          accumulate: Whether the window needs accumulators.
        """
        self.window_steps.assign(steps)
        self.step.assign(0)
        if accumulate:
            self.main()
            # If the previous window overflowed, it ended without `reset`.
            tf.cond(self.overflowed, self._reset_sums, tf.no_op)
        self.overflowed.assign(False)
        return tf.no_op()

    def reset(self, compile: bool = False) -> None:
        """Set all accumulators and the number of micro-steps to zero; XLA may compile it."""
        self._reset_sums(compile)
        self.step.assign(0)

    def _reset_sums(self, compile: bool = False) -> tf.Operation:
        for sums in self.all_sums:
            sums.reset(compile)
        return tf.no_op()


def _zeroed(total: tf.Variable, zero: tf.Tensor, scattered: bool) -> tf.Operation | None:
    if not scattered:
        return total.assign(tf.broadcast_to(zero, total.shape), read_value=False)
    # An accumulator that received IndexedSlices can be set to zero in place.
    rows = tf.range(total.shape[0])
    return tf.raw_ops.ResourceScatterUpdate(resource=total.handle, indices=rows, updates=zero)


def _add(total: tf.Variable, gradient: Gradient) -> None:
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.cast(gradient.values, total.dtype)
        here(total).scatter_add(tf.IndexedSlices(values, gradient.indices))
    elif gradient is not None:
        total.assign_add(tf.cast(gradient, total.dtype))


def _add_to_mean(
    mean: tf.Variable, gradient: Gradient, weight: tf.Tensor, total_weight: tf.Tensor
) -> None:
    """Compute mean <- mean (1 - weight / total) + gradient / total, in at least float32."""
    # The mean takes memory in float32, so cast it only when the gradient is available.
    with tf.control_dependencies([] if gradient is None else [values_of(gradient)]):
        dtype = compute_dtype(mean)
        # The total weight is 0 if the first micro-step has no examples.
        kept = 1 - tf.math.divide_no_nan(weight, total_weight)
        old = tf.cast(here(mean), dtype) * tf.cast(kept, dtype)
        share = tf.cast(tf.math.reciprocal_no_nan(total_weight), dtype)
        if isinstance(gradient, tf.IndexedSlices):
            added = tf.cast(gradient.values, dtype) * share
            old = tf.tensor_scatter_nd_add(old, gradient.indices[:, tf.newaxis], added)
        elif gradient is not None:
            old += tf.cast(gradient, dtype) * share
        mean.assign(tf.cast(old, mean.dtype))
