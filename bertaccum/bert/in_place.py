"""Assignment to variables that takes little memory."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

_PIECE_BYTES = 4 * 2**20


def assign_in_place(variable: tf.Variable, value: tf.Tensor | np.ndarray) -> None:
    """Assign a value to a variable, one piece of at most 4 MiB at a time.

    A plain assignment would briefly need twice the variable's memory, and would fragment the
    allocator's memory.

    Args:
      variable: The variable.
      value: Its new value, of the same dtype and shape, in memory of the host.
    """
    if not variable.shape.rank:
        variable.assign(value)
        return
    rows = max(_PIECE_BYTES // (variable.dtype.size * math.prod(variable.shape[1:])), 1)
    for first in range(0, variable.shape[0], rows):
        with tf.device("CPU"):
            piece = tf.convert_to_tensor(value[first : first + rows])
        indices = tf.range(first, first + piece.shape[0])
        tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=indices, updates=piece)
    # After a scatter update, TensorFlow would otherwise copy the variable on every read.
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
