"""What a micro-step takes of the device's memory, from a few measurements."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# What a peak must be above the update's own to say something about examples.
_CLEARLY_ABOVE = 1.03


@dataclass(frozen=True)
class MemoryPoint:
    """The peak of a window whose largest micro-batch had this shape.

    Args:
      micro_batch: examples.
      length: tokens of each.
      peak_bytes: the most that was handed out.
    """

    micro_batch: int
    length: int
    peak_bytes: float


@dataclass(frozen=True)
class MemoryCost:
    """The peak as a function of the micro-batch.

    peak = max(update, static + (linear * length + quadratic * length**2) * micro_batch)

    The quadratic part is attention's. The optimizer's step has a peak of its own, when no
    activations are left: it is what small micro-batches take.
    """

    update_bytes: float
    static_bytes: float
    linear: float
    quadratic: float

    def less(self, saved_bytes: float) -> MemoryCost:
        """The cost where so many bytes are elsewhere."""
        return dataclasses.replace(
            self,
            update_bytes=self.update_bytes - saved_bytes,
            static_bytes=self.static_bytes - saved_bytes,
        )

    def example_bytes(self, length: int) -> float:
        """What one more example of `length` tokens adds."""
        return self.linear * length + self.quadratic * length**2

    def peak_bytes(self, micro_batch: int, length: int) -> float:
        """The predicted peak."""
        return max(self.update_bytes, self.static_bytes + self.example_bytes(length) * micro_batch)


def fit_cost(
    update_bytes: float, resting_bytes: float, points: Sequence[MemoryPoint]
) -> MemoryCost:
    """Fits the cost to measured peaks.

    Args:
      update_bytes: the peak of a window whose examples take nothing to speak of.
      resting_bytes: what is in use between windows; static bytes are not less.
      points: of one length, or of two. Those that do not rise above the update's peak
        only say that examples take no more than that.
    """
    above = [p for p in points if p.peak_bytes > _CLEARLY_ABOVE * update_bytes]
    if not above:
        # So much for the most that examples can take.
        tokens = max((p.micro_batch * p.length for p in points), default=1)
        return MemoryCost(update_bytes, resting_bytes, (update_bytes - resting_bytes) / tokens, 0.0)
    longest = max(p.length for p in above)
    static, slope = _line([p for p in above if p.length == longest], resting_bytes)
    shorter = [p for p in above if p.length < longest]
    if not shorter:
        return MemoryCost(update_bytes, static, slope / longest, 0.0)
    other = max(shorter, key=lambda p: p.peak_bytes)
    # Per token at both lengths; their difference is the quadratic part.
    long, short = slope / longest, (other.peak_bytes - static) / other.micro_batch / other.length
    quadratic = max((long - short) / (longest - other.length), 0.0)
    return MemoryCost(update_bytes, static, long - quadratic * longest, quadratic)


def _line(points: list[MemoryPoint], least: float) -> tuple[float, float]:
    """Static bytes and bytes an example: the line with the smallest relative errors.

    Peaks are not quite reproducible: what is free in the allocator has the sizes of what was
    there before, and is handed out whole if it is not twice of what is needed.
    """
    sizes = np.array([p.micro_batch for p in points], float)
    peaks = np.array([p.peak_bytes for p in points])
    if len(points) > 1:
        slope, static = np.polyfit(sizes, peaks, 1, w=1 / peaks)
        if static >= least:
            return float(static), float(slope)
    return least, float(np.mean((peaks - least) / sizes))
