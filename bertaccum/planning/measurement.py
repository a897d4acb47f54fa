"""Measurements of training steps: requests and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Measurement:
    """The duration of an update in seconds, and its peak memory in bytes."""

    seconds: float
    peak_bytes: float


@dataclass(frozen=True)
class MeasurementRequest:
    """One update to run and measure.

    Args:
      micro_batches: For each micro-batch, the lengths of its examples in tokens.
      recompute: Recomputation, "none" or "layer".
      accumulate: Whether to use accumulators.
      thorough: Whether to also evaluate and save a checkpoint, as a run does between updates.
    """

    micro_batches: Sequence[Sequence[int]]
    recompute: str
    accumulate: bool = True
    thorough: bool = False


class StepMeasurer(Protocol):
    """An object that runs training steps and measures them."""

    def run(self, request: MeasurementRequest) -> Measurement | None:
        """Run one update and return its measurement; None if it ran out of memory."""
