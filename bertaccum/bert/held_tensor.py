"""A tensor in a file of weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LazyTensor:
    """A tensor in a file, which is read on demand."""

    shape: list[int]
    dtype: str  # Its type, as safetensors names it, such as F32.
    # Returns the tensor as float32 in memory of the host, a numpy array or a `tf.Tensor`; raises
    # InputError if the file is damaged there.
    read: Callable[[], Any]
    name: str | None = None  # Its name for error messages, if that is not its key.
