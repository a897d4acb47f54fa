"""A tensor in a file of weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class HeldTensor:
    """A tensor in a file, which is read on demand.

    Args:
      shape: Its shape.
      dtype: Its type, as safetensors names it, such as F32.
      read: Returns the tensor as float32; raises InputError if the file is damaged there.
    """

    shape: list[int]
    dtype: str
    read: Callable[[], np.ndarray]
