"""A few shapes hold all micro-batches of a run, at the lowest cost of compiling and padding."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertaccum.data.token_store import TokenStore
from bertaccum.data.window_cuts import PRICES, Prices, cut_to_shapes, fitting, make_cut
from bertaccum.data.window_shapes import MAX_SHAPES, choose_shapes, real_share
from bertaccum.data.windows import make_window

Allowed = tuple[tuple[int, int], ...]

# Examples of several passages are longer than all others, as in a token store.
EXAMPLE = st.tuples(st.just(1), st.integers(3, 64)) | st.tuples(st.integers(2, 3), st.just(64))
WINDOW = st.lists(EXAMPLE, min_size=1, max_size=7).map(lambda shapes: np.array(sorted(shapes)))
SHAPES = st.lists(st.tuples(st.integers(1, 6), st.integers(8, 64)), max_size=3)


def cheapest(window: np.ndarray, cuts: tuple[int, ...], allowed: Allowed) -> float:
    """Return the cost of a cut, by an independent implementation."""
    return sum(
        min(
            (
                150 + rows * length + rows * length**2 / 2700
                for rows, length in allowed
                if window[a:b, 0].sum() <= rows and window[a:b, 1].max() <= length
            ),
            default=math.inf,
        )
        for a, b in itertools.pairwise(cuts)
    )


@given(WINDOW, SHAPES)
def test_no_other_cut_is_cheaper(window: np.ndarray, shapes: list[tuple[int, int]]) -> None:
    allowed = (*shapes, (4, 64))
    cuts = cut_to_shapes(window, 1, allowed, PRICES)
    count = len(window)
    inner = [c for n in range(count) for c in itertools.combinations(range(1, count), n)]
    lowest = min(cheapest(window, (0, *c, count), allowed) for c in inner)
    assert cuts[0] == 0 and cuts[-1] == count and (np.diff(cuts) > 0).all()
    assert cheapest(window, tuple(cuts), allowed) == pytest.approx(lowest)
    padded = fitting(window, cuts, allowed, PRICES)
    assert {*map(tuple, padded.tolist())} <= {*allowed}
    assert PRICES.micro_step(*padded.T).sum() == pytest.approx(lowest)


def test_examples_without_an_allowed_shape_are_an_error() -> None:
    window = np.array([[1, 8], [1, 16], [2, 16]])
    for allowed in (((4, 15),), ((1, 64),)):
        with pytest.raises(ValueError, match="no shape of"):
            cut_to_shapes(window, 1, allowed, PRICES)
        with pytest.raises(ValueError, match="no shape of"):
            fitting(window, np.array([0, 3]), allowed, PRICES)


def windows_of(count: int, size: int, passages: int = 1, seed: int = 0) -> list[np.ndarray]:
    """Return windows of random examples, up to 128 tokens long, most of them short."""
    rng = np.random.default_rng(seed)
    rows = rng.geometric(0.6, (count, size)).clip(max=passages)
    lengths = np.where(rows > 1, 128, rng.gamma(2.0, 20.0, (count, size)).clip(3, 128)).astype(int)
    return [np.array(sorted(zip(*pair, strict=True))) for pair in zip(rows, lengths, strict=True)]


def mean_cost(windows: list[np.ndarray], size: int, cut: str, allowed: Allowed) -> float:
    split = make_cut(cut, (1, 128), PRICES, allowed)
    return float(np.mean([cheapest(w, tuple(split(w, size)), allowed) for w in windows]))


@pytest.mark.parametrize("cut", ["cost", "count"])
@pytest.mark.parametrize("passages", [1, 3])
def test_longer_runs_get_more_shapes_and_cheaper_windows(cut: str, passages: int) -> None:
    windows, largest = windows_of(12, 16, passages), (passages, 128)
    costs, counts = [], []
    for updates in (1, 1_000, 30_000, 10**9):
        arguments = (windows, 4, largest, PRICES, 1e6, updates, cut, 8)
        allowed = choose_shapes(*arguments)
        assert allowed == choose_shapes(*arguments)
        assert all(n * length <= 4 * passages * 128 and length % 8 == 0 for n, length in allowed)
        assert any(n >= passages and length == 128 for n, length in allowed)
        costs.append(mean_cost(windows, 4, cut, allowed))
        counts.append(len(allowed))
    assert costs == sorted(costs, reverse=True) and costs[-1] < 0.9 * costs[0] < math.inf
    assert counts == sorted(counts) and counts[0] == 1 < counts[2] <= counts[3] <= MAX_SHAPES


@settings(max_examples=20)
@given(st.lists(WINDOW, min_size=1, max_size=3), st.integers(1, 4), st.sampled_from((1, 8)))
def test_any_window_of_the_data_set_can_be_cut(
    windows: list[np.ndarray], micro_batch: int, multiple: int
) -> None:
    """This includes incomplete windows, and examples larger than those in the sample."""
    other = np.array([[1, 3], [1, 60], [2, 64], [3, 64]] * 4)
    for cut in ("cost", "count"):
        allowed = choose_shapes(windows, micro_batch, (3, 64), PRICES, 0.0, 10, cut, multiple)
        assert 1 <= len(allowed) <= MAX_SHAPES
        assert all(rows * length <= micro_batch * 3 * 64 for rows, length in allowed)
        for window in (*windows, other[np.lexsort(other.T[::-1])], np.array([[3, 64]])):
            cuts = make_cut(cut, (3, 64), PRICES, allowed)(window, micro_batch)
            assert len(fitting(window, cuts, allowed, PRICES)) == len(cuts) - 1


def test_search_finds_nearly_the_best_pair_of_shapes() -> None:
    windows = windows_of(6, 8, seed=1)
    found = choose_shapes(windows, 4, (1, 128), PRICES, 6e5, 10_000, multiple=16)
    assert len(found) == 2
    candidates = itertools.product(range(1, 9), range(16, 129, 16))
    others = [shape for shape in candidates if math.prod(shape) <= 512]
    pairs = [((n, 128), other) for n in range(1, 5) for other in others]
    lowest = min(mean_cost(windows, 4, "cost", pair) for pair in pairs)
    assert lowest <= mean_cost(windows, 4, "cost", found) < 1.02 * lowest


def test_search_leaves_sets_that_no_single_exchange_improves() -> None:
    windows, prices = windows_of(16, 32, seed=1), Prices(75.0)
    found = choose_shapes(windows, 8, (1, 128), prices, 0.0, 1, multiple=8)
    # The set of a search that starts only once.
    once = ((12, 32), (16, 32), (8, 48), (8, 56), (7, 80), (4, 88), (1, 128), (4, 128))

    def cost(allowed: Allowed) -> float:
        cuts = [cut_to_shapes(window, 8, allowed, prices) for window in windows]
        padded = [fitting(w, c, allowed, prices) for w, c in zip(windows, cuts, strict=True)]
        return float(sum(prices.micro_step(*shapes.T).sum() for shapes in padded))

    assert cost(found) < 0.98 * cost(once)


def test_count_needs_only_different_lengths() -> None:
    """Micro-batches that are all full have one number of rows."""
    allowed = choose_shapes(windows_of(8, 16), 4, (1, 128), PRICES, 1e4, 10_000, "count", 8)
    assert len(allowed) > 2 and {rows for rows, _ in allowed} == {4}


def test_cheap_micro_steps_need_less_padding() -> None:
    windows = windows_of(16, 32)
    tokens = int(sum(window[:, 1].sum() for window in windows))
    shares = []
    for prices in (Prices(2_000.0), Prices(150.0), Prices(5.0)):
        allowed = choose_shapes(windows, 8, (1, 128), prices, 1e4, 100_000)
        cut = make_cut("cost", (1, 128), prices, allowed)
        shares.append(real_share(windows, tokens, 8, cut, allowed, prices))
    assert shares == sorted(shares) and shares[0] < 0.65 and 0.8 < shares[-1] < 1


def test_large_windows_are_thinned() -> None:
    """The shapes of a sample are nearly as good for the whole window."""
    windows = windows_of(2, 2048)
    allowed = choose_shapes(windows, 64, (1, 128), PRICES, 1e5, 10_000, multiple=8)
    cut = make_cut("cost", (1, 128), PRICES, allowed)
    tokens = int(sum(window[:, 1].sum() for window in windows))
    assert real_share(windows, tokens, 64, cut, allowed, PRICES) > 0.8


def test_large_windows_weigh_as_much_as_many_small_ones() -> None:
    """The sample of a window that repeats each example is the window without repetitions."""
    (window,) = windows_of(1, 256)
    window[:, 1] = window[:, 1].clip(min=8)
    rest = (8, (1, 128), PRICES, 1e6)
    small, large = (
        choose_shapes([np.repeat(window, n, axis=0)], *rest, updates, multiple=8)
        for n, updates in ((1, 800), (8, 100))
    )
    assert small == large and 1 < len(small) < MAX_SHAPES


@pytest.mark.parametrize("replicas", [1, 3, 40])
def test_windows_are_padded_to_allowed_shapes(store: TokenStore, replicas: int) -> None:
    """A replica without examples has no micro-batches."""
    allowed, rows = ((4, 16), (2, 24), (3, store.largest[1])), np.arange(32)
    cut = make_cut("cost", store.largest, PRICES, allowed)
    parts = [make_window(store, rows, 8, cut, r, replicas, allowed) for r in range(replicas)]
    for part in parts:
        assert part.padded is not None and part.padded.dtype == np.int32
        assert part.padded.shape == (part.micro_steps, 2)
        assert {*map(tuple, part.padded.tolist())} <= {*allowed}
        assert part.padded_tokens == part.padded.prod(axis=1).sum() >= len(part.token_ids)
    assert sum(part.examples for part in parts) == 32
