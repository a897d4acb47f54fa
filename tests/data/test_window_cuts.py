"""Windows are cut at the lowest cost, and micro-batches always fit into memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertaccum.data.window_cuts import cut_by_cost, cut_by_count, make_cut


def cost(lengths: np.ndarray, cuts: tuple[int, ...]) -> float:
    """Return the cost of a cut, by an independent implementation."""
    steps = itertools.pairwise(cuts)
    return sum(50 + (b - a) * lengths[b - 1] * (1 + lengths[b - 1] / 2700) for a, b in steps)


@given(st.lists(st.integers(3, 128), min_size=1, max_size=9), st.integers(1, 9))
def test_no_other_cut_is_cheaper(lengths: list[int], micro_batch: int) -> None:
    window = np.sort(np.array(lengths))
    cuts = tuple(cut_by_cost(window, micro_batch, longest=128))
    count, most = len(window), micro_batch * 128
    inner = [c for n in range(count) for c in itertools.combinations(range(1, count), n)]
    allowed = [
        (0, *c, count)
        for c in inner
        if all((b - a) * window[b - 1] <= most for a, b in itertools.pairwise((0, *c, count)))
    ]
    assert cuts in allowed
    assert cost(window, cuts) == pytest.approx(min(cost(window, c) for c in allowed))


def test_short_and_long_examples_are_separated() -> None:
    window = np.array([10] * 16 + [128] * 16)
    assert cut_by_cost(window, 8, 128).tolist() == [0, 16, 24, 32]
    assert make_cut("cost", 128)(window, 4).tolist() == [0, 16, 20, 24, 28, 32]
    assert make_cut("count", 128)(window, 12).tolist() == [0, 12, 24, 32]
    assert cut_by_count(window, 32).tolist() == [0, 32]


def test_large_windows_are_cut_quickly() -> None:
    """Cutting 4096 examples takes only a few array operations per example."""
    window = np.sort(np.random.default_rng(0).integers(3, 512, 4096))
    cuts = cut_by_cost(window, 8, 512)
    sizes = np.diff(cuts)
    assert cuts[0] == 0 and cuts[-1] == 4096 and (sizes > 0).all()
    assert (sizes * window[cuts[1:] - 1] <= 8 * 512).all()
