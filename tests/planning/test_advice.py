"""What is proposed where nothing fits would fit."""

from __future__ import annotations

import dataclasses

from bertaccum.planning.advice import Situation, Size, remedies
from bertaccum.planning.memory_cost import MemoryCost

MIB = 2**20
COSTS = {
    "none": MemoryCost(500 * MIB, 450 * MIB, 3 * MIB, 0.0),
    "layer": MemoryCost(500 * MIB, 450 * MIB, 1 * MIB, 0.0),
}
PARTS = {"parameters": 110 * MIB, "slots": 220 * MIB, "accumulators": 110 * MIB}
OWN = Size(28_000_000, 2048)
# The last is the model itself, counted without biases.
PRESETS = {
    "bert-tiny": Size(4_000_000, 256),
    "bert-mini": Size(11_000_000, 1024),
    "bert-small": Size(27_900_000, 2048),
}
SITUATION = Situation(
    costs=COSTS,
    recompute=["none"],
    longest=128,
    micro_batch=1,
    usable_bytes=600 * MIB,
    bytes_of=PARTS,
    offloaded=False,
    halved=False,
)


def advice(**changes: object) -> list[str]:
    return remedies(dataclasses.replace(SITUATION, **changes), OWN, PRESETS)


def test_each_remedy_comes_with_what_it_takes() -> None:
    assert advice() == [
        "`recompute` layer (about 578 MiB)",
        "`max_seq_length` 96 (about 546 MiB)",
        "`accumulator_dtype` bfloat16 (about 523 MiB)",
        "on a GPU `offload_optimizer` (about 358 MiB)",
        "`model` bert-mini (about 241 MiB)",
    ]


def test_what_is_used_already_or_would_not_do_is_left_out() -> None:
    few = advice(recompute=["none", "layer"], halved=True, usable_bytes=400 * MIB)
    assert [line.split(" (")[0] for line in few] == [
        "on a GPU `offload_optimizer`",
        "`model` bert-mini",
    ]
    assert advice(usable_bytes=10 * MIB) == []


def test_a_smaller_model_is_proposed_until_one_fits() -> None:
    least = advice(usable_bytes=100 * MIB)
    assert [line.split(" (")[0] for line in least] == ["`model` bert-tiny"]


def test_a_micro_batch_that_was_asked_for_is_what_must_fit() -> None:
    lines = advice(
        micro_batch=8,
        usable_bytes=650 * MIB,
        costs={"none": MemoryCost(500 * MIB, 450 * MIB, MIB, 0.0)},
    )
    assert lines[:2] == [
        "`max_seq_length` 24 (about 642 MiB)",
        "`micro_batch` 1 (about 578 MiB)",
    ]


def test_where_nothing_could_be_measured_the_resting_bytes_speak() -> None:
    blind = advice(costs={}, usable_bytes=300 * MIB)
    assert [line.split(" (")[0] for line in blind] == [
        "on a GPU `offload_optimizer`",
        "`model` bert-mini",
    ]
