"""The search for the fastest way to run a window within the device's memory.

A `StepMeasurer` runs the updates and measures them; the tests simulate it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bertaccum.data.window_cuts import PRICES, Prices
from bertaccum.options.offload_rungs import OFFLOAD
from bertaccum.planning.calculated_speeds import UpdateTimer, calculated_speeds, split_typical
from bertaccum.planning.cost import MemoryCost, MemoryPoint, clear_peaks, fit_cost, fit_prices
from bertaccum.planning.measurement import Measurement, MeasurementRequest, StepMeasurer
from bertaccum.planning.plan import Saving, SearchSpace, Shape
from bertaccum.planning.plan_result import Candidate

# Timings vary, so speeds above this fraction of the highest one count as equal; of such candidates,
# those that offload least are chosen, and of these the one that needs the least memory.
_SAME_SPEED = 0.98
# Recomputation costs an extra forward pass, so it is worthwhile only if larger micro-batches are
# faster than smaller ones by at least this factor.
_RECOMPUTATION_COSTS = 1.1
# The same for offloading, which costs less.
_OFFLOADING_COSTS = 1.03
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


@dataclass
class SearchResult:
    """All candidates, and what was measured for each way to save memory.

    Args:
      candidates: All candidates.
      costs: Memory costs.
      resting_bytes: Memory in use between updates.
      prices: Prices of micro-steps.
      compiled_rates: Calculated examples per second of compiled steps, by micro-batch size.
    """

    candidates: list[Candidate] = field(default_factory=list)
    costs: dict[Saving, MemoryCost] = field(default_factory=dict)
    resting_bytes: dict[Saving, float] = field(default_factory=dict)
    prices: dict[Saving, Prices] = field(default_factory=dict)
    compiled_rates: dict[Saving, dict[int, float]] = field(default_factory=dict)

    def best_first(self) -> list[Candidate]:
        """Return the candidates that fit and were timed, the best one first."""
        timed = [c for c in self.candidates if c.fits and c.rate]
        if not timed:
            return []
        best = max(c.rate for c in timed)
        alike = [c for c in timed if c.rate >= _SAME_SPEED * best]
        first = min(alike, key=_offloading_then_peak)
        rest = (c for c in timed if c is not first)
        return [first, *sorted(rest, key=lambda c: c.rate, reverse=True)]


def _offloading_then_peak(candidate: Candidate) -> tuple[int, float]:
    return OFFLOAD.index(candidate.plan.offload), candidate.predicted_peak_bytes


def search(
    measurer: StepMeasurer, space: SearchSpace, timer: UpdateTimer | None = None
) -> SearchResult:
    """Measure each way to save memory, until a slower one cannot improve the result.

    Args:
      timer: Calculates the times of updates for a simulated card; None to measure them.
    """
    result = SearchResult()
    searches: list[_SavingSearch] = []
    for saving in space.savings:
        own = _SavingSearch(measurer, space, saving)
        if timer is not None:
            own.prices, own.rates, own.compiled_rates = calculated_speeds(timer, space, saving)
            best = max((c.rate for c in result.candidates if c.fits), default=0.0)
            if best >= _SAME_SPEED * max(own.rates.values()):
                continue
        less = (earlier for earlier in searches if earlier.saving.is_less_than(saving))
        if timer is None and any(earlier.rules_out(saving) for earlier in less):
            continue
        if not own.measure_memory():
            continue
        if timer is None:
            own.measure_prices()
            own.measure_speeds()
        searches.append(own)
        result.candidates += [own.candidate(size) for size in space.sizes]
        result.costs[saving], result.resting_bytes[saving] = own.cost, own.resting_bytes
        result.prices[saving], result.compiled_rates[saving] = own.prices, own.compiled_rates
    return result


class _SavingSearch:
    """The search over micro-batch sizes for one way to save memory."""

    def __init__(self, measurer: StepMeasurer, space: SearchSpace, saving: Saving) -> None:
        self.measurer, self.space, self.saving = measurer, space, saving
        self.points: list[MemoryPoint] = []
        # Nothing fits until the memory was measured.
        self.cost = MemoryCost(math.inf, math.inf, 0.0, 0.0)
        # Smallest micro-batch of the longest examples that ran out of memory.
        self.too_large = math.inf
        self.update_seconds = self.resting_bytes = self.example_seconds = 0.0
        self.passage_seconds: dict[int, float] = {}
        self.prices = PRICES
        # Examples per second by micro-batch size, and the time spent on measuring them.
        self.rates: dict[int, float] = {}
        self.compiled_rates: dict[int, float] = {}
        self.spent_seconds = 0.0

    def rules_out(self, other: Saving) -> bool:
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

    def measure_memory(self) -> bool:
        """Fit the cost to peaks of micro-batches of increasing size; return whether one fits.

        The size doubles until the peak is twice that of the update itself, or until the next
        measurement would take too long.
        """
        short = MeasurementRequest([[(1, _SHORT)]], *self.saving)
        self.measurer.run(short)  # The first run traces the function.
        update = self._median_run(short)
        if update is None:
            return False
        self.update_seconds, self.resting_bytes = update.seconds, update.resting_bytes
        size, longest = 1, self.space.longest
        while self._measure_peak(size, longest) and size < self.space.target_batch:
            weight = self.points[-1].peak_bytes / update.peak_bytes
            size = min(2 * size, self.space.target_batch)
            # In large models, examples add little to the update's memory and take a long time, so
            # limit the time.
            seconds = _CHEAP_SECONDS if weight > 1.4 else _MOST_SECONDS
            if len(clear_peaks(update.peak_bytes, self.points)) < 2:
                seconds = _FIRST_SECONDS
            if weight > 2 or size * self.example_seconds > seconds:
                break
        if not self.points:
            return False
        if longest > 2 * _SHORT:
            self._measure_peak(2 * self.points[-1].micro_batch, longest // 2)
        cost = fit_cost(update.peak_bytes, self.resting_bytes, self.points)
        all_reduce = self.space.all_reduce_bytes(self.saving, self.resting_bytes)
        self.cost = dataclasses.replace(cost, update_bytes=max(cost.update_bytes, all_reduce))
        return True

    def _measure_peak(self, size: int, length: int) -> bool:
        micro_batch = [(self.space.largest[0], length)] * size
        measurement = self._median_run(MeasurementRequest([micro_batch], *self.saving))
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

    def _median_run(self, request: MeasurementRequest) -> Measurement | None:
        """Run an update, three times if it is short, and return the one with the median peak.

        In one of four updates, operations that run in parallel free their memory later, and the
        peak is up to 5% higher. The result is None if an update ran out of memory.
        """
        runs: list[Measurement] = []
        while len(runs) < 3 and (not runs or runs[0].seconds < _REPEATED_SECONDS):
            measurement = self.measurer.run(request)
            if measurement is None:
                return None
            runs.append(measurement)
        return sorted(runs, key=lambda run: run.peak_bytes)[len(runs) // 2]

    def candidate(self, size: int) -> Candidate:
        """Return the candidate with micro-batches of a size."""
        peaks = {p.micro_batch: p.peak_bytes for p in self.points if p.length == self.space.longest}
        return Candidate(
            plan=self.space.plan(size, self.saving),
            predicted_peak_bytes=self._predicted(size),
            # Memory is measured with accumulators.
            measured_peak_bytes=peaks.get(size) if self._accumulates(size) else None,
            examples_per_second=self.rates.get(size),
            fits=self._fits(size),
        )

    def _accumulates(self, size: int) -> bool:
        return self.space.accumulates(self.space.plan(size, self.saving))

    def _predicted(self, size: int) -> float:
        cost = self.cost
        if not self._accumulates(size):
            # `update_bytes` stays the same: instead of the accumulators, the optimizer step needs
            # the gradients.
            static = cost.static_bytes - self.space.accumulator_bytes
            cost = dataclasses.replace(cost, static_bytes=static)
        return cost.peak_bytes(size, self.space.longest)

    def _fits(self, size: int) -> bool:
        # Ignore a failed measurement of the whole window: memory is measured with accumulators, but
        # the whole window runs without them.
        failed = size >= self.too_large and self._accumulates(size)
        return self._predicted(size) <= self.space.usable_bytes and not failed

    def _fitting(self) -> list[int]:
        return [size for size in self.space.sizes if self._fits(size)]

    # --- Prices ---------------------------------------------------------------------

    def measure_prices(self) -> None:
        """Fit the prices of micro-steps to the times of those whose memory was measured."""
        short = [[(1, _SHORT)]] * (1 + _SHORT_STEPS)
        measurement = self._median_run(MeasurementRequest(short, *self.saving))
        if measurement is not None:
            step = max(measurement.seconds - self.update_seconds, 0.0) / _SHORT_STEPS
            self.prices = fit_prices(step, self.passage_seconds, PRICES)[0]

    # --- Speed ----------------------------------------------------------------------

    def measure_speeds(self) -> None:
        """Time the largest sizes that fit, then sizes around the best, then the best two again."""
        self._time_large_sizes()
        self._time_each(self._around_best())
        self._time_each(self._around_best())
        self._time_each(self._by_rate()[:2])

    def _time_large_sizes(self) -> None:
        """Time ever smaller sizes, until one is clearly slower than the best."""
        fitting = self._fitting()
        size = max(fitting, default=None)
        while size is not None and self.spent_seconds < self.space.speed_seconds:
            self._time(size)
            if len(self.rates) >= 2 and self.rates[size] < 0.9 * max(self.rates.values()):
                break
            size = max((s for s in fitting if s <= 0.6 * size), default=None)

    def _around_best(self) -> list[int]:
        """Return sizes near the best one: halfway to its neighbors, and a power of two.

        The neighbors are the nearest sizes already timed. The nearest power of two may be faster,
        because hardware often computes in blocks of such sizes.
        """
        if not self.rates:
            return []
        fitting, best = self._fitting(), self._by_rate()[0]
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

    def _time_each(self, sizes: Iterable[int]) -> None:
        for size in sizes:
            if self.spent_seconds < self.space.speed_seconds:
                self._time(size)

    def _time(self, size: int) -> None:
        """Time a representative part of a window, and add the speed to `rates`."""
        shapes = self.space.typical
        cut = split_typical(self.space, size, self.saving, self.prices)
        examples = len(shapes) / len(cut)
        affordable = self.space.speed_seconds / 4 / (self.example_seconds * examples)
        steps = min(max(round(affordable), 1), len(cut))
        chosen = [cut[int((i + 0.5) * len(cut) / steps)] for i in range(steps)]
        measurement = self.measurer.run(MeasurementRequest(chosen, *self.saving))
        if measurement is None:
            self.rates.setdefault(size, 0.0)
            return
        # The optimizer step counts once per window, whatever part of the window was timed.
        share = _padded(chosen) / _padded(cut)
        seconds = max(measurement.seconds - self.update_seconds, 1e-6) / share + self.update_seconds
        self.rates[size] = max(self.rates.get(size, 0.0), len(shapes) / seconds)
        self.spent_seconds += measurement.seconds


def _padded(micro_batches: Sequence[Sequence[Shape]]) -> int:
    """Return the number of tokens in micro-batches, including padding."""
    numbers = (zip(*shapes, strict=True) for shapes in micro_batches)
    return sum(sum(passages) * max(lengths) for passages, lengths in numbers)


def verify_best(
    result: SearchResult, measurer: StepMeasurer, space: SearchSpace
) -> tuple[Candidate, Measurement] | None:
    """Return the best candidate whose real update fits, and its measurement; None if none fits.

    Candidates that ran out of memory, and those predicted to need at least as much memory, are
    marked as not fitting in `result`. The measurer must have no more memory than the limit.
    """
    failed = math.inf
    for candidate in result.best_first():
        if candidate.predicted_peak_bytes >= failed:
            continue
        plan = candidate.plan
        window = [[space.largest] * plan.micro_batch] * min(plan.accumulation_steps, 2)
        accumulate = space.accumulates(plan)
        request = MeasurementRequest(window, *plan.saving, accumulate, thorough=True)
        measurement = measurer.run(request)
        if measurement is not None:
            return candidate, measurement
        failed = candidate.predicted_peak_bytes
        result.candidates = [
            dataclasses.replace(c, fits=c.fits and c.predicted_peak_bytes < failed)
            for c in result.candidates
        ]
    return None
