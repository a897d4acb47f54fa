"""What a window adds up, on each replica: gradients and how much they weigh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from bertaccum.accumulation.replicas import here, replicated, summed

Gradient: TypeAlias = Any  # tf.Tensor, tf.IndexedSlices or None


class GradientSums(tf.Module):
    """One accumulator a variable, the weight of what is in them, and which have anything.

    Each replica has its own; nothing here communicates. In a type narrower than float32
    what is kept is the running mean instead of the sum: it stays as small as a single
    gradient, so that the type's few digits are not spent on its growth. A checkpoint in
    mid-window keeps the replicas' total; of running means it takes all replicas to weigh the
    same.

    Args:
      variables: the model's variables.
      dtype: of the accumulators; by default the variable's, but at least float32.
      running_mean: keep the mean of what has been added so far, not its sum.
      prefix: of the variables' names, where an optimizer has several such objects.
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
        """Adds gradients of a loss summed over examples that weigh `weight` together.

        Args:
          gradients: one a variable; None adds nothing, IndexedSlices are scatter-added.
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
        """What this replica added, and how much it weighs.

        Args:
          alone: there is no other whose is to be added; means are then handed out as they
            are, of weight 1: sums of all of them at once would be another copy of the model.

        Returns:
          Variables, where nothing is to be computed: reading one may make a copy of it, which
          is for the taker to do one at a time.
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
        """Lets the sums to which rows were added be read as they are."""
        for position in self._scattered:
            tf.raw_ops.DisableCopyOnRead(resource=here(self.totals[position]).handle)

    def reset(self) -> tf.Operation:
        """Back to zero, by assignment: a NaN must not survive in a product with zero."""
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


def compute_dtype(variable: Any) -> tf.DType:
    """The variable's own type (not the one it is cast to), but at least float32."""
    dtype = getattr(variable, "true_dtype", variable.dtype)
    return dtype if dtype.size > 4 else tf.float32


def after(gradients: Sequence[Gradient]) -> Any:
    """A context of what may only happen if the gradients could be computed.

    In a graph, counting does not wait for the data: a step that fails because an iterator
    of unknown length has come to its end would be counted. The last gradient stands for
    all: backpropagation comes to it first, so that nothing is kept waiting.
    """
    values = [values_of(g) for g in gradients if g is not None]
    return tf.control_dependencies(values[-1:])


def times(gradient: Gradient, factor: tf.Tensor) -> Gradient:
    """The gradient times a scalar; with a factor of 0, zero, whatever the gradient is."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = times(gradient.values, factor)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    gradient = tf.cast(gradient, compute_dtype(gradient))
    return tf.math.multiply_no_nan(gradient, tf.cast(factor, gradient.dtype))


def values_of(gradient: Gradient) -> tf.Tensor:
    """The numbers in a gradient, be it dense or IndexedSlices."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _add(total: tf.Variable, gradient: Gradient) -> None:
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.cast(gradient.values, total.dtype)
        here(total).scatter_add(tf.IndexedSlices(values, gradient.indices))
    elif gradient is not None:
        total.assign_add(tf.cast(gradient, total.dtype))


def _add_to_mean(
    mean: tf.Variable, gradient: Gradient, weight: tf.Tensor, total_weight: tf.Tensor
) -> None:
    """mean <- mean (1 - weight / total) + gradient / total, computed in at least float32."""
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
