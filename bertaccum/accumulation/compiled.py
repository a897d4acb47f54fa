"""Parts of a `tf.function` that XLA compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

Result = TypeVar("Result")


def maybe_compiled(function: Callable[[], Result], compile: bool) -> Result:
    """Call a function of tensors and variables; if `compile`, as one XLA program on one device.

    If a compiled program runs out of memory, TensorFlow 2.20 frees the variables that it assigns,
    although they are still in use, and the process aborts when they are next written. Assign
    variables only in functions that need almost no memory besides their inputs.
    """
    if not compile:
        return function()
    return tf.function(function, jit_compile=True, autograph=False)()
