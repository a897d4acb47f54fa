"""Tensors in host memory, outside of the memory of the device that trains the model.

The numbers are in numpy arrays, because TensorFlow allocates every variable with the allocator of a
device. On a CPU that simulates a small GPU, this allocator has the GPU's limit, even for the
variables that a real GPU would keep on the host.

Source: Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training".
"""

from __future__ import annotations

import functools
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.accumulation.gradient_tensors import Gradient, compute_dtype
from bertaccum.errors import RunError, reason
from bertaccum.system.machine import usable_cores
from bertaccum.system.sizes import row_pieces

HOST = "/CPU:0"
# A step reaches the device in pieces of this size, so that it takes little of its memory.
_PIECE_BYTES = 16 * 2**20
# Arrays are processed in parts that fit in a processor's cache.
_PART = 2**17
Array: TypeAlias = np.ndarray[Any, Any]
# Some rows of an array, or `...` for the whole array.
Piece: TypeAlias = Any


class HostTensor(_tf_compat.AutoTrackable):
    """Zeros of a variable's shape in host memory, for each replica of this process.

    Every replica has its own copy, so that its updates need no communication with the others.

    Args:
      variable: The variable. Dtypes narrower than float32 become float32.
      name: Name of the tensor.
      folder: Folder for a file that contains the numbers, or None to use memory. The file has no
        name, so nothing remains of it when the process ends.

    Raises:
      RunError: The folder cannot be used, or its disk is full.
    """

    def __init__(self, variable: tf.Variable, name: str, folder: str | None = None) -> None:
        super().__init__()
        self.name, self.shape, self.dtype = name, variable.shape, compute_dtype(variable)
        devices = [component.device for component in _tf_compat.components(variable)]
        self._devices = tuple(devices)
        self.copies = tuple(HostArray(_zeros(self.shape, self.dtype, folder)) for _ in devices)

    @staticmethod
    def moved(variable: tf.Variable, folder: str | None) -> HostTensor:
        """Return the numbers of a variable in host memory, and free its memory on the device."""
        tensor = HostTensor(variable, variable.name, folder)
        for copy, component in zip(tensor.copies, _tf_compat.components(variable), strict=True):
            copy.assign(component.numpy())
        free(variable)
        return tensor

    def on(self, device: str) -> HostArray:
        """Return the copy of the replica on a device; a single replica's device is not asked."""
        return self.copies[self._devices.index(device) if len(self.copies) > 1 else 0]


class HostArray:
    """An array in host memory, which TensorFlow copies to the device where it needs a tensor."""

    def __init__(self, values: Array) -> None:
        self.values = values
        self.shape, self.dtype = tf.TensorShape(values.shape), tf.as_dtype(values.dtype)

    def add(self, gradient: Gradient) -> Any:
        """Add a gradient, dense or `IndexedSlices`; return the operation."""
        if isinstance(gradient, tf.IndexedSlices):
            rows = tf.cast(gradient.values, self.dtype)
            return on_host(self._add_rows, [gradient.indices, rows])
        return on_host(self._add, [tf.cast(gradient, self.dtype)])

    def _add(self, gradient: Array) -> None:
        in_parts(lambda total, added: np.add(total, added, out=total), self.values, gradient)

    def _add_rows(self, indices: Array, rows: Array) -> None:
        for index, row in zip(indices.tolist(), rows, strict=True):
            self.values[index] += row

    def numpy(self) -> Array:
        return self.values

    def assign(self, values: tf.Tensor | Array) -> None:
        """Change the numbers; for use outside of graphs."""
        self.values[...] = values

    def read_value(self) -> tf.Tensor:
        """Return the numbers without copying them; for use outside of graphs."""
        return tf.experimental.dlpack.from_dlpack(self.values.__dlpack__())

    def read(self, piece: Piece) -> tf.Tensor:
        """Return a piece as a tensor."""
        values = on_host(lambda: self.values[piece], [], self.dtype)
        values.set_shape(self.values[piece].shape)
        return values

    def write(self, piece: Piece, values: tf.Tensor) -> Any:
        """Change a piece; return the operation."""

        def assign(values: Array) -> None:
            self.values[piece] = values

        return on_host(assign, [values])


