"""The batch arithmetic."""

from __future__ import annotations

import pytest

from bertaccum.memory.plan import Plan, make_plan


@pytest.mark.parametrize(
    ("target", "micro", "steps"), [(32, 8, 4), (32, 32, 1), (32, 12, 3), (7, 2, 4), (1, 1, 1)]
)
def test_accumulation_steps_are_derived(target: int, micro: int, steps: int) -> None:
    assert make_plan(target, micro) == Plan(target, micro, steps, replicas=1)


@pytest.mark.parametrize(("target", "micro"), [(32, 8), (30, 6), (7, 7), (13, 1), (4, 4), (9, 3)])
def test_auto_takes_the_largest_divisor_up_to_8(target: int, micro: int) -> None:
    assert make_plan(target, "auto").micro_batch == micro


def test_a_plan_says_how_a_window_is_cut() -> None:
    assert str(make_plan(32, 8)) == "32 examples an update: 4 micro-batches of 8"
    assert str(make_plan(32, 12)) == "32 examples an update: 2 of 12 and one of 8"
