"""Measurements of training steps: what is asked for, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Measurement:
    """What a window took: seconds, and the most bytes that were handed out meanwhile."""

    seconds: float
    peak_bytes: float


@dataclass(frozen=True)
class MeasurementRequest:
    """One update that is run to see what it takes.

    Args:
      micro_batches: lengths of the examples of each.
      recompute: none or layer.
      accumulate: with accumulators.
      thorough: also do what a run does between updates: evaluate and save.
    """

    micro_batches: Sequence[Sequence[int]]
    recompute: str
    accumulate: bool = True
    thorough: bool = False


class StepMeasurer(Protocol):
    """Runs training steps."""

    def run(self, request: MeasurementRequest) -> Measurement | None:
        """Runs one; None if it ran out of memory."""
