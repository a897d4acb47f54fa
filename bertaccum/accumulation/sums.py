"""The state of accumulation on each replica: summed gradients and their weights.

The sums are on the device or, in `HostSums`, in host memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from bertaccum.accumulation.compiled import maybe_compiled
from bertaccum.accumulation.gradient_tensors import Gradient, compute_dtype, values_of
from bertaccum.accumulation.offload.backward_gates import close_gates
from bertaccum.accumulation.offload.host_memory import HostArray, HostTensor, fill_with_zeros
from bertaccum.accumulation.replicas import alike, here, summed


class GradientSums(tf.Module):
    """An accumulator for each variable, and the total weight of the gradients added to them.

    Each replica has its own accumulators. Accumulators narrower than float32 store the running
    mean, which loses less precision because it does not grow. A checkpoint saved in the middle of
    a window contains the sums over replicas; for running means, this is exact only if all replicas
    have the same weight.

    Args:
      variables: The model's variables.
      dtype: Dtype of the accumulators; None for that of each variable, but at least float32.
    """

    def __init__(self, variables: Sequence[tf.Variable], dtype: tf.DType | None) -> None:
        super().__init__(name="gradient_sums")
        self._running_mean = dtype is not None and dtype.size < 4
        # HDF5 files need unique names, so the accumulators are numbered.
        self.totals = [
            summed(tf.zeros(v.shape, dtype or compute_dtype(v)), f"sum_{number}")
            for number, v in enumerate(variables)
        ]
        self.weight = summed(tf.zeros([], tf.float64), "weight")
        self.touched = alike([False] * len(variables), tf.bool, "touched")
        # Positions of the accumulators that received IndexedSlices.
        self._scattered: set[int] = set()
        # With a constant zero, constant folding would keep a tensor of zeros per accumulator.
        self._zero = summed(tf.zeros([]), "zero")

    def add(self, gradients: Sequence[Gradient], weight: tf.Tensor) -> None:
        """Add a gradient or None for each variable, and their weight, a float64 scalar."""
        self.weight.assign_add(weight)
        self.touched.assign(self.touched | [g is not None for g in gradients])
        total_weight = tf.identity(here(self.weight))
        for position, (total, gradient) in enumerate(zip(self.totals, gradients, strict=True)):
            if self._running_mean:
                _add_to_mean(total, gradient, weight, total_weight)
            else:
                _add(total, gradient)
                if isinstance(gradient, tf.IndexedSlices):
                    self._scattered.add(position)

    def read(self, alone: bool) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return the summed gradients of this replica and their weight, a float64 scalar.

        Sums are variables: read one at a time, because reading may copy them. If this replica is
        `alone`, running means are returned with weight 1, because converting them to sums would
        take as much memory as the model.
        """
        weight = tf.identity(here(self.weight))
        totals = [here(t) for t in self.totals]
        if not self._running_mean:
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
        """Assign zero to all accumulators; multiplication by zero would keep a NaN."""
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


class HostSums(tf.Module):
    """A `GradientSums` whose accumulators are in host memory, in at least float32.

    Checkpoints do not contain the sums, so save them only between windows. TensorFlow does not know
    the arrays, and orders operations by the variables that they use. Each method therefore reads
    `weight` before it uses the arrays, and assigns it afterwards.
    """

    def __init__(self, variables: Sequence[tf.Variable], folder: str | None) -> None:
        super().__init__(name="gradient_sums")
        self.totals = [HostTensor(v, f"sum_{number}", folder) for number, v in enumerate(variables)]
        self.weight = summed(tf.zeros([], tf.float64), "weight")
        self.touched = alike([False] * len(variables), tf.bool, "touched")

    def add(self, gradients: Sequence[Gradient], weight: tf.Tensor) -> None:
        """Add the gradients of a loss summed over examples; see `GradientSums.add`."""
        self.touched.assign(self.touched | [g is not None for g in gradients])
        with tf.control_dependencies([tf.identity(here(self.weight))]):
            pairs = list(zip(self._arrays(), gradients, strict=True))
            # Backpropagation computes the last gradient first.
            added = [(g, array.add(g)) for array, g in pairs[::-1] if g is not None]
        if not tf.executing_eagerly():
            close_gates([(values_of(gradient), operation) for gradient, operation in added])
        with tf.control_dependencies([operation for _, operation in added]):
            self.weight.assign_add(weight)

    def read(self, alone: bool) -> tuple[list[HostArray], tf.Tensor]:
        """Return the summed gradients of this replica and their weight, a float64 scalar.

        Use the arrays only after the weight.
        """
        return self._arrays(), tf.identity(here(self.weight))

    def reset(self, compile: bool = False) -> tf.Operation:
        """Set all accumulators to zero."""
        with tf.control_dependencies([tf.identity(here(self.weight))]):
            filled = fill_with_zeros(self._arrays())
        with tf.control_dependencies([filled]):
            self.weight.assign(tf.zeros([], tf.float64))
        self.touched.assign(tf.zeros_like(self.touched))
        return tf.no_op()

    def _arrays(self) -> list[HostArray]:
        device = here(self.weight).device
        return [total.on(device) for total in self.totals]
