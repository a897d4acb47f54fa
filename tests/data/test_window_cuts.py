"""Windows are cut at the lowest cost, and micro-batches always fit into memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertaccum.data.window_cuts import cut_by_cost, cut_by_count, make_cut


def padded(window: np.ndarray, start: int, end: int) -> int:
    """Return the number of tokens of a micro-batch, including padding."""
    return int(window[start:end, 0].sum() * window[end - 1, 1])


def cost(window: np.ndarray, cuts: tuple[int, ...]) -> float:
    """Return the cost of a cut, by an independent implementation."""
    steps = itertools.pairwise(cuts)
    return sum(150 + padded(window, a, b) * (1 + window[b - 1, 1] / 2700) for a, b in steps)


# An example of several passages is longer than any that has only one.
SHAPES = st.tuples(st.just(1), st.integers(3, 128)) | st.tuples(st.integers(2, 4), st.just(128))


@given(st.lists(SHAPES, min_size=1, max_size=9), st.integers(1, 9))
def test_no_other_cut_is_cheaper(shapes: list[tuple[int, int]], micro_batch: int) -> None:
    window = np.array(sorted(shapes))
    cuts = tuple(cut_by_cost(window, micro_batch, largest=(4, 128)))
    count, most = len(window), micro_batch * 4 * 128
    inner = [c for n in range(count) for c in itertools.combinations(range(1, count), n)]
    allowed = [
        (0, *c, count)
        for c in inner
        if all(padded(window, a, b) <= most for a, b in itertools.pairwise((0, *c, count)))
    ]
    assert cuts in allowed
    assert cost(window, cuts) == pytest.approx(min(cost(window, c) for c in allowed))


def test_short_and_long_examples_are_separated() -> None:
    window = np.array([[1, 10]] * 16 + [[1, 128]] * 16)
    assert cut_by_cost(window, 8, (1, 128)).tolist() == [0, 16, 24, 32]
    assert make_cut("cost", (1, 128))(window, 4).tolist() == [0, 16, 20, 24, 28, 32]
    assert make_cut("count", (1, 128))(window, 12).tolist() == [0, 12, 24, 32]
    assert cut_by_count(window, 32).tolist() == [0, 32]


def test_large_windows_are_cut_quickly() -> None:
    """Cutting 4096 examples takes only a few array operations per example."""
    lengths = np.sort(np.random.default_rng(0).integers(3, 512, 4096))
    cuts = cut_by_cost(np.stack([np.ones_like(lengths), lengths], axis=1), 8, (1, 512))
    sizes = np.diff(cuts)
    assert cuts[0] == 0 and cuts[-1] == 4096 and (sizes > 0).all()
    assert (sizes * lengths[cuts[1:] - 1] <= 8 * 512).all()


def test_example_with_many_windows_costs_as_much_as_their_sum() -> None:
    window = np.array([[1, 128]] * 8 + [[4, 128]] * 2)
    assert cut_by_cost(window, 2, (4, 128)).tolist() == [0, 8, 10]
    assert cut_by_cost(window, 1, (4, 128)).tolist() == [0, 4, 8, 9, 10]
