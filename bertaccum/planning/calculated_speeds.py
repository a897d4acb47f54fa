"""Speeds of micro-batch sizes on a GPU that is not in this machine."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from bertaccum.data.window_cuts import PRICES, Prices, make_cut
from bertaccum.planning.cost import fit_prices
from bertaccum.planning.measurement import MeasurementRequest
from bertaccum.planning.plan import Saving, SearchSpace, Shape

# A function that returns the time of an update in seconds, such as
# `CalculatedTime.update_seconds`.
UpdateTimer: TypeAlias = Callable[[MeasurementRequest], float]

# Prices are fitted to micro-batches of this many examples, and of one example that is this short.
_EXAMPLES, _SHORT = 8, 8


class Speeds(NamedTuple):
    """The speeds of one way to save memory.

    Args:
      prices: Prices of micro-steps.
      rates: Examples per second, by micro-batch size.
      compiled_rates: The same for compiled steps.
    """

    prices: Prices
    rates: dict[int, float]
    compiled_rates: dict[int, float]


def calculated_speeds(timer: UpdateTimer, space: SearchSpace, saving: Saving) -> Speeds:
    """Return the speeds of all sizes, whether they fit in memory or not."""
    passages, longest = space.largest

    def seconds(*micro_batches: list[Shape]) -> float:
        return timer(MeasurementRequest(micro_batches, *saving))

    short, rows = [(1, _SHORT)], _EXAMPLES * passages
    update = seconds(short)
    # A step that only waits for the host takes no time for its tokens.
    times = {
        n: max(seconds([(rows, n)]) - update, 1e-9) / rows
        for n in {longest, max(longest // 2, _SHORT)}
    }
    prices, _ = fit_prices(seconds(short, short) - update, times, PRICES)
    found = Speeds(prices, {}, {})
    examples = len(space.typical)
    for size in space.sizes:
        split = split_typical(space, size, saving, prices)
        accumulates = space.accumulates(space.plan(size, saving))
        request = MeasurementRequest(split, *saving, accumulates)
        # Few shapes are compiled, so assume the most padding.
        padded = [(size * passages, longest)] * math.ceil(examples / size)
        found.rates[size] = examples / timer(request)
        compiled = dataclasses.replace(request, padded=padded)
        found.compiled_rates[size] = examples / timer(compiled)
    return found


def split_typical(
    space: SearchSpace, size: int, saving: Saving, prices: Prices
) -> list[list[Shape]]:
    """Return how a typical window is split into micro-batches of a size."""
    shapes = space.typical
    # Without accumulators, the window must stay a single micro-batch.
    kind = space.cut if space.accumulates(space.plan(size, saving)) else "count"
    starts = make_cut(kind, space.largest, prices)(np.array(shapes), size)
    return [shapes[a:b] for a, b in itertools.pairwise(starts)]
