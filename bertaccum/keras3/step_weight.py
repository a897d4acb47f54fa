"""The weight of the current micro-step, which the model's losses set and the optimizer reads."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass
class StepWeight:
    """The weight of a micro-step.

    Attributes:
      value: The divisor of the loss, a scalar: the number of examples until a loss reports another
        divisor.
      kind: Kind of the divisor; None until the first loss has reported its kind.
    """

    value: Any
    kind: Hashable = None


_PRESENT: ContextVar[StepWeight | None] = ContextVar("step_weight", default=None)


@contextmanager
def step_weight(examples: Any) -> Iterator[StepWeight]:
    """Return a context of a micro-step with this number of examples."""
    weight = StepWeight(examples)
    token = _PRESENT.set(weight)
    try:
        yield weight
    finally:
        _PRESENT.reset(token)


def current() -> StepWeight | None:
    """Return the weight of the current micro-step; None outside of an accumulating model's step."""
    return _PRESENT.get()
