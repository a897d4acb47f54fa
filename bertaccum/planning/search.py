"""Finding the fastest way to run a window that fits: what to measure, and what to take.

Nothing here knows TensorFlow: a `StepMeasurer` runs trials and says what they took.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bertaccum.data.window_cuts import make_cut
from bertaccum.planning.batch_plan import BatchPlan, make_plan
from bertaccum.planning.measurement import Measurement, MeasurementRequest, StepMeasurer
from bertaccum.planning.memory_cost import MemoryCost, MemoryPoint, fit_cost

# Of the memory, left for what fragmentation, evaluation and checkpoints may take.
MARGIN = 0.04
# Speeds so close are the same, on machines that are never quite still; the smaller one is taken.
_SAME_SPEED = 0.98
# More examples at once must be so much faster for recomputation, a forward pass more, to pay.
_RECOMPUTATION_COSTS = 1.1
# What adding up gradients over replicas takes, in their own size: what is sent and what comes
# back. MemoryPoint with two workers: 2.05 to 2.5, and the same for micro-batches of 1, 2 and 4.
_EXCHANGED = 2.5
# What a single measurement of memory may take: one that is needed, and one that makes the
# others, which scatter by a percent or two, surer.
_MOST_SECONDS, _CHEAP_SECONDS = 8.0, 2.0
# Tokens of an example that takes next to nothing: what remains is the update's own peak.
_SHORT = 8


@dataclass(frozen=True)
class SearchSpace:
    """What is to be planned.

    Args:
      target_batch: examples in an update.
      sizes: micro-batches that may be chosen, small ones first.
      recompute: the kinds of recomputation that may be chosen, the fastest first.
      longest: tokens of the longest example; memory must hold micro-batches of these.
      windows: lengths of the examples of some windows, each in ascending order.
      limit_bytes: the device's memory.
      resting_bytes: in use between updates, accumulators included.
      accumulator_bytes: of these, what a window of one micro-batch goes without.
      cut: how windows are cut, `cost` or `count`.
      shared: windows are a replica's share, which is accumulated even in one micro-batch.
      speed_seconds: about how long speeds may be measured, for each kind.
    """

    target_batch: int
    sizes: list[int]
    recompute: list[str]
    longest: int
    windows: list[list[int]]
    limit_bytes: float
    resting_bytes: float
    accumulator_bytes: float
    cut: str = "count"
    shared: bool = False
    speed_seconds: float = 6.0

    def alone(self, size: int) -> bool:
        """Whether a micro-batch is the whole window, which goes without accumulators."""
        return size >= self.target_batch and not self.shared

    @functools.cached_property
    def typical(self) -> list[int]:
        """The lengths of a window that is like all of them together."""
        lengths = sorted(itertools.chain.from_iterable(self.windows))
        return lengths[len(self.windows) // 2 :: len(self.windows)]

    @property
    def exchange_bytes(self) -> float:
        """The peak while replicas add up their gradients, which is not measured."""
        if not self.shared:
            return 0.0
        return self.resting_bytes + _EXCHANGED * self.accumulator_bytes

    @property
    def usable_bytes(self) -> float:
        """The limit less its margin."""
        return self.limit_bytes * (1 - MARGIN)


@dataclass(frozen=True)
class Candidate:
    """One way to run a window.

    Args:
      plan: how it is cut.
      predicted_peak_bytes: by the fitted cost, at the longest sequence.
      measured_peak_bytes: the same, measured; None where it was not.
      examples_per_second: measured on the windows; None where it was not.
      fits: the predicted peak is within the memory, margin included.
    """

    plan: BatchPlan
    predicted_peak_bytes: float
    measured_peak_bytes: float | None
    examples_per_second: float | None
    fits: bool


@dataclass
class SearchResult:
    """All that was found out: the candidates and each kind's cost."""

    candidates: list[Candidate] = field(default_factory=list)
    costs: dict[str, MemoryCost] = field(default_factory=dict)

    def best_first(self) -> list[Candidate]:
        """Those that fit and were timed, the one to take first."""
        timed = [c for c in self.candidates if c.fits and c.examples_per_second]
        if not timed:
            return []
        best = max(rate(c) for c in timed)
        alike = [c for c in timed if rate(c) >= _SAME_SPEED * best]
        first = min(alike, key=lambda c: c.predicted_peak_bytes)
        return [first, *sorted((c for c in timed if c is not first), key=rate, reverse=True)]


