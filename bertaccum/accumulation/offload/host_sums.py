"""Gradient sums in host memory, which take no memory of the device."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from bertaccum.accumulation.gradient_tensors import Gradient, values_of
from bertaccum.accumulation.offload.backward_gates import close_gates
from bertaccum.accumulation.offload.host_memory import HostArray, HostTensor, fill_with_zeros
from bertaccum.accumulation.replicas import alike, here, summed


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
