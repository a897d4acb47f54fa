"""The few shapes to which all micro-batches of a run are padded, because each must be compiled.

More shapes need less padding, but each takes seconds to compile. `choose_shapes` finds the number
that makes a run shortest, from the shapes of the examples in some of its windows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bertaccum.data.window_cuts import Cut, Prices, Shapes, cut_by_count, earliest_starts, fitting

MAX_SHAPES = 8
# Limits that keep the search at a second or two: the examples of all windows times the candidates,
# the examples of one window, and the number of lengths among the candidates.
_WORK, _WINDOW_EXAMPLES, _LENGTHS = 2**19, 256, 32
# In larger windows, this fraction of a micro-batch counts as one example.
_GROUP = 1 / 8
# How often the search tries to exchange each of the chosen shapes.
_PASSES = 4
# Other searches start from the best sets for micro-steps without these parts of their fixed cost.
_DISCOUNTS = (0.7, 0.9)


def choose_shapes(
    windows: Sequence[np.ndarray],
    micro_batch: int,
    largest: tuple[int, int],
    prices: Prices,
    compile_tokens: float,
    updates: int,
    cut: str = "cost",
    multiple: int = 1,
) -> tuple[tuple[int, int], ...]:
    """Return the shapes of micro-batches, the shortest first, that make a run shortest.

    The expected cost of a run is the time to compile its shapes, and for each update the mean cost
    of the windows. The search adds the best shape to those found so far, up to `MAX_SHAPES`, then
    exchanges single shapes as long as this lowers the cost of the windows, each of which is cut at
    the lowest cost. It starts several times, as if micro-steps were cheaper, because exchanges of
    single shapes hardly change the number of micro-steps. The shapes of a number therefore do not
    depend on `updates`, and a longer run never has more expensive windows. The result depends only
    on the arguments.

    Args:
      windows: For some windows of the run, or replicas' shares of them, the shapes of their
        examples, [examples, 2], in ascending order.
      micro_batch: Number of the largest examples that fit in memory.
      largest: Shape of the largest example of the data set. One of the shapes holds it, and no
        shape has more tokens than `micro_batch` of these.
      compile_tokens: Time to compile a shape, in the unit of `prices`.
      multiple: Number of which the lengths are multiples, unless they are the greatest length.
    """
    required, max_tokens = largest, micro_batch * math.prod(largest)
    if cut == "count":
        group, required = micro_batch, (micro_batch * largest[0], largest[1])
    else:
        excess = math.ceil(max(map(len, windows)) / _WINDOW_EXAMPLES)
        group = max(min(int(micro_batch * _GROUP), excess), 1)
    grouped = [_grouped(window, group) for window in windows if len(window)]
    candidates = _candidates(grouped, required, max_tokens, multiple)
    holds = np.all(candidates >= required, axis=1)
    sample = _Sample.of(grouped, candidates, holds, prices, cut)
    best, lowest = np.empty(0, int), np.inf
    for chosen, cost in _search(candidates, sample, prices.step_tokens):
        if (total := len(chosen) * compile_tokens + updates * cost) < lowest:
            best, lowest = chosen, total
    found = {(int(rows), int(length)) for rows, length in candidates[best]}
    return tuple(sorted(found, key=lambda shape: shape[::-1]))


def real_share(
    windows: Sequence[np.ndarray],
    tokens: int,
    micro_batch: int,
    cut: Cut,
    allowed: Shapes,
    prices: Prices,
) -> float:
    """Return the share of tokens in padded micro-batches that are not padding.

    Args:
      tokens: Number of tokens in these windows without padding.
    """
    padded = (fitting(w, cut(w, micro_batch), allowed, prices) for w in windows)
    return tokens / sum(int(shapes.prod(axis=1).sum()) for shapes in padded)


def _grouped(window: np.ndarray, group: int) -> np.ndarray:
    """Return the passages and the greatest length of every `group` examples, [groups, 2]."""
    starts = cut_by_count(window, group)[:-1]
    ends = np.append(starts[1:], len(window))
    return np.stack([np.add.reduceat(window[:, 0], starts), window[ends - 1, 1]], axis=1)


def _candidates(
    windows: Sequence[np.ndarray], required: tuple[int, int], max_tokens: int, multiple: int
) -> np.ndarray:
    """Return the shapes to choose from, [candidates, 2]."""
    # The lengths are evenly spaced among those that occur. The numbers of rows are up to 16, four
    # in each octave above, and the greatest one that fits in memory.
    lengths = np.sort(np.concatenate([window[:, 1] for window in windows]))
    lengths = np.unique(np.minimum(-(-lengths // multiple) * multiple, required[1]))
    spaced = np.linspace(0, len(lengths) - 1, min(_LENGTHS, len(lengths))).round().astype(int)
    max_rows = max(required[0], *(int(window[:, 0].sum()) for window in windows))
    rows = {*range(1, 17), *(round(2 ** (n / 4)) for n in range(16, 4 * max_rows.bit_length()))}
    found = {required} | {
        (own, int(length))
        for length in [*lengths[spaced], required[1]]
        for own in rows | {min(max_tokens // int(length), max_rows)}
        if own <= max_rows and own * length <= max_tokens
    }
    return np.array(sorted(found))


@dataclass(frozen=True)
class _Sample:
    """Some windows, all of which are cut at once."""

    # For each last example of a micro-batch and each candidate, the index of the first example in
    # the flat costs [(examples + 1) * windows], [examples, candidates, windows].
    starts: np.ndarray
    steps: np.ndarray  # Price of a micro-step of each candidate, [candidates].
    # Whether a candidate holds the largest micro-batch that may occur, [candidates].
    holds: np.ndarray
    scale: float  # Examples of a window for each one in the sample.

    @classmethod
    def of(
        cls,
        windows: Sequence[np.ndarray],
        candidates: np.ndarray,
        holds: np.ndarray,
        prices: Prices,
        cut: str,
    ) -> _Sample:
        """Return as many of the windows as the limits allow."""
        stride = math.ceil(max(map(len, windows)) / _WINDOW_EXAMPLES)
        thinned = [window[::-1][::stride][::-1] for window in windows]
        most = max(map(len, thinned))
        thinned = thinned[: max(_WORK // (len(candidates) * most), 1)]
        # Examples without passages in front of short windows do not belong to any micro-batch.
        filled = [np.pad(window, ((most - len(window), 0), (0, 0))) for window in thinned]
        starts = np.stack([earliest_starts(window, candidates) for window in filled], axis=2)
        if cut == "count":  # Each micro-batch stays as it is.
            starts = np.maximum(starts, np.arange(most)[:, None, None])
        return cls(
            starts * len(filled) + np.arange(len(filled)),
            prices.micro_step(*candidates.T),
            holds,
            sum(map(len, windows[: len(thinned)])) / sum(map(len, thinned)),
        )

    def mean_costs(self, sets: np.ndarray) -> np.ndarray:
        """Return the mean cost of the windows for each set of candidates."""
        examples, _, windows = self.starts.shape
        costs = np.full((len(sets), examples + 1, windows), np.inf)
        costs[:, 0] = 0.0
        flat, steps = costs.reshape(-1), self.steps[sets][:, :, None]
        own = np.arange(len(sets))[:, None, None] * (examples + 1) * windows
        for end, starts in enumerate(self.starts, 1):
            costs[:, end] = (flat[starts[sets] + own] + steps).min(axis=1)
        means = costs[:, -1].mean(axis=1) * self.scale
        return np.where(self.holds[sets].any(axis=1), means, np.inf)


def _search(
    candidates: np.ndarray, sample: _Sample, step_tokens: float
) -> Iterator[tuple[np.ndarray, float]]:
    """Yield the best sets found of 1 to `MAX_SHAPES` candidates, and the mean cost of a window."""

    def best(
        chosen: np.ndarray, place: int, others: np.ndarray, sample: _Sample
    ) -> tuple[np.ndarray, float]:
        sets = np.tile(chosen, (len(others), 1))
        sets[:, place] = others
        costs = sample.mean_costs(sets)
        return sets[costs.argmin()], float(costs.min())

    def improved(chosen: np.ndarray, sample: _Sample) -> tuple[np.ndarray, float]:
        cost = np.inf
        for _ in range(_PASSES):
            before = cost
            for place in range(len(chosen)):
                near = (candidates == candidates[chosen[place]]).any(axis=1)
                chosen, cost = best(chosen, place, np.flatnonzero(near), sample)
            if cost == before:
                break
        return chosen, cost

    every = np.arange(len(candidates))
    cheaper = (sample.steps - part * step_tokens for part in _DISCOUNTS)
    samples = [sample, *(dataclasses.replace(sample, steps=steps) for steps in cheaper)]
    sets = [np.empty(0, int) for _ in samples]
    for size in range(1, MAX_SHAPES + 1):
        grown = [
            best(np.append(chosen, 0), size - 1, every, own)[0]
            for chosen, own in zip(sets, samples, strict=True)
        ]
        first, *others = map(improved, grown, samples)
        sets = [first[0], *(chosen for chosen, _ in others)]
        found = [first, *(improved(chosen, sample) for chosen, _ in others)]
        yield min(found, key=lambda one: one[1])
