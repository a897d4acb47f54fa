"""Costs of an update: peak memory and prices of micro-steps, fitted to a few measurements."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertaccum.data.window_cuts import Prices
from bertaccum.errors import RunError
from bertaccum.options.offload_rungs import ACCUMULATORS, LADDER, OFFLOAD_NONE, SLOTS
from bertaccum.system.machine import available_bytes
from bertaccum.system.sizes import format_size

# Fit the memory of the examples only to peaks that exceed this multiple of the update's own peak.
_CLEARLY_ABOVE = 1.03


@dataclass(frozen=True)
class MemoryPoint:
    """The peak memory of a window whose largest micro-batch has passages of `length` tokens."""

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
      update_bytes: Peak of the optimizer step.
      static_bytes: Memory that does not grow with the micro-batch.
      linear, quadratic: Coefficients of `length` and `length**2` in the bytes of an example.
    """

    update_bytes: float
    static_bytes: float
    linear: float
    quadratic: float

    def example_bytes(self, length: int) -> float:
        """Return the memory of an example of `length` tokens."""
        return self.linear * length + self.quadratic * length**2

    def peak_bytes(self, micro_batch: int, length: int) -> float:
        """Return the predicted peak memory."""
        return max(self.update_bytes, self.static_bytes + self.example_bytes(length) * micro_batch)


def fit_cost(
    update_bytes: float, resting_bytes: float, points: Sequence[MemoryPoint]
) -> MemoryCost:
    """Fit the memory cost to measured peaks.

    Args:
      update_bytes: Peak of a window whose examples take almost no memory.
      resting_bytes: Memory in use between updates: a lower bound for the static bytes.
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
    """Return the points whose peak is clearly above the update's own peak."""
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


def fit_prices(
    step_seconds: float, passage_seconds: dict[int, float], usual: Prices
) -> tuple[Prices, float]:
    """Return the prices of micro-steps, and the time of a token in seconds.

    A passage of n tokens takes n a + n**2 b seconds, where a is the time of a token and b that of a
    pair of tokens.

    Args:
      step_seconds: Time of a micro-step without its tokens.
      passage_seconds: Time of a passage, by its length in tokens. With fewer than two lengths, or
        if the times do not fit, a pair of tokens has the usual price.
      usual: Prices that apply unless measurements differ.
    """
    (longest, seconds), *others = sorted(passage_seconds.items(), reverse=True)
    attention = usual.attention
    if others:
        length, other = others[-1]
        per_pair = (seconds / longest - other / length) / (longest - length)
        per_token = seconds / longest - longest * per_pair
        # Times vary, and an error of the price moves to lengths that were not measured.
        if per_token > 0:
            attention = min(max(per_pair / per_token, usual.attention / 4), 4 * usual.attention)
    token_seconds = max(seconds / (longest * (1 + longest * attention)), 1e-12)
    step_tokens = min(max(step_seconds / token_seconds, 1.0), 1e6)
    # With two digits, measuring again hardly changes how windows are cut.
    prices = dataclasses.replace(
        usual, step_tokens=float(f"{step_tokens:.2g}"), attention=float(f"{attention:.2g}")
    )
    return prices, token_seconds


def state_bytes(parameters: int) -> dict[str, int]:
    """Return the memory that the optimizer needs to train some weights."""
    return {SLOTS: 8 * parameters, ACCUMULATORS: 4 * parameters}


def bytes_on_device(static_bytes: dict[str, int], offload: str) -> dict[str, int]:
    """Return the static memory without the offloaded parts, which get 0."""
    return static_bytes | dict.fromkeys(LADDER[offload].moved, 0)


def bytes_on_host(static_bytes: dict[str, int], offload: str) -> int:
    """Return the size of the offloaded parts of the static memory."""
    return sum(static_bytes[part] for part in LADDER[offload].moved)


def check_host_memory(offload: str, before: str, parameters: int, folder: str | None) -> None:
    """Raise RunError if the machine has too little memory for the tensors that will be offloaded.

    Args:
      offload: What will be offloaded, one of `OFFLOAD`.
      before: What is offloaded already, one of `OFFLOAD`.
      parameters: Number of weights to train, on all replicas of this process together.
      folder: Folder that contains the offloaded tensors, or None for memory.
    """
    sizes, free = state_bytes(parameters), available_bytes()
    needed = bytes_on_host(sizes, offload) - bytes_on_host(sizes, before)
    if folder is None and needed > max(free, 0):
        more = " more" if before != OFFLOAD_NONE else ""
        raise RunError(
            f"`offload` {offload} needs {format_size(needed)}{more} of this machine's memory, and"
            f" {format_size(free)} is free",
            "free memory, or set `offload_folder` to a folder on a fast disk",
        )
