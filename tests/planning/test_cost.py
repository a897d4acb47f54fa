"""Fitting the memory cost to measured peaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertaccum.planning.cost import MemoryCost, MemoryPoint, fit_cost

MIB = 2**20


@given(
    static=st.integers(10, 1000),
    update=st.integers(0, 200),
    linear=st.floats(0.001, 1.0),
    quadratic=st.floats(0.0, 0.003),
)
def test_fit_recovers_a_known_cost(
    static: int, update: int, linear: float, quadratic: float
) -> None:
    law = MemoryCost((static + update) * MIB, static * MIB, linear * MIB, quadratic * MIB)
    sizes = [2**k for k in range(20)]
    size = next(s for s in sizes if law.peak_bytes(s, 128) > 1.2 * law.update_bytes)
    shapes = [(size, 128), (2 * size, 128), (8 * size, 64), (1, 128)]
    points = [MemoryPoint(s, n, law.peak_bytes(s, n)) for s, n in shapes]
    found = fit_cost(law.update_bytes, law.static_bytes, points)
    for length in (8, 64, 100, 512):
        for micro_batch in (1, 7, 100):
            expected = law.peak_bytes(micro_batch, length)
            assert found.peak_bytes(micro_batch, length) == pytest.approx(expected, rel=1e-6)


def test_points_below_the_updates_peak_are_not_fitted() -> None:
    points = [MemoryPoint(1, 128, 100.0), MemoryPoint(2, 128, 101.0), MemoryPoint(4, 128, 120.0)]
    found = fit_cost(100.0, 80.0, points)
    assert found.peak_bytes(1, 128) == 100.0
    assert found.peak_bytes(4, 128) == pytest.approx(120.0)
    # These points only tell that two examples take no more than 20.
    bound = fit_cost(100.0, 80.0, points[:2])
    assert bound.peak_bytes(2, 128) == 100.0
    assert bound.peak_bytes(4, 128) == pytest.approx(120.0)
