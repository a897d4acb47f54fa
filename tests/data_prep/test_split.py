"""The split loses no row, and is the same on every machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.split import duplicates, split_rows


def test_yelp_numbers() -> None:
    train, dev = split_rows(560_000, 0.01, seed=0)
    assert (len(train), len(dev)) == (554_400, 5_600)
    assert sorted(train + dev) == list(range(560_000))


@given(st.integers(2, 300), st.floats(0.001, 0.999), st.integers(0, 2**64 - 1))
def test_every_row_is_in_exactly_one_part(rows: int, fraction: float, seed: int) -> None:
    train, dev = split_rows(rows, fraction, seed)
    assert sorted(train + dev) == list(range(rows))
    assert train and dev and abs(len(dev) - rows * fraction) <= 1


def test_the_order_is_written_down() -> None:
    assert split_rows(10, 0.2, seed=0) == ([9, 1, 8, 5, 4, 3, 6, 7], [0, 2])
    assert split_rows(10, 0.2, seed=1) != split_rows(10, 0.2, seed=0)


@pytest.mark.parametrize(
    ("texts", "count"),
    [([b"a", b"b", b"c", b"d"], 0), ([b"a", b"b", b"a", b"a"], 2), ([b"c", b"c", b"d", b"d"], 0)],
)
def test_duplicates_are_rows_of_dev(texts: list[bytes], count: int) -> None:
    assert duplicates(texts, train=[0, 1], dev=[2, 3]) == count
