"""Peak memory as a function of micro-batch size and length, fitted to a few measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Fit the memory of the examples only to peaks that exceed this multiple of the update's own peak.
_CLEARLY_ABOVE = 1.03


@dataclass(frozen=True)
class MemoryPoint:
    """The peak memory of a window, and the shape of its largest micro-batch.

    Args:
      micro_batch: Number of examples.
      length: Length of each example in tokens; if examples have several passages, of each passage.
      peak_bytes: Peak memory in bytes.
    """

    micro_batch: int
    length: int
    peak_bytes: float


@dataclass(frozen=True)
class MemoryCost:
    """The peak memory of an update as a function of its largest micro-batch.

    peak = max(update, static + (linear * length + quadratic * length**2) * micro_batch)

    The quadratic part comes from attention. The optimizer step has its own peak, after all
    activations are freed; micro-batches that are small enough stay below that peak.

    Args:
      update_bytes: Peak of the optimizer step in bytes.
      static_bytes: Memory in bytes that does not grow with the micro-batch.
      linear, quadratic: Coefficients of `length` and `length**2` in the bytes of an example.
    """

    update_bytes: float
    static_bytes: float
    linear: float
    quadratic: float

    def example_bytes(self, length: int) -> float:
        """Return the memory in bytes that each example of `length` tokens takes."""
        return self.linear * length + self.quadratic * length**2

    def peak_bytes(self, micro_batch: int, length: int) -> float:
        """Return the predicted peak memory in bytes."""
        return max(self.update_bytes, self.static_bytes + self.example_bytes(length) * micro_batch)


def fit_cost(
    update_bytes: float, resting_bytes: float, points: Sequence[MemoryPoint]
) -> MemoryCost:
    """Fit the memory cost to measured peaks.

    Args:
      update_bytes: Peak of a window whose examples take almost no memory, in bytes.
      resting_bytes: Memory in use between updates, in bytes: a lower bound for the static bytes.
      points: Measurements of examples of one or two lengths. A peak close to `update_bytes` is used
        only as an upper bound for the memory of the examples.
    """
    above = clear_peaks(update_bytes, points)
    if not above:
        # The update's peak is an upper bound for the memory of the examples.
        tokens = max((p.micro_batch * p.length for p in points), default=1)
        return MemoryCost(update_bytes, resting_bytes, (update_bytes - resting_bytes) / tokens, 0.0)
    longest = max(p.length for p in above)
    static, slope = _line([p for p in above if p.length == longest], resting_bytes)
    shorter = [p for p in above if p.length < longest]
    if not shorter:
        return MemoryCost(update_bytes, static, slope / longest, 0.0)
    other = max(shorter, key=lambda p: p.peak_bytes)
    # The bytes per token at the two lengths differ because of the quadratic part.
    long, short = slope / longest, (other.peak_bytes - static) / other.micro_batch / other.length
    quadratic = max((long - short) / (longest - other.length), 0.0)
    return MemoryCost(update_bytes, static, long - quadratic * longest, quadratic)


def clear_peaks(update_bytes: float, points: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    """Return the points whose peak is clearly above the update's own peak in bytes."""
    return [p for p in points if p.peak_bytes > _CLEARLY_ABOVE * update_bytes]


def _line(points: list[MemoryPoint], least: float) -> tuple[float, float]:
    """Fit a line with small relative errors, and return static bytes and bytes per example.

    Peaks vary slightly between runs, because the allocator splits a free block only if the block is
    at least twice as large as needed.
    """
    sizes = np.array([p.micro_batch for p in points], float)
    peaks = np.array([p.peak_bytes for p in points])
    if len(points) > 1:
        slope, static = np.polyfit(sizes, peaks, 1, w=1 / peaks)
        if static >= least:
            return float(static), float(slope)
    return least, float(np.mean((peaks - least) / sizes))
