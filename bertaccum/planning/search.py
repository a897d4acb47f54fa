"""The search for the fastest way to run a window within the device's memory.

This module does not use TensorFlow: a `StepMeasurer` runs the updates and measures them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bertaccum.data.window_cuts import PRICES, Prices, make_cut
from bertaccum.options.offload_rungs import OFFLOAD, offloads_sums
from bertaccum.planning.batch_plan import BatchPlan, Saving, make_plan
from bertaccum.planning.measurement_process import (
    Measurement,
    MeasurementRequest,
    Shape,
    StepMeasurer,
)
from bertaccum.planning.memory_cost import MemoryCost, MemoryPoint, clear_peaks, fit_cost
from bertaccum.planning.step_prices import fit_prices

_MIB = 2**20
# Share of the memory reserved for fragmentation, evaluation and checkpoints.
MARGIN = 0.04
# Timings vary, so speeds above this fraction of the highest one count as equal; of such candidates,
# those that offload least are chosen, and of these the one that needs the least memory.
_SAME_SPEED = 0.98
# Recomputation costs an extra forward pass, so it is worthwhile only if larger micro-batches are
# faster than smaller ones by at least this factor.
_RECOMPUTATION_COSTS = 1.1
# The same for offloading, which costs less.
_OFFLOADING_COSTS = 1.03
# Memory of the send and receive buffers for summing gradients over replicas, relative to the size
# of the gradients. Measured with two workers: 2.05 to 2.5, whether micro-batches had 1, 2 or 4
# examples.
_EXCHANGED = 2.5
# Maximum time for one memory measurement, in seconds: 32 if the fit has fewer than two peaks, 8 if
# the measurement is needed, 2 if it only makes the fit more accurate. A single peak is accurate to
# one or two percent.
_FIRST_SECONDS, _MOST_SECONDS, _CHEAP_SECONDS = 32.0, 8.0, 2.0
# A shorter update is measured three times.
_REPEATED_SECONDS = 1.0
# Length in tokens of an example so short that the peak is that of the update itself.
_SHORT = 8
# Number of micro-steps of such an example that are timed for the price of a micro-step.
_SHORT_STEPS = 8


@dataclass(frozen=True)
class SearchSpace:
    """The candidates of a search, and the limits they must meet.

    Args:
      target_batch: Number of examples per update.
      sizes: Allowed micro-batch sizes in ascending order.
      savings: Allowed ways to save memory, the fastest first.
      largest: Shape of the largest example; a micro-batch of such examples must fit.
      windows: For each of some windows, the shapes of its examples in ascending order.
      limit_bytes: Memory of the device in bytes.
      accumulator_bytes: Memory in bytes of the accumulators on the device, which a window of a
        single micro-batch does not need.
      cut: How windows are split, "cost" or "count".
      shared: Whether each window is one replica's share of a larger window; shares always use
        accumulators.
      prices: Usual prices of micro-steps.
      speed_seconds: Approximate time in seconds for measuring the speeds of each way to save
        memory.
    """

    target_batch: int
    sizes: list[int]
    savings: list[Saving]
    largest: Shape
    windows: list[list[Shape]]
    limit_bytes: float
    accumulator_bytes: float
    cut: str = "count"
    shared: bool = False
    prices: Prices = PRICES
    speed_seconds: float = 6.0

    def alone(self, plan: BatchPlan) -> bool:
        """Return whether a plan's micro-batch is a whole window without accumulators."""
        return not plan.accumulates and not self.shared

    def plan(self, size: int, saving: Saving) -> BatchPlan:
        """Return the batch plan for a micro-batch size and a way to save memory."""
        return make_plan(self.target_batch, size, saving, self.cut)

    @functools.cached_property
    def typical(self) -> list[Shape]:
        """The shapes of the examples of a window that represents all windows."""
        return typical_window(self.windows)

    @property
    def longest(self) -> int:
        """The number of tokens of the largest example's longest passage."""
        return self.largest[1]

    def exchange_bytes(self, saving: Saving, resting_bytes: float) -> float:
        """Return the estimated peak in bytes while replicas sum their gradients; 0 for one replica.

        Args:
          saving: The plan's way to save memory; accumulators on the host are summed in pieces.
          resting_bytes: Memory in use between updates in bytes, including the accumulators.
        """
        if not self.shared or offloads_sums(saving.offload):
            return 0.0
        return resting_bytes + _EXCHANGED * self.accumulator_bytes

    @property
    def usable_bytes(self) -> float:
        """The memory limit minus the safety margin, in bytes."""
        return self.limit_bytes * (1 - MARGIN)


