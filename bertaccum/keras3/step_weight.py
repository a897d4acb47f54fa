"""The weight of the current micro-step, which the model's losses set and the optimizer reads."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from keras import ops

SUM = "sum"


@dataclass
class StepWeight:
    """The weight of a micro-step.

    Attributes:
      examples: Number of examples of the micro-step, a scalar.
      value: The divisor of the loss, a scalar: the number of examples until a loss reports another
        divisor.
      kind: Kind of the divisor; None until the first loss has reported its kind. It is `SUM` if the
        loss is a sum over the examples, which is not divided.
      given: Whether the user's `loss_weight` has set the divisor.
      first: Whether the micro-step is the first one of its window, a scalar; None if unknown.
      optimizers: The accumulating optimizers that the step has called.
    """

    examples: Any
    value: Any = None
    kind: Hashable = None
    given: bool = False
    first: Any = None
    optimizers: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.value = self.examples

    def shares(self, first: Any, dtype: Any) -> tuple[Any, Any]:
        """Return the factor of the micro-step's gradient, and what the window's divisor grows by.

        Args:
          first: Whether the micro-step is the first one of its window, a scalar.
          dtype: Dtype of the results.
        """
        if self.kind == SUM:
            return ops.ones((), dtype), ops.cast(first, dtype)
        weight = at_least(self.value, dtype)
        return weight, weight


def at_least(weight: Any, dtype: Any) -> Any:
    """Return the weight, or instead of zero a number that is too small to change a sum.

    If all positions of a window are masked, the mean is then the gradient of the regularizers.
    """
    return ops.maximum(ops.cast(weight, dtype), 1e-20)


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
