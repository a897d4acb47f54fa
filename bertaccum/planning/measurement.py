"""Measurements of training steps: requests and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

# The number of passages of an example, and the number of tokens of the longest one.
Shape: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Measurement:
    """The duration of an update in seconds, and memory in bytes: its peak, and before it began."""

    seconds: float
    peak_bytes: float
    resting_bytes: float = 0.0


@dataclass(frozen=True)
class MeasurementRequest:
    """One update to run and measure.

    Args:
      micro_batches: For each micro-batch, the shapes of its examples.
      recompute, offload: Fields of `Saving`. Tensors in host memory stay there.
      accumulate: Whether to use accumulators.
      thorough: Whether to also evaluate and save a checkpoint, as a run does between updates.
    """

    micro_batches: Sequence[Sequence[Shape]]
    recompute: str
    offload: str = "none"
    accumulate: bool = True
    thorough: bool = False


class StepMeasurer(Protocol):
    """An object that runs training steps and measures them."""

    def run(self, request: MeasurementRequest) -> Measurement | None:
        """Run one update and return its measurement; None if it ran out of memory."""