def _as_tensor(
    array: HostArray, dtype: tf.DType | None = None, name: str | None = None, as_ref: bool = False
) -> tf.Tensor:
    tensor = array.read(...)
    return tensor if dtype is None else tf.cast(tensor, dtype)


tf.register_tensor_conversion_function(HostArray, _as_tensor)


def on_host(function: Callable[..., Any], inputs: Sequence[tf.Tensor], dtype: Any = ()) -> Any:
    """Call a function of arrays on the host with tensors of any device."""
    with tf.device(HOST):
        return tf.numpy_function(function, inputs, dtype or [])


def square_sum(arrays: Sequence[HostArray]) -> tf.Tensor:
    """Return the sum of the squares of all numbers, a float64 scalar."""

    def of(values: Array) -> float:
        return float(np.dot(values, values))

    def of_all() -> np.float64:
        return np.float64(sum(sum(in_parts(of, array.values)) for array in arrays))

    total = on_host(of_all, [], tf.float64)
    total.set_shape([])
    return total


def sum_over_replicas(arrays: Sequence[HostArray], after: tf.Tensor) -> tf.Tensor:
    """Replace each array by its sum over the replicas, one piece at a time.

    The arrays are read only after `after`, which is returned once they are replaced.
    """
    context = tf.distribute.get_replica_context()
    done = [after]
    for array in arrays:
        for piece in pieces(array.shape, array.dtype):
            with tf.control_dependencies(done):
                own = array.read(piece)
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(own))
            done = [array.write(piece, total)]
    with tf.control_dependencies(done):
        return tf.identity(after)


def fill_with_zeros(arrays: Sequence[HostArray]) -> Any:
    """Set all numbers to zero; return the operation."""

    def fill() -> None:
        for array in arrays:
            in_parts(lambda values: values.fill(0), array.values)

    return on_host(fill, [])


def free(variable: tf.Variable) -> None:
    """Free a variable's memory, even if graphs refer to it; the variable cannot be used again.

    TensorFlow never frees graphs with custom gradients, nor the variables that they use.
    """
    for component in _tf_compat.components(variable):
        nothing = tf.zeros([0], component.dtype)
        tf.raw_ops.AssignVariableOp(resource=component.handle, value=nothing)


def pieces(shape: tf.TensorShape, dtype: tf.DType) -> list[Piece]:
    """Return slices of rows, each of at most `_PIECE_BYTES` bytes; the whole of a small tensor."""
    if not shape.rank or shape.num_elements() * dtype.size <= _PIECE_BYTES:
        return [...]
    return [*row_pieces(shape[0], dtype.size * math.prod(shape[1:]), _PIECE_BYTES)]


def in_parts(function: Callable[..., Any], *arrays: Array) -> list[Any]:
    """Call a function with corresponding one-dimensional parts of arrays, in several threads."""
    flat = [array.reshape(-1) for array in arrays]
    starts = range(0, flat[0].size, _PART)
    parts = [[array[start : start + _PART] for array in flat] for start in starts]
    if len(parts) == 1:
        return [function(*parts[0])]
    return list(_threads().map(lambda part: function(*part), parts))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(usable_cores(), "host")


def _zeros(shape: tf.TensorShape, dtype: tf.DType, folder: str | None) -> Array:
    size = max(shape.num_elements() * dtype.size, 1)
    try:
        # Memory of an anonymous map is taken only once it is written to.
        memory = mmap.mmap(-1, size) if folder is None else _file(size, folder)
    except OSError as error:
        raise RunError(
            f"cannot be used for offloading ({reason(error)})",
            "free space there, or set another `offload_folder`",
            path=Path(folder or "memory"),
        ) from None
    numbers = np.frombuffer(memory, dtype.as_numpy_dtype, shape.num_elements())
    return numbers.reshape(shape)


def _file(size: int, folder: str) -> mmap.mmap:
    with tempfile.TemporaryFile(dir=folder) as file:
        # Writing to a map of a file on a full disk would end the process without a message.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:  # macOS
            file.write(mmap.mmap(-1, size))
            file.flush()
        return mmap.mmap(file.fileno(), size)
