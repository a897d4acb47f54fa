"""Measurements of training steps: requests and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

# The number of passages of an example, and the number of tokens of the longest one.
Shape: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Measurement:
    """The duration of an update in seconds, and its peak memory in bytes."""

    seconds: float
    peak_bytes: float


@dataclass(frozen=True)
class MeasurementRequest:
    """One update to run and measure.

    Args:
      micro_batches: For each micro-batch, the shapes of its examples.
      recompute: Recomputation, "none" or "layer".
      accumulate: Whether to use accumulators.
      thorough: Whether to also evaluate and save a checkpoint, as a run does between updates.
    """

    micro_batches: Sequence[Sequence[Shape]]
    recompute: str
    accumulate: bool = True
    thorough: bool = False


class StepMeasurer(Protocol):
    """An object that runs training steps and measures them."""

    def run(self, request: MeasurementRequest) -> Measurement | None:
        """Run one update and return its measurement; None if it ran out of memory."""
