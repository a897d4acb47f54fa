"""The current micro-batch, through which a model's losses pass its weight to the optimizers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from keras import ops

SUM = "sum"


@dataclass
class MicroBatch:
    """The current micro-batch and its weight.

    Attributes:
      examples: Number of examples, a scalar.
      size: Divisor of the total loss, a scalar: the number of examples until a loss reports another
        divisor.
      kind: Kind of the divisor `size`; None until the first loss has reported its divisor. It is
        `SUM` if the total loss is a sum over the examples, so that nothing divides it.
      weight_given: Whether the user's `loss_weight` set `size`, so that losses do not change it.
      first: Whether the micro-step is the first one of its window, a scalar; None if unknown.
      optimizers: The accumulating optimizers that the step has called.
    """

    examples: Any
    size: Any = None
    kind: Hashable = None
    weight_given: bool = False
    first: Any = None
    optimizers: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.size = self.examples

    def shares(self, first: Any, dtype: Any) -> tuple[Any, Any]:
        """Return the factor of the gradient, and the number to add to the window's divisor."""
        if self.kind == SUM:
            return ops.ones((), dtype), ops.cast(first, dtype)
        weight = at_least(self.size, dtype)
        return weight, weight


def at_least(weight: Any, dtype: Any) -> Any:
    """Return the weight, or instead of zero a number that is too small to change a sum.

    If all positions of a window are masked, the mean is then the gradient of the regularizers.
    """
    return ops.maximum(ops.cast(weight, dtype), 1e-20)


_CURRENT: ContextVar[MicroBatch | None] = ContextVar("micro_batch", default=None)


@contextmanager
def micro_batch(examples: Any) -> Iterator[MicroBatch]:
    """Return a context in which `current` returns a new micro-batch of `examples` examples."""
    micro = MicroBatch(examples)
    token = _CURRENT.set(micro)
    try:
        yield micro
    finally:
        _CURRENT.reset(token)


def current() -> MicroBatch | None:
    """Return the current micro-batch; None outside of an accumulating model's step."""
    return _CURRENT.get()