def rate(candidate: Candidate) -> float:
    """Examples per second; 0 if it was not measured."""
    return candidate.examples_per_second or 0.0


def search(measurer: StepMeasurer, task: SearchSpace) -> SearchResult:
    """Measures, kind by kind; stops when slower kinds can bring nothing more."""
    found = SearchResult()
    for kind in task.recompute:
        search = _Search(measurer, task, kind)
        found.candidates += search.candidates()
        if search.cost is not None:
            found.costs[kind] = search.cost
        if search.nothing_to_gain():
            break
    return found


class _Search:
    """The search among micro-batches, with one kind of recomputation."""

    def __init__(self, measurer: StepMeasurer, task: SearchSpace, recompute: str) -> None:
        self.measurer, self.task, self.recompute = measurer, task, recompute
        self.points: list[MemoryPoint] = []
        # The least that ran out of memory, of the longest examples.
        self.too_large = math.inf
        self.update_seconds = 0.0
        self.example_seconds = 0.0
        self.cost = self._measure_cost()
        self.rates: dict[int, float] = {}
        if self.cost is not None:
            self._measure_speeds()

    def candidates(self) -> list[Candidate]:
        return [] if self.cost is None else [self._candidate(size) for size in self.task.sizes]

    def nothing_to_gain(self) -> bool:
        """Whether a kind that takes less memory and more time can be passed over."""
        fitting = self._fitting()
        if not fitting:
            return False
        if fitting[-1] == self.task.sizes[-1]:
            return True
        timed = sorted(size for size, rate in self.rates.items() if rate)
        if len(timed) < 2:
            return False
        largest = timed[-1]
        smaller = max((s for s in timed if s <= 0.7 * largest), default=timed[0])
        return self.rates[largest] < _RECOMPUTATION_COSTS * self.rates[smaller]

    # --- Memory ---------------------------------------------------------------------

    def _measure_cost(self) -> MemoryCost | None:
        """Doubles the micro-batch until examples weigh clearly more than the update.

        Until they weigh as much as it does, where that takes no time.
        """
        short = MeasurementRequest([[_SHORT]], self.recompute)
        self.measurer.run(short)  # It is traced.
        measurement = self.measurer.run(short)
        if measurement is None:
            return None
        update_bytes, self.update_seconds = measurement.peak_bytes, measurement.seconds
        size, longest = 1, self.task.longest
        while self._measure(size, longest) and size < self.task.target_batch:
            weight = self.points[-1].peak_bytes / update_bytes
            size = min(2 * size, self.task.target_batch)
            # Of large models, examples weigh little against the update, and take long.
            seconds = _CHEAP_SECONDS if weight > 1.4 else _MOST_SECONDS
            if weight > 2 or size * self.example_seconds > seconds:
                break
        if not self.points:
            return None  # The update fits, but no example.
        if longest > 2 * _SHORT:
            self._measure(2 * self.points[-1].micro_batch, longest // 2)
        cost = fit_cost(update_bytes, self.task.resting_bytes, self.points)
        return dataclasses.replace(
            cost, update_bytes=max(cost.update_bytes, self.task.exchange_bytes)
        )

    def _measure(self, size: int, length: int) -> bool:
        measurement = self.measurer.run(MeasurementRequest([[length] * size], self.recompute))
        if measurement is None:
            if length == self.task.longest:
                self.too_large = min(size, self.too_large)
            return False
        self.points.append(MemoryPoint(size, length, measurement.peak_bytes))
        if length == self.task.longest:
            self.example_seconds = max(measurement.seconds - self.update_seconds, 1e-6) / size
        return True

    def _candidate(self, size: int) -> Candidate:
        peaks = {p.micro_batch: p.peak_bytes for p in self.points if p.length == self.task.longest}
        return Candidate(
            plan=make_plan(self.task.target_batch, size, self.recompute, self.task.cut),
            predicted_peak_bytes=self._predicted(size),
            measured_peak_bytes=None if self.task.alone(size) else peaks.get(size),
            examples_per_second=self.rates.get(size),
            fits=self._fits(size),
        )

    def _predicted(self, size: int) -> float:
        assert self.cost is not None
        cost = self.cost
        if self.task.alone(size):
            # In the update, gradients take their place.
            static = cost.static_bytes - self.task.accumulator_bytes
            cost = dataclasses.replace(cost, static_bytes=static)
        return cost.peak_bytes(size, self.task.longest)

    def _fits(self, size: int) -> bool:
        # MemoryPoint with accumulators, runs without.
        failed = size >= self.too_large and not self.task.alone(size)
        return self._predicted(size) <= self.task.usable_bytes and not failed

    def _fitting(self) -> list[int]:
        return [] if self.cost is None else [s for s in self.task.sizes if self._fits(s)]

    # --- Speed ----------------------------------------------------------------------

    def _measure_speeds(self) -> None:
        """From the largest that fits downwards, then around the best, then the best again."""
        fitting = self._fitting()
        spent, size = 0.0, fitting[-1] if fitting else None
        while size is not None and spent < self.task.speed_seconds:
            spent += self._time(size)
            if len(self.rates) >= 2 and self.rates[size] < 0.9 * max(self.rates.values()):
                break
            size = max((s for s in fitting if s <= 0.6 * size), default=None)
        for around in (self._around_best, self._around_best, self._best_two):
            for size in around(fitting):
                if spent < self.task.speed_seconds:
                    spent += self._time(size)

    def _around_best(self, fitting: list[int]) -> list[int]:
        """Half way from the best to its timed neighbours, and the power of two beside it.

        Hardware works in lanes and tiles, whose numbers are powers of two.
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

    def _best_two(self, _: list[int]) -> list[int]:
        return self._by_rate()[:2]

    def _by_rate(self) -> list[int]:
        return sorted(self.rates, key=lambda size: self.rates[size], reverse=True)

    def _time(self, size: int) -> float:
        """Times a part of a window that stands for the whole; returns the seconds it took."""
        lengths = self.task.typical
        # One micro-step has no accumulators, and stays one.
        kind = "count" if self.task.alone(size) else self.task.cut
        starts = make_cut(kind, self.task.longest)(np.array(lengths), size)
        cut = [lengths[a:b] for a, b in itertools.pairwise(starts)]
        examples = len(lengths) / len(cut)
        affordable = self.task.speed_seconds / 4 / (self.example_seconds * examples)
        steps = min(max(round(affordable), 1), len(cut))
        chosen = [cut[int((i + 0.5) * len(cut) / steps)] for i in range(steps)]
        measurement = self.measurer.run(MeasurementRequest(chosen, self.recompute))
        if measurement is None:
            self.rates.setdefault(size, 0.0)
            return 0.0
        # The update is once a window, however much of it was run.
        share = _padded(chosen) / _padded(cut)
        seconds = max(measurement.seconds - self.update_seconds, 1e-6) / share + self.update_seconds
        self.rates[size] = max(self.rates.get(size, 0.0), len(lengths) / seconds)
        return measurement.seconds


def _padded(micro_batches: Sequence[Sequence[int]]) -> int:
    """Tokens that are computed."""
    return sum(len(lengths) * max(lengths) for lengths in micro_batches)


def verified(
    found: SearchResult, measurer: StepMeasurer, task: SearchSpace
) -> tuple[Candidate, Measurement] | None:
    """The best candidate that real updates under the limit have shown to fit.

    Those that have not, and what takes as much, no longer count as fitting.

    Args:
      found: what `search` found.
      measurer: one that has no more memory than the limit.
      task: as for `search`.
    """
    failed = float("inf")
    for candidate in found.best_first():
        if candidate.predicted_peak_bytes >= failed:
            continue
        size = candidate.plan.micro_batch
        steps = min(candidate.plan.accumulation_steps, 2)
        window = [[task.longest] * size] * steps
        kind = candidate.plan.recompute
        measurement = measurer.run(
            MeasurementRequest(window, kind, accumulate=not task.alone(size), thorough=True)
        )
        if measurement is not None:
            return candidate, measurement
        failed = candidate.predicted_peak_bytes
        found.candidates = [
            dataclasses.replace(c, fits=c.fits and c.predicted_peak_bytes < failed)
            for c in found.candidates
        ]
    return None
