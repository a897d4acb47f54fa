"""Windows depend only on seed and position, and contain every example once."""

from __future__ import annotations

import numpy as np
import pytest

from bertaccum.data import windows
from bertaccum.data.token_store import TokenStore
from bertaccum.data.windows import (
    batches_by_length,
    make_window,
    permutation,
    scattered,
    updates_per_epoch,
    window_rows,
)

GOLDEN = [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]


def test_order_has_its_golden_values() -> None:
    """A run resumed with another version of NumPy must see the same examples."""
    assert permutation(0, 0, 10).tolist() == GOLDEN
    assert permutation(0, 1, 10).tolist() != GOLDEN
    assert permutation(1, 0, 10).tolist() != GOLDEN
    assert permutation(1, 2, 10).tolist() == [4, 2, 0, 6, 1, 5, 9, 8, 7, 3]


@pytest.mark.parametrize("examples", [1, 2, 5, 1000, 1025, 4096, 4097])
def test_scattered_order_contains_every_example_once(examples: int) -> None:
    order = scattered(3, 1, examples, np.arange(examples))
    assert sorted(order.tolist()) == list(range(examples))
    some = np.arange(examples)[::-3]
    assert np.array_equal(scattered(3, 1, examples, some), order[some])


def test_scattered_order_has_its_golden_values() -> None:
    golden = scattered(0, 0, 10**10, np.arange(3)).tolist()
    assert golden == [4954409639, 285154046, 5131798310]
    for seed, epoch in ((0, 1), (1, 0)):
        assert scattered(seed, epoch, 10**10, np.arange(3)).tolist() != golden


def test_scattered_order_is_random() -> None:
    order = scattered(0, 0, 2**21 + 7, np.arange(2**21 + 7))
    assert np.abs(np.bincount(order[: 2**14] >> 17, minlength=16)[:16] / 2**10 - 1).max() < 0.15
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.005
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.005
    assert (order[1:] < order[:-1]).mean() == pytest.approx(0.5, abs=0.005)


def test_large_epochs_need_no_memory_for_each_example() -> None:
    epoch, rows = window_rows(2**40, 10**9, 256, seed=0)
    assert epoch == 2**40 // -(-(10**9) // 256) and len(np.unique(rows)) == 256
    assert window_rows(10**9 // 256, 10**9 + 7, 256, seed=0)[1].shape == (7,)
    assert np.array_equal(window_rows(1, 2**20, 8, 5)[1], permutation(5, 0, 2**20)[8:16])
    others = scattered(5, 0, 2**20 + 1, np.arange(8, 16))
    assert np.array_equal(window_rows(1, 2**20 + 1, 8, 5)[1], others)


@pytest.mark.parametrize(("examples", "target"), [(100, 32), (96, 32), (5, 32), (33, 1)])
def test_every_epoch_contains_every_example_once(examples: int, target: int) -> None:
    per_epoch = updates_per_epoch(examples, target)
    for epoch in range(3):
        parts = [
            window_rows(epoch * per_epoch + i, examples, target, seed=7) for i in range(per_epoch)
        ]
        assert {number for number, _ in parts} == {epoch}
        sizes = [len(rows) for _, rows in parts]
        assert all(size == target for size in sizes[:-1])
        assert sizes[-1] == examples - target * (per_epoch - 1)
        rows = np.concatenate([rows for _, rows in parts])
        assert sorted(rows) == list(range(examples))


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("examples", [1, 2, 10, 32])
def test_shares_add_up_to_the_window(store: TokenStore, replicas: int, examples: int) -> None:
    rows = permutation(3, 0, len(store))[:examples]
    whole = make_window(store, rows, 4)
    parts = [make_window(store, rows, 4, replica=r, replicas=replicas) for r in range(replicas)]
    positions = np.concatenate([part.positions for part in parts])
    assert sorted(positions) == list(range(examples))
    sizes = [part.examples for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for part in parts:
        assert part.window_examples == whole.window_examples == examples
        assert part.micro_steps == -(-part.examples // 4)
        for own, place in enumerate(part.positions):
            mine = part.token_ids[part.row_splits[own] : part.row_splits[own + 1]]
            a, b = whole.row_splits[place : place + 2]
            np.testing.assert_array_equal(mine, whole.token_ids[a:b])
            assert part.labels[own] == whole.labels[place]


def test_shares_have_similar_numbers_of_tokens(store: TokenStore) -> None:
    """Dealing back and forth prevents one replica from always getting the longer examples."""
    rows = permutation(3, 0, len(store))[:32]
    tokens = [len(make_window(store, rows, 8, replica=r, replicas=4).token_ids) for r in range(4)]
    longest = int(store.lengths(rows).max())
    assert max(tokens) - min(tokens) < longest
    plain = [int(store.lengths(np.sort(rows))[r::4].sum()) for r in range(4)]
    assert sum(plain) == sum(tokens)


@pytest.mark.parametrize(
    ("micro_batch", "cuts"), [(8, [0, 8, 16, 24, 32]), (12, [0, 12, 24, 32]), (32, [0, 32])]
)
def test_window_contains_its_rows_sorted_by_length(
    store: TokenStore, micro_batch: int, cuts: list[int]
) -> None:
    rows = permutation(3, 0, len(store))[:32]
    window = make_window(store, rows, micro_batch)
    assert window.cuts.tolist() == cuts
    lengths = np.diff(window.row_splits)
    assert (np.diff(lengths) >= 0).all()

    def bag(examples: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return sorted(examples)

    got = [
        (int(label), *window.token_ids[a:b])
        for label, a, b in zip(
            window.labels, window.row_splits, window.row_splits[1:], strict=False
        )
    ]
    wanted = [
        (int(store.labels[r]), *store.token_ids[store.offsets[r] : store.offsets[r + 1]])
        for r in rows
    ]
    assert bag(got) == bag(wanted)


@pytest.mark.parametrize(("batch", "most"), [(4, 2**14), (1, 2**14), (32, 90), (32, 1)])
def test_batches_by_length_are_as_large_as_their_tokens_allow(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch, batch: int, most: int
) -> None:
    monkeypatch.setattr(windows, "MAX_TOKENS", most)
    batches = batches_by_length(store, batch)
    assert sorted(np.concatenate(batches)) == list(range(100))
    limit = min(batch * store.largest[1], most)
    for rows, following in zip(batches, [*batches[1:], None], strict=True):
        assert len(rows) * store.lengths(rows).max() <= limit or len(rows) == 1
        if following is not None:
            assert (len(rows) + 1) * store.lengths(following[:1])[0] > limit


def test_epochs_and_seeds_have_different_orders(store: TokenStore) -> None:
    per_epoch = updates_per_epoch(100, 32)
    rows = [
        window_rows(update, 100, 32, seed)[1].tolist()
        for update, seed in ((0, 0), (per_epoch, 0), (0, 1))
    ]
    assert rows[0] != rows[1] != rows[2] != rows[0]


def test_no_micro_batch_exceeds_its_size(store: TokenStore) -> None:
    assert make_window(store, np.arange(33), 8).cuts.tolist() == [0, 8, 16, 24, 32, 33]


def test_padded_stores_count_the_padding(store: TokenStore) -> None:
    padded, rows = store.padded_to(8, 20), np.arange(32)
    assert set(padded.shapes[:, 1].tolist()) == {8, 16, 20}
    window, plain = make_window(padded, rows, 8), make_window(store, rows, 8)
    np.testing.assert_array_equal(window.token_ids, plain.token_ids)
    ends = np.sort(padded.shapes[rows, 1])[7::8]
    assert window.padded_tokens == 8 * ends.sum() > plain.padded_tokens
