"""The state of accumulation: sums of gradients and of what they weigh, on each replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.accumulation.gradient_tensors import Gradient, compute_dtype, values_of
from bertaccum.accumulation.replicas import alike, here, replicated, summed


class GradientSums(tf.Module):
    """An accumulator for each variable, their total weight, and which have received anything.

    Each replica has its own; nothing here communicates. A type narrower than float32 holds the
    running mean instead of the sum: it stays as small as a single gradient, so that the type's
    few digits are not spent on its growth. A checkpoint in mid-window holds the sum over
    replicas; with running means it assumes that all replicas weigh the same.

    Args:
      variables: the model's variables.
      dtype: of the accumulators; None is the variable's own, but at least float32.
      running_mean: keep the mean of what has been added so far instead of the sum.
      prefix: of the variables' names, for an optimizer with several such objects.
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
        # Numbered: in an HDF5 file each variable needs a name of its own.
        self.totals = [
            summed(tf.zeros(v.shape, dtype or compute_dtype(v)), f"{prefix}sum_{number}")
            for number, v in enumerate(variables)
        ]
        self.weight = summed(tf.zeros([], tf.float64), f"{prefix}weight")
        self.touched = replicated(
            tf.zeros([len(variables)], tf.bool),
            tf.VariableAggregation.ONLY_FIRST_REPLICA,
            f"{prefix}touched",
        )
        # Positions of those to which rows have been added.
        self._scattered: set[int] = set()
        # A constant zero would be folded into a second copy of every accumulator.
        self._zero = summed(tf.zeros([]), f"{prefix}zero")

    def add(self, gradients: Sequence[Gradient], weight: tf.Tensor) -> None:
        """Add gradients of a loss summed over examples that weigh `weight` together.

        Args:
          gradients: one for each variable; None adds nothing, `IndexedSlices` are scattered.
          weight: float64 scalar.
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
        """Return the sums of this replica and their weight.

        Args:
          alone: no other replica's sums are to be added. Running means are then returned as
            they are, with weight 1: their sums would be one more copy of the model.

        Returns:
          One tensor or variable for each of the model's variables, and a float64 scalar. Sums
          are returned as variables: reading one may copy it, so the caller reads one at a time.
        """
        weight = tf.identity(here(self.weight))
        totals = [here(t) for t in self.totals]
        if not self.running_mean:
            return totals, weight
        if alone:
            return totals, weight / weight  # Nothing weighs nothing, and has no mean.
        return [
            tf.cast(t, compute_dtype(t)) * tf.cast(weight, compute_dtype(t)) for t in totals
        ], weight

    def avoid_copies(self) -> None:
        """Let the sums to which rows were added be read without a copy of them."""
        for position in self._scattered:
            tf.raw_ops.DisableCopyOnRead(resource=here(self.totals[position]).handle)

    def reset(self) -> tf.Operation:
        """Assign zero to everything: a NaN would survive a multiplication by zero."""
        done: list[tf.Operation] = []
        for position, total in enumerate(map(here, self.totals)):
            # One at a time: new zeros need memory before the old sum is gone.
            with tf.control_dependencies(done):
                zeroed = self._zeroed(total, position in self._scattered)
            done = [] if zeroed is None else [zeroed]
        self.weight.assign(tf.zeros([], tf.float64))
        self.touched.assign(tf.zeros_like(self.touched))
        return tf.no_op()

    def _zeroed(self, total: tf.Variable, scattered: bool) -> tf.Operation | None:
        zero = tf.cast(self._zero, total.dtype)
        if not scattered:
            return total.assign(tf.broadcast_to(zero, total.shape), read_value=False)
        # What rows were added to can be changed in place.
        rows = tf.range(total.shape[0])
        return tf.raw_ops.ResourceScatterUpdate(resource=total.handle, indices=rows, updates=zero)


class WindowState:
    """The present window of a replica: what it has added up, and how far it has come.

    Attributes:
      step: micro-steps so far, int64.
      window_steps: micro-steps in this window, int64, as decided when it began.
      overflowed: whether a loss scale around the optimizer has seen an overflow in it, bool.
      sums: of the loss; None until there is something to accumulate.
      parts: sums of those parts of the loss that have divisors of their own.

    Args:
      make_sums: makes a `GradientSums` with a prefix.
      track: makes an object a part of the optimizer's checkpoints, under the name given.
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

    def main(self) -> GradientSums:
        """Return the sums of the loss, which are made when they are first needed."""
        if self.sums is None:
            with tf.init_scope():
                self.sums = self._track("_sums", self._make_sums(""))
        return self.sums

    def part(self, number: int) -> GradientSums:
        """Return the sums of one part of the loss, which are made when they are first needed."""
        while len(self.parts) <= number:
            with tf.init_scope():
                self.parts.append(self._make_sums(f"part_{len(self.parts)}_"))
        return self.parts[number]

    @property
    def all_sums(self) -> list[GradientSums]:
        """All sums that exist."""
        return [] if self.sums is None else [self.sums, *self.parts]

    def begin(self, steps: tf.Tensor, accumulate: bool) -> tf.Operation:
        """Begin a window of so many micro-steps; `accumulate` is whether it needs sums."""
        self.window_steps.assign(steps)
        self.step.assign(0)
        if accumulate:
            self.main()
            # `reset` leaves zeros; a window that overflowed never came to it.
            tf.cond(self.overflowed, self._reset_sums, tf.no_op)
        self.overflowed.assign(False)
        return tf.no_op()

    def reset(self) -> None:
        """Forget what has been added up."""
        self._reset_sums()
        self.step.assign(0)

    def _reset_sums(self) -> tf.Operation:
        for sums in self.all_sums:
            sums.reset()
        return tf.no_op()


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
    # Only then: a mean in float32 that waits for its gradient takes memory meanwhile.
    with tf.control_dependencies([] if gradient is None else [values_of(gradient)]):
        dtype = compute_dtype(mean)
        # The first micro-step may be of no examples.
        kept = 1 - tf.math.divide_no_nan(weight, total_weight)
        old = tf.cast(here(mean), dtype) * tf.cast(kept, dtype)
        share = tf.cast(tf.math.reciprocal_no_nan(total_weight), dtype)
        if isinstance(gradient, tf.IndexedSlices):
            added = tf.cast(gradient.values, dtype) * share
            old = tf.tensor_scatter_nd_add(old, gradient.indices[:, tf.newaxis], added)
        elif gradient is not None:
            old += tf.cast(gradient, dtype) * share
        mean.assign(tf.cast(old, mean.dtype))
