"""Where a window is cut: into equal counts, or where it costs the least.

Padding goes to the longest of a micro-batch, so that short examples should not be with long
ones; but each micro-step has a price of its own, whatever is in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

# From lengths [examples] in ascending order, and the micro-batch, to [micro_steps + 1]: where
# micro-batches start, and the end.
Cut: TypeAlias = Callable[[np.ndarray, int], np.ndarray]

# What a micro-step costs besides its tokens, in tokens: gradients are added to the sums, and
# some hundred operations are started. MemoryPoint by `python benchmarks/speed.py cuts`: 44.
_STEP_TOKENS = 50.0
# A token's attention to one other against its dense layers: 4 h to 24 h**2 multiplications,
# and the softmax between them, which is slower than its count. From the same measurement.
_ATTENTION = 1 / 2700


def make_cut(kind: str, longest: int) -> Cut:
    """The function that `cut` means, for examples of at most `longest` tokens."""
    return functools.partial(cut_by_cost, longest=longest) if kind == "cost" else cut_by_count


def cut_by_count(lengths: np.ndarray, micro_batch: int) -> np.ndarray:
    """A `Cut` into micro-batches of so many examples each."""
    return np.append(np.arange(0, len(lengths), micro_batch), len(lengths))


def cut_by_cost(lengths: np.ndarray, micro_batch: int, longest: int) -> np.ndarray:
    """The cheapest `Cut` that takes no more memory than that by count.

    Args:
      lengths: [examples] tokens of each, in ascending order.
      micro_batch: examples of the longest kind that memory holds.
      longest: tokens of these. No micro-batch gets more than `micro_batch * longest`, padding
        included; with attention's quadratic part, shorter ones then take less.

    Returns:
      [micro_steps + 1].
    """
    examples, most_tokens = len(lengths), micro_batch * longest
    # Of the first so many examples: the least cost, and where the last micro-batch starts.
    cost, start = np.zeros(examples + 1), np.zeros(examples + 1, int)
    for end in range(1, examples + 1):
        length = int(lengths[end - 1])
        starts = np.arange(max(end - max(most_tokens // length, 1), 0), end)
        tokens = (end - starts) * length
        costs = cost[starts] + _STEP_TOKENS + tokens * (1 + length * _ATTENTION)
        best = int(np.argmin(costs))
        cost[end], start[end] = costs[best], starts[best]
    cuts = [examples]
    while cuts[-1]:
        cuts.append(int(start[cuts[-1]]))
    return np.array(cuts[::-1])
