"""A tensor in a file of weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HeldTensor:
    """A tensor in a file, which is read on demand.

    Args:
      shape: Its shape.
      dtype: Its type, as safetensors names it, such as F32.
      read: Returns the tensor as float32 in memory of the host, a numpy array or a `tf.Tensor`;
        raises InputError if the file is damaged there.
      name: Its name for error messages, if that is not its key.
    """

    shape: list[int]
    dtype: str
    read: Callable[[], Any]
    name: str | None = None