def typical_window(windows: list[list[Shape]]) -> list[Shape]:
    """Return the shapes of the examples of a window that represents all `windows`."""
    shapes = sorted(itertools.chain.from_iterable(windows))
    return shapes[len(windows) // 2 :: len(windows)]


def strict_limit(limit_bytes: float) -> int:
    """Return the limit in bytes that a plan must meet when it is tried.

    It includes half of the safety margin, so that the plan still fits if memory use varies.
    """
    return round(limit_bytes * (1 - MARGIN / 2)) // _MIB * _MIB


@dataclass(frozen=True)
class Candidate:
    """One way to run a window.

    Args:
      plan: Batch plan.
      predicted_peak_bytes: Peak memory in bytes that the fitted cost predicts for the longest
        examples.
      measured_peak_bytes: Measured peak memory in bytes for the longest examples, or None.
      examples_per_second: Measured speed, or None.
      fits: Whether the predicted peak is within the usable memory, and no measurement of a
        micro-batch of this size or a smaller one ran out of memory.
    """

    plan: BatchPlan
    predicted_peak_bytes: float
    measured_peak_bytes: float | None
    examples_per_second: float | None
    fits: bool


@dataclass
class SearchResult:
    """The result of a search.

    Args:
      candidates: All candidates.
      costs: Memory cost for each way to save memory that was measured.
      resting_bytes: For each of them, memory in use between updates, in bytes.
      prices: For each of them, the prices of micro-steps.
    """

    candidates: list[Candidate] = field(default_factory=list)
    costs: dict[Saving, MemoryCost] = field(default_factory=dict)
    resting_bytes: dict[Saving, float] = field(default_factory=dict)
    prices: dict[Saving, Prices] = field(default_factory=dict)

    def best_first(self) -> list[Candidate]:
        """Return the candidates that fit and were timed, the best one first."""
        timed = [c for c in self.candidates if c.fits and c.examples_per_second]
        if not timed:
            return []
        best = max(rate(c) for c in timed)
        alike = [c for c in timed if rate(c) >= _SAME_SPEED * best]
        first = min(alike, key=_needs)
        return [first, *sorted((c for c in timed if c is not first), key=rate, reverse=True)]


def _needs(candidate: Candidate) -> tuple[int, float]:
    """Return the sort key of plans of the same speed: what they offload, then the peak memory."""
    return OFFLOAD.index(candidate.plan.offload), candidate.predicted_peak_bytes


def rate(candidate: Candidate) -> float:
    """Return a candidate's examples per second; 0 if they were not measured."""
    return candidate.examples_per_second or 0.0


def search(measurer: StepMeasurer, space: SearchSpace) -> SearchResult:
    """Measure each way to save memory, until a slower one cannot improve the result.

    Args:
      measurer: Runs the updates.
      space: Candidates and limits.
    """
    found = SearchResult()
    searches: list[_Search] = []
    for saving in space.savings:
        less = (search for search in searches if search.saving.is_less_than(saving))
        if any(search.nothing_to_gain(saving) for search in less):
            continue
        search = _Search(measurer, space, saving)
        if search.cost is None:
            continue
        searches.append(search)
        found.candidates += [search.candidate(size) for size in space.sizes]
        found.costs[saving], found.resting_bytes[saving] = search.cost, search.resting_bytes
        found.prices[saving] = search.prices
    return found


class _Search:
    """The search over micro-batch sizes for one way to save memory."""

    def __init__(self, measurer: StepMeasurer, space: SearchSpace, saving: Saving) -> None:
        self.measurer, self.space, self.saving = measurer, space, saving
        self.points: list[MemoryPoint] = []
        # Smallest micro-batch of the longest examples that ran out of memory.
        self.too_large = math.inf
        self.update_seconds = self.resting_bytes = 0.0
        self.example_seconds = 0.0
        self.passage_seconds: dict[int, float] = {}
        self.prices = space.prices
        self.cost = self._measure_cost()
        self.rates: dict[int, float] = {}
        if self.cost is not None:
            self.prices = self._measure_prices()
            self._measure_speeds()

    def nothing_to_gain(self, other: Saving) -> bool:
        """Return whether another way to save more memory cannot improve the result.

        It allows larger micro-batches, but each of them takes more time.
        """
        fitting = self._fitting()
        if not fitting:
            return False
        if fitting[-1] == self.space.sizes[-1]:
            return True
        timed = sorted(size for size, rate in self.rates.items() if rate)
        if len(timed) < 2:
            return False
        largest = timed[-1]
        smaller = max((s for s in timed if s <= 0.7 * largest), default=timed[0])
        recomputes = other.recompute != self.saving.recompute == "none"
        costs = _RECOMPUTATION_COSTS if recomputes else _OFFLOADING_COSTS
        return self.rates[largest] < costs * self.rates[smaller]

    # --- Memory ---------------------------------------------------------------------

    def _measure_cost(self) -> MemoryCost | None:
        """Measure the peaks of micro-batches of increasing size, and return the fitted cost.

        The size doubles until the peak is twice that of the update itself, or until the next
        measurement would take too long. The result is None if the update, or a single example, does
        not fit in memory.
        """
        short = MeasurementRequest([[(1, _SHORT)]], *self.saving)
        self.measurer.run(short)  # The first run traces the function.
        measurement = self._typical(short)
        if measurement is None:
            return None
        update_bytes, self.update_seconds = measurement.peak_bytes, measurement.seconds
        self.resting_bytes = measurement.resting_bytes
        size, longest = 1, self.space.longest
        while self._measure(size, longest) and size < self.space.target_batch:
            weight = self.points[-1].peak_bytes / update_bytes
            size = min(2 * size, self.space.target_batch)
            # In large models, examples add little to the update's memory and take a long time, so
            # limit the time.
            seconds = _CHEAP_SECONDS if weight > 1.4 else _MOST_SECONDS
            if len(clear_peaks(update_bytes, self.points)) < 2:
                seconds = _FIRST_SECONDS
            if weight > 2 or size * self.example_seconds > seconds:
                break
        if not self.points:
            return None  # Not even one example fits.
        if longest > 2 * _SHORT:
            self._measure(2 * self.points[-1].micro_batch, longest // 2)
        cost = fit_cost(update_bytes, self.resting_bytes, self.points)
        exchange = self.space.exchange_bytes(self.saving, self.resting_bytes)
        return dataclasses.replace(cost, update_bytes=max(cost.update_bytes, exchange))

    def _measure(self, size: int, length: int) -> bool:
        micro_batch = [(self.space.largest[0], length)] * size
        measurement = self._typical(MeasurementRequest([micro_batch], *self.saving))
        if measurement is None:
            if length == self.space.longest:
                self.too_large = min(size, self.too_large)
            return False
        self.points.append(MemoryPoint(size, length, measurement.peak_bytes))
        seconds = max(measurement.seconds - self.update_seconds, 1e-6) / size
        self.passage_seconds[length] = seconds / self.space.largest[0]
        if length == self.space.longest:
            self.example_seconds = seconds
        return True

    def _typical(self, request: MeasurementRequest) -> Measurement | None:
        """Run an update, three times if it is short, and return the one with the median peak.

        In one of four updates, operations that run in parallel free their memory later, and the
        peak is up to 5% higher. The result is None if an update ran out of memory.
        """
        found: list[Measurement] = []
        while len(found) < 3 and (not found or found[0].seconds < _REPEATED_SECONDS):
            measurement = self.measurer.run(request)
            if measurement is None:
                return None
            found.append(measurement)
        return sorted(found, key=lambda one: one.peak_bytes)[len(found) // 2]

    def candidate(self, size: int) -> Candidate:
        """Return the candidate with micro-batches of a size."""
        peaks = {p.micro_batch: p.peak_bytes for p in self.points if p.length == self.space.longest}
        return Candidate(
            plan=self.space.plan(size, self.saving),
            predicted_peak_bytes=self._predicted(size),
            measured_peak_bytes=None if self._alone(size) else peaks.get(size),
            examples_per_second=self.rates.get(size),
            fits=self._fits(size),
        )

    def _alone(self, size: int) -> bool:
        return self.space.alone(self.space.plan(size, self.saving))

    def _predicted(self, size: int) -> float:
        assert self.cost is not None
        cost = self.cost
        if self._alone(size):
            # `update_bytes` stays the same: instead of the accumulators, the optimizer step needs
            # the gradients.
            static = cost.static_bytes - self.space.accumulator_bytes
            cost = dataclasses.replace(cost, static_bytes=static)
        return cost.peak_bytes(size, self.space.longest)

    def _fits(self, size: int) -> bool:
        # Ignore a failed measurement of the whole window: memory is measured with accumulators, but
        # the whole window runs without them.
        failed = size >= self.too_large and not self._alone(size)
        return self._predicted(size) <= self.space.usable_bytes and not failed

    def _fitting(self) -> list[int]:
        return [size for size in self.space.sizes if self._fits(size)]

    # --- Speed ----------------------------------------------------------------------

    def _measure_prices(self) -> Prices:
        """Return the prices of micro-steps, from the times of those whose memory was measured."""
        short = [[(1, _SHORT)]] * (1 + _SHORT_STEPS)
        measurement = self._typical(MeasurementRequest(short, *self.saving))
        if measurement is None:
            return self.space.prices
        step = max(measurement.seconds - self.update_seconds, 0.0) / _SHORT_STEPS
        return fit_prices(step, self.passage_seconds, self.space.prices)[0]

    def _measure_speeds(self) -> None:
        """Time the largest sizes that fit, then sizes around the best, then the best two again."""
        fitting = self._fitting()
        spent, size = 0.0, fitting[-1] if fitting else None
        while size is not None and spent < self.space.speed_seconds:
            spent += self._time(size)
            if len(self.rates) >= 2 and self.rates[size] < 0.9 * max(self.rates.values()):
                break
            size = max((s for s in fitting if s <= 0.6 * size), default=None)
        for around in (self._around_best, self._around_best, lambda _: self._by_rate()[:2]):
            for size in around(fitting):
                if spent < self.space.speed_seconds:
                    spent += self._time(size)

    def _around_best(self, fitting: list[int]) -> list[int]:
        """Return sizes near the best one: halfway to its neighbors, and a power of two.

        The neighbors are the nearest sizes already timed. The nearest power of two may be faster,
        because hardware often computes in blocks of such sizes.
        """
        if not self.rates:
            return []
        best = self._by_rate()[0]
        between = []
        for neighbour in (
            max((s for s in self.rates if s < best), default=best),
            min((s for s in self.rates if s > best), default=best),
        ):
            new = [s for s in fitting if min(best, neighbour) < s < max(best, neighbour)]
            between += new[len(new) // 2 : len(new) // 2 + 1]
        power = 2 ** round(math.log2(best))
        return between + [power] * (power in fitting and power not in {*self.rates, *between})

    def _by_rate(self) -> list[int]:
        return sorted(self.rates, key=lambda size: self.rates[size], reverse=True)

    def _time(self, size: int) -> float:
        """Time a representative part of a window, and return the time spent, in seconds."""
        shapes = self.space.typical
        # Without accumulators, the window must stay a single micro-batch.
        kind = "count" if self._alone(size) else self.space.cut
        starts = make_cut(kind, self.space.largest, self.prices)(np.array(shapes), size)
        cut = [shapes[a:b] for a, b in itertools.pairwise(starts)]
        examples = len(shapes) / len(cut)
        affordable = self.space.speed_seconds / 4 / (self.example_seconds * examples)
        steps = min(max(round(affordable), 1), len(cut))
        chosen = [cut[int((i + 0.5) * len(cut) / steps)] for i in range(steps)]
        measurement = self.measurer.run(MeasurementRequest(chosen, *self.saving))
        if measurement is None:
            self.rates.setdefault(size, 0.0)
            return 0.0
        # The optimizer step counts once per window, whatever part of the window was timed.
        share = _padded(chosen) / _padded(cut)
        seconds = max(measurement.seconds - self.update_seconds, 1e-6) / share + self.update_seconds
        self.rates[size] = max(self.rates.get(size, 0.0), len(shapes) / seconds)
        return measurement.seconds


def _padded(micro_batches: Sequence[Sequence[Shape]]) -> int:
    """Return the number of tokens in micro-batches, including padding."""
    numbers = (zip(*shapes, strict=True) for shapes in micro_batches)
    return sum(sum(passages) * max(lengths) for passages, lengths in numbers)


def verified(
    found: SearchResult, measurer: StepMeasurer, space: SearchSpace
) -> tuple[Candidate, Measurement] | None:
    """Return the best candidate that fits when it is run, and its measurement; None if none fits.

    Candidates that ran out of memory, and those predicted to need at least as much memory, are
    marked as not fitting.

    Args:
      found: Result of `search`.
      measurer: Runs the updates, with no more memory than the limit.
      space: Candidates and limits of the search.
    """
    failed = float("inf")
    for candidate in found.best_first():
        if candidate.predicted_peak_bytes >= failed:
            continue
        size = candidate.plan.micro_batch
        steps = min(candidate.plan.accumulation_steps, 2)
        window = [[space.largest] * size] * steps
        accumulate = not space.alone(candidate.plan)
        request = MeasurementRequest(window, *candidate.plan.saving, accumulate, thorough=True)
        measurement = measurer.run(request)
        if measurement is not None:
            return candidate, measurement
        failed = candidate.predicted_peak_bytes
        found.candidates = [
            dataclasses.replace(c, fits=c.fits and c.predicted_peak_bytes < failed)
            for c in found.candidates
        ]
    return None
