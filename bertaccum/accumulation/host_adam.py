"""Adam's step for moments in host memory, applied to a variable on any device."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.accumulation.host_memory import (
    Array,
    HostArray,
    Piece,
    in_parts,
    on_host,
    pieces,
)


@dataclass(frozen=True)
class HostUpdate:
    """The update of one variable.

    The step is computed on the host and reaches the device in pieces of rows. The device therefore
    needs temporary memory for only one piece.

    Args:
      variable: The variable to update.
      gradient: Its summed gradient: a tensor or variable of any float dtype, or a `HostArray`.
      first, second: Its moments.
    """

    variable: tf.Variable
    gradient: Any
    first: HostArray
    second: HostArray

    def run(
        self,
        factor: tf.Tensor | None,
        rate: tf.Tensor,
        decay: tf.Tensor | None,
        betas: tuple[float, float],
        epsilon: float,
    ) -> tf.Operation:
        """Decay and update the variable, and return the last operation.

        Args:
          factor: Factor that turns the sum into the mean gradient; None stands for 1.
          rate: Learning rate with the bias correction, a scalar.
          decay: Fraction by which the variable decays, a scalar, or None.
          betas: Decay rates of the moments.
          epsilon: Number added to the root of the second moment.
        """
        number = self.first.values.dtype.type
        # As in TensorFlow's kernel, the differences are rounded to the dtype.
        constants = (*(1 - number(beta) for beta in betas), number(epsilon))
        scalars = [rate, tf.ones_like(rate) if factor is None else factor]
        done: list[tf.Operation] = []
        parts = pieces(self.variable.shape, self.variable.dtype)
        for piece in parts:
            with tf.control_dependencies(done):
                step = self._step(piece, scalars, constants)
            with tf.control_dependencies([step]), tf.device(self.variable.device):
                if piece is ...:
                    done = [_subtract(self.variable, step, decay)]
                else:
                    rows = tf.range(piece.start, piece.stop)
                    done = [_subtract_rows(self.variable, rows, step, decay)]
        if len(parts) > 1:
            # TensorFlow copies a variable whose rows were changed whenever it is read.
            with tf.control_dependencies(done):
                return tf.raw_ops.DisableCopyOnRead(resource=self.variable.handle)
        return done[0]

    def _step(self, rows: Piece, scalars: list[tf.Tensor], constants: Sequence[Any]) -> tf.Tensor:
        """Update a piece of the moments, and return the step of this piece of the variable."""
        own = self.first.values[rows], self.second.values[rows]
        dtype = self.variable.dtype
        if isinstance(self.gradient, HostArray):
            move = functools.partial(_adam, *own, constants, self.gradient.values[rows])
            step = on_host(move, scalars, dtype)
        else:
            gradient = tf.cast(tf.convert_to_tensor(self.gradient)[rows], dtype)
            step = on_host(functools.partial(_adam, *own, constants), [gradient, *scalars], dtype)
        step.set_shape(own[0].shape)
        return step


def _subtract(variable: tf.Variable, step: tf.Tensor, decay: tf.Tensor | None) -> tf.Operation:
    decayed = []
    if decay is not None:
        decayed = [variable.assign_sub(variable.read_value() * decay, read_value=False)]
    with tf.control_dependencies(decayed):
        return variable.assign_sub(step, read_value=False)


def _subtract_rows(
    variable: tf.Variable, rows: tf.Tensor, step: tf.Tensor, decay: tf.Tensor | None
) -> tf.Operation:
    update = functools.partial(
        tf.raw_ops.ResourceScatterSub, resource=variable.handle, indices=rows
    )
    decayed = []
    if decay is not None:
        now = tf.raw_ops.ResourceGather(
            resource=variable.handle, indices=rows, dtype=variable.dtype
        )
        decayed = [update(updates=now * decay)]
    with tf.control_dependencies(decayed):
        return update(updates=step)


def _adam(
    first: Array, second: Array, constants: Any, gradient: Array, rate: Any, factor: Any
) -> Array:
    """Update Adam's moments, and return the step, with the operations of TensorFlow's kernel.

    Args:
      first, second: Moments, which change.
      constants: 1 - beta_1, 1 - beta_2 and epsilon.
      gradient: Summed gradient.
      rate: Learning rate with the bias correction.
      factor: Factor that turns the sum into the mean gradient.
    """
    gain1, gain2, epsilon = constants
    result = _to_copy(gradient.shape, first.dtype)

    def part(total: Array, first: Array, second: Array, step: Array) -> None:
        mean = total * factor
        np.subtract(mean, first, out=step)
        step *= gain1
        first += step
        np.multiply(mean, mean, out=mean)
        mean -= second
        mean *= gain2
        second += mean
        np.sqrt(second, out=mean)
        mean += epsilon
        np.multiply(first, rate, out=step)
        step /= mean

    in_parts(part, gradient, first, second, result)
    return result


def _to_copy(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an uninitialized array that TensorFlow always copies to the memory of the device.

    On a CPU, TensorFlow uses aligned arrays in place. Whether an array is aligned would be a matter
    of chance, and a CPU that simulates a small GPU should count the memory that a GPU needs.
    """
    size, alignment = math.prod(shape) * dtype.itemsize, 64
    memory = np.empty(size + 2 * alignment, np.uint8)
    start = alignment // 2 - memory.ctypes.data % alignment + alignment
    return memory[start : start + size].view(dtype).reshape(shape)
