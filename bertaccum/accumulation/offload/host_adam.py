"""Adam's step for moments in host memory, applied to a variable on any device."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.accumulation.offload.host_memory import (
    Array,
    HostArray,
    Piece,
    in_parts,
    on_host,
    pieces,
)


def update_from_host(
    variable: tf.Variable,
    gradient: Any,
    moments: tuple[HostArray, HostArray],
    factor: tf.Tensor | None,
    rate: tf.Tensor,
    decay: tf.Tensor | None,
    betas: tuple[float, float],
    epsilon: float,
) -> tf.Operation:
    """Decay and update a variable, and return the last operation.

    The step is computed on the host and reaches the device in pieces of rows. The device therefore
    needs temporary memory for only one piece.

    Args:
      variable: The variable to update.
      gradient: Its summed gradient: a tensor or variable of any float dtype, or a `HostArray`.
      moments: Its first and second moments.
      factor: Factor that turns the sum into the mean gradient; None stands for 1.
      rate: Learning rate with the bias correction, a scalar.
      decay: Fraction by which the variable decays, a scalar, or None.
      betas: Decay rates of the moments.
      epsilon: Number added to the root of the second moment.
    """
    number = moments[0].values.dtype.type
    # As in TensorFlow's kernel, the differences are rounded to the dtype.
    constants = (*(1 - number(beta) for beta in betas), number(epsilon))
    scalars = [rate, tf.ones_like(rate) if factor is None else factor]

    def step_of(piece: Piece) -> tf.Tensor:
        """Update a piece of the moments, and return the step of this piece of the variable."""
        own = moments[0].values[piece], moments[1].values[piece]
        if isinstance(gradient, HostArray):
            move = functools.partial(_adam, *own, constants, gradient.values[piece])
            step = on_host(move, scalars, variable.dtype)
        else:
            total = tf.cast(tf.convert_to_tensor(gradient)[piece], variable.dtype)
            move = functools.partial(_adam, *own, constants)
            step = on_host(move, [total, *scalars], variable.dtype)
        step.set_shape(own[0].shape)
        return step

    done: list[tf.Operation] = []
    parts = pieces(variable.shape, variable.dtype)
    for piece in parts:
        with tf.control_dependencies(done):
            step = step_of(piece)
        with tf.control_dependencies([step]), tf.device(variable.device):
            done = [_subtract(variable, piece, step, decay)]
    if len(parts) > 1:
        # TensorFlow copies a variable whose rows were changed whenever it is read.
        with tf.control_dependencies(done):
            return tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
    return done[0]


def _subtract(
    variable: tf.Variable, piece: Piece, step: tf.Tensor, decay: tf.Tensor | None
) -> tf.Operation:
    if piece is ...:
        read = variable.read_value

        def subtract(values: tf.Tensor) -> tf.Operation:
            return variable.assign_sub(values, read_value=False)

    else:
        rows = {"resource": variable.handle, "indices": tf.range(piece.start, piece.stop)}
        read = functools.partial(tf.raw_ops.ResourceGather, dtype=variable.dtype, **rows)

        def subtract(values: tf.Tensor) -> tf.Operation:
            return tf.raw_ops.ResourceScatterSub(updates=values, **rows)

    decayed = [] if decay is None else [subtract(read() * decay)]
    with tf.control_dependencies(decayed):
        return subtract(step)


def _adam(
    first: Array, second: Array, constants: Any, gradient: Array, rate: Any, factor: Any
) -> Array:
    """Update Adam's moments, and return the step, with the operations of TensorFlow's kernel.

    Args:
      first, second: Moments, which change.
      constants: 1 - beta_1, 1 - beta_2 and epsilon.
      gradient: Summed gradient, which `factor` turns into the mean.
      rate: Learning rate with the bias correction.
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
