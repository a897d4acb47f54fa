"""Batch arithmetic."""

from __future__ import annotations

import pytest

from bertaccum.options.offload_rungs import OFFLOAD
from bertaccum.planning.cost import bytes_on_device, bytes_on_host
from bertaccum.planning.plan import BatchPlan, Saving, even_micro_batches, make_plan


@pytest.mark.parametrize(
    ("target", "micro", "steps"), [(32, 8, 4), (32, 32, 1), (32, 12, 3), (7, 2, 4), (1, 1, 1)]
)
def test_accumulation_steps_are_derived(target: int, micro: int, steps: int) -> None:
    assert make_plan(target, micro) == BatchPlan(target, micro, steps, replicas=1)


@pytest.mark.parametrize("target", [1, 2, 7, 32, 100])
def test_sizes_are_the_smallest_for_their_number_of_micro_steps(target: int) -> None:
    sizes = even_micro_batches(target)
    assert sizes[0] == 1 and sizes[-1] == target
    steps = [make_plan(target, size).accumulation_steps for size in sizes]
    assert len(set(steps)) == len(steps)
    for size in range(1, target + 1):
        needed = make_plan(target, size).accumulation_steps
        assert needed in steps and size >= sizes[steps.index(needed)]


def test_plan_as_text() -> None:
    assert str(make_plan(32, 8)) == "32 examples per update: 4 micro-batches of 8"
    assert str(make_plan(32, 32, Saving("layer"))).endswith("no accumulation, with recomputation")
    by_cost = str(make_plan(32, 12, cut="cost"))
    assert by_cost.endswith("micro-batches of 12 examples, more if they are short")
    assert str(make_plan(32, 12)) == "32 examples per update: 2 micro-batches of 12 and one of 8"
    assert str(make_plan(3, 2)) == "3 examples per update: 1 micro-batch of 2 and one of 1"
    single = "1 example per update: one micro-batch, no accumulation"
    assert str(make_plan(1, 1)) == single
    offloaded = str(make_plan(32, 8, Saving(offload="all")))
    assert offloaded.endswith("micro-batches of 8, moments and accumulators in host memory")


def test_each_rung_of_offloading_leaves_less_on_the_device() -> None:
    parts = {"parameters": 400, "embeddings": 0, "slots": 80, "accumulators": 4}
    left = [sum(bytes_on_device(parts, rung).values()) for rung in OFFLOAD]
    assert left == sorted(set(left), reverse=True)
    assert [bytes_on_host(parts, rung) for rung in OFFLOAD] == [484 - device for device in left]
