"""Splitting of windows into micro-batches, either of equal size or at the lowest cost.

Every passage is padded to the length of the longest one in its micro-batch, so short examples
should not share a micro-batch with long ones. However, each micro-step also has a fixed cost.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

# A function of the shapes of examples, [examples, 2] (the number of passages, and the tokens of the
# longest one) in ascending order, and the micro-batch size. It returns the start of each
# micro-batch, and the end of the last one, [micro_steps + 1].
Cut: TypeAlias = Callable[[np.ndarray, int], np.ndarray]

# The rows and the length of padded micro-batches.
Shapes: TypeAlias = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Prices:
    """Costs of micro-steps. The unit is the time that the dense layers need for one token."""

    # Fixed cost of a micro-step. Each micro-step adds gradients to the accumulators and starts
    # hundreds of operations. In `python benchmarks/speed.py price`, 150 is the fastest value in
    # float32, and close to the fastest in bfloat16.
    step_tokens: float = 150.0
    # Cost of a token's attention to one other token. Counting multiplications gives 4 h / 24 h**2
    # for hidden size h, but the softmax takes longer than its share of the operations. `python
    # benchmarks/speed.py cuts` also measures this value.
    attention: float = 1 / 2700

    def micro_step(self, rows: Any, length: Any) -> Any:
        """Return the cost of a micro-step, given its rows and length as numbers or arrays."""
        return self.step_tokens + rows * length * (1 + length * self.attention)


# The prices if none are measured on the device.
PRICES = Prices()


def make_cut(
    kind: str, largest: tuple[int, int], prices: Prices = PRICES, allowed: Shapes = ()
) -> Cut:
    """Return the `Cut` that the option `cut` selects, within the `allowed` shapes if any."""
    if kind == "count":
        return cut_by_count
    if allowed:
        return functools.partial(cut_to_shapes, allowed=allowed, prices=prices)
    return functools.partial(cut_by_cost, largest=largest, prices=prices)


def cut_by_count(shapes: np.ndarray, micro_batch: int) -> np.ndarray:
    """Split a window into micro-batches of `micro_batch` examples; see `Cut`.

    The last micro-batch may have fewer examples.
    """
    return np.append(np.arange(0, len(shapes), micro_batch), len(shapes))


def cut_by_cost(
    shapes: np.ndarray, micro_batch: int, largest: tuple[int, int], prices: Prices = PRICES
) -> np.ndarray:
    """Split a window at the lowest cost, with no more memory than `cut_by_count` needs; see `Cut`.

    Args:
      largest: Shape of the largest example. A micro-batch gets at most as many tokens, including
        padding, as `micro_batch` of these. Since the memory of attention is quadratic in the
        length, micro-batches of shorter passages need less memory.
    """
    examples, max_tokens = len(shapes), micro_batch * math.prod(largest)
    passages = np.concatenate([[0], np.cumsum(shapes[:, 0], dtype=np.int64)])
    # For the first n examples: the lowest cost, and the start of the last micro-batch.
    cost, start = np.zeros(examples + 1), np.zeros(examples + 1, int)
    for end in range(1, examples + 1):
        length = int(shapes[end - 1, 1])
        first = np.searchsorted(passages, passages[end] - max_tokens // length)
        starts = np.arange(min(first, end - 1), end)
        costs = cost[starts] + prices.micro_step(passages[end] - passages[starts], length)
        best = int(np.argmin(costs))
        cost[end], start[end] = costs[best], starts[best]
    return _cuts(start)


def cut_to_shapes(
    shapes: np.ndarray, micro_batch: int, allowed: Shapes, prices: Prices
) -> np.ndarray:
    """Split a window at the lowest cost into micro-batches of allowed shapes; see `Cut`.

    Args:
      micro_batch: Not used, because every allowed shape must fit in memory.

    Raises:
      ValueError: An example is larger than all allowed shapes.
    """
    starts = earliest_starts(shapes, np.array(allowed))
    steps = np.array([prices.micro_step(*shape) for shape in allowed])
    # As in `cut_by_cost`. Fewer examples never cost more, so micro-batches start early.
    cost, start = np.append(0.0, np.full(len(shapes), np.inf)), np.zeros(len(shapes) + 1, int)
    for end, own in enumerate(starts, 1):
        costs = cost[own] + steps
        best = costs.argmin()
        cost[end], start[end] = costs[best], own[best]
    if np.isinf(cost[-1]):
        raise ValueError(f"no shape of {list(allowed)} holds every example of the window")
    return _cuts(start)


def earliest_starts(shapes: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return the earliest start of a micro-batch that ends with a given example.

    Returns:
      For each last example and each shape, the first example, [examples, shapes]. If the last
        example does not fit, the micro-batch is empty: it starts where it ends.
    """
    passages = np.append(0, shapes[:, 0].cumsum(dtype=np.int64))
    starts = passages.searchsorted(passages[1:, None] - allowed[:, 0])
    ends = np.arange(1, len(shapes) + 1)[:, None]
    return np.where((shapes[:, None] <= allowed).all(axis=2), starts, ends)


def least_shapes(shapes: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Return the passages of each micro-batch and their greatest length, [micro_steps, 2] int32."""
    rows = np.add.reduceat(shapes[:, 0], cuts[:-1])
    lengths = np.maximum.reduceat(shapes[:, 1], cuts[:-1])
    return np.stack([rows, lengths], axis=1).astype(np.int32)


def fitting(shapes: np.ndarray, cuts: np.ndarray, allowed: Shapes, prices: Prices) -> np.ndarray:
    """Return the cheapest allowed shape for each micro-batch, [micro_steps, 2] int32.

    Raises:
      ValueError: No allowed shape holds a micro-batch.
    """
    by_cost = np.array(sorted(allowed, key=lambda shape: prices.micro_step(*shape)), np.int32)
    fits = np.all(least_shapes(shapes, cuts)[:, None] <= by_cost, axis=2)
    if not np.all(fits.any(axis=1)):
        raise ValueError(f"no shape of {list(allowed)} holds every micro-batch of the window")
    return by_cost[fits.argmax(axis=1)]


def _cuts(start: np.ndarray) -> np.ndarray:
    """Return the cuts of a window, given the start of the micro-batch that has each end."""
    cuts = [len(start) - 1]
    while cuts[-1]:
        cuts.append(int(start[cuts[-1]]))
    return np.array(cuts[::-1])
