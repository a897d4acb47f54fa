"""Reading of checkpoints, checks of weights and assignment to variables that take little memory."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.errors import InputError
from bertaccum.system.sizes import row_pieces

_PIECE_BYTES = 4 * 2**20


def read_tensor(prefix: str, name: str, dtype: tf.DType) -> tf.Tensor:
    """Read a tensor of a checkpoint into memory of the host.

    It is not read as a numpy array, because TensorFlow crashes when a tensor made from a numpy
    array does not fit in memory.
    """
    with tf.device("CPU"):
        (value,) = tf.raw_ops.RestoreV2(
            prefix=prefix, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype]
        )
    return value


def check_finite(value: np.ndarray | tf.Tensor, name: str, path: Path) -> None:
    """Raise InputError if a number of a weight, or its square, is NaN or infinite."""
    # Neither sum of squares needs memory for another array.
    if isinstance(value, np.ndarray):
        flat = value.ravel(order="K")
        squares = float(flat @ flat)
    else:
        squares = float(tf.nn.l2_loss(value))
    if not math.isfinite(squares):
        raise InputError(
            f"{name} contains a number that is NaN, infinite or above 1e19",
            "use another checkpoint",
            path=path,
        )


def assign_in_place(variable: tf.Variable, value: tf.Tensor | np.ndarray) -> None:
    """Assign a value to a variable on all replicas, one piece of at most 4 MiB at a time.

    A plain assignment would briefly need twice the variable's memory, and would fragment the
    allocator's memory.
    """
    with tf.device("CPU"):
        value = (tf.reshape if tf.is_tensor(value) else np.reshape)(value, variable.shape)
    for component in _tf_compat.components(variable):
        _assign(component, value)


def _assign(variable: tf.Variable, value: tf.Tensor | np.ndarray) -> None:
    if not variable.shape.rank:
        variable.assign(value)
        return
    row_bytes = variable.dtype.size * math.prod(variable.shape[1:])
    for rows in row_pieces(variable.shape[0], row_bytes, _PIECE_BYTES):
        with tf.device("CPU"):
            piece = tf.cast(value[rows], variable.dtype)
        indices = tf.range(rows.start, rows.stop)
        tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=indices, updates=piece)
    # After a scatter update, TensorFlow would otherwise copy the variable on every read.
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
