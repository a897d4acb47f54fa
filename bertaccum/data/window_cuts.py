"""Splitting of windows into micro-batches, either of equal size or at the lowest cost.

Every passage is padded to the length of the longest one in its micro-batch, so short examples
should not share a micro-batch with long ones. However, each micro-step also has a fixed cost.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

# A function of the shapes of examples, [examples, 2] (the number of passages, and the tokens of the
# longest one) in ascending order, and the micro-batch size. It returns the start of each
# micro-batch, and the end of the last one, [micro_steps + 1].
Cut: TypeAlias = Callable[[np.ndarray, int], np.ndarray]

# Fixed cost of a micro-step, in tokens. Each micro-step adds gradients to the accumulators and
# starts hundreds of operations. In `python benchmarks/speed.py price`, 150 is the fastest value in
# float32, and close to the fastest in bfloat16.
_STEP_TOKENS = 150.0
# Cost of a token's attention to one other token, relative to the cost of its dense layers. Counting
# multiplications gives 4 h / 24 h**2 for hidden size h, but the softmax takes longer than its share
# of the operations. `python benchmarks/speed.py cuts` also measures this value.
_ATTENTION = 1 / 2700


def make_cut(kind: str, largest: tuple[int, int]) -> Cut:
    """Return the `Cut` that the option `cut` selects, given the shape of the largest example."""
    return functools.partial(cut_by_cost, largest=largest) if kind == "cost" else cut_by_count


def cut_by_count(shapes: np.ndarray, micro_batch: int) -> np.ndarray:
    """Split a window into micro-batches of `micro_batch` examples; see `Cut`.

    The last micro-batch may have fewer examples.
    """
    return np.append(np.arange(0, len(shapes), micro_batch), len(shapes))


def cut_by_cost(shapes: np.ndarray, micro_batch: int, largest: tuple[int, int]) -> np.ndarray:
    """Split a window at the lowest cost, with no more memory than `cut_by_count` needs; see `Cut`.

    Args:
      shapes: Number of passages of each example, and tokens of the longest one, [examples, 2], in
        ascending order.
      micro_batch: Number of the largest examples that fit in memory.
      largest: Shape of the largest example. A micro-batch gets at most as many tokens, including
        padding, as `micro_batch` of these. Since the memory of attention is quadratic in the
        length, micro-batches of shorter passages need less memory.

    Returns:
      The start of each micro-batch, and the end of the last one, [micro_steps + 1].
    """
    examples, most_tokens = len(shapes), micro_batch * math.prod(largest)
    passages = np.concatenate([[0], np.cumsum(shapes[:, 0], dtype=np.int64)])
    # For the first n examples: the lowest cost, and the start of the last micro-batch.
    cost, start = np.zeros(examples + 1), np.zeros(examples + 1, int)
    for end in range(1, examples + 1):
        length = int(shapes[end - 1, 1])
        first = np.searchsorted(passages, passages[end] - most_tokens // length)
        starts = np.arange(min(first, end - 1), end)
        tokens = (passages[end] - passages[starts]) * length
        costs = cost[starts] + _STEP_TOKENS + tokens * (1 + length * _ATTENTION)
        best = int(np.argmin(costs))
        cost[end], start[end] = costs[best], starts[best]
    cuts = [examples]
    while cuts[-1]:
        cuts.append(int(start[cuts[-1]]))
    return np.array(cuts[::-1])
