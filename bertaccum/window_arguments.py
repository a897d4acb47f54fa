"""Checks of arguments that the accumulation libraries for tf_keras and Keras 3 share."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Sequence
from typing import Any

ON_PARTIAL = ("apply", "carry", "drop")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise ValueError if a value is not one of the choices."""
    if value not in choices:
        raise ValueError(f"`{name}` is {value!r}; choose one of {', '.join(choices)}")


def whole_steps(steps: Any, allowed: str) -> int:
    """Return a number of micro-steps as a Python int.

    Args:
      steps: The user's `accumulation_steps`.
      allowed: Values to pass, for the error message.

    Raises:
      TypeError: If `steps` is not an integer.
      ValueError: If `steps` is less than 1.
    """
    if isinstance(steps, bool) or not isinstance(steps, numbers.Integral):
        raise TypeError(f"`accumulation_steps` is {steps!r}; pass {allowed}")
    if steps < 1:
        raise ValueError(f"`accumulation_steps` is {steps}; pass at least 1 micro-step")
    return int(steps)


def warn_of_batch_normalization(names: Sequence[str], instead: str) -> None:
    """Warn the caller of `accumulate_gradients` about layers that do not pool their statistics.

    Args:
      names: Names of the layers that are trained; empty for no warning.
      instead: What to use in their place.
    """
    if names:
        warnings.warn(
            f"accumulation cannot be exact with BatchNormalization ({', '.join(names)}), because"
            " each micro-batch is normalized separately and updates the moving statistics."
            f" {instead}, freeze these layers, or use group or layer normalization",
            stacklevel=4,
        )
