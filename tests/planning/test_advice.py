"""Advice when nothing fits: every proposed change would fit."""

from __future__ import annotations

import dataclasses

from bertaccum.planning.advice import Adapters, MemoryShortage, Size, remedies
from bertaccum.planning.cost import MemoryCost
from bertaccum.planning.plan import Saving, SearchSpace

MIB = 2**20
COSTS = {
    Saving("none"): MemoryCost(500 * MIB, 450 * MIB, 3 * MIB, 0.0),
    Saving("layer"): MemoryCost(500 * MIB, 450 * MIB, 1 * MIB, 0.0),
}
PARTS = {"parameters": 110 * MIB, "slots": 220 * MIB, "accumulators": 110 * MIB}
OWN = Size(28_000_000, 2048)
# The last preset is the model itself, counted without biases.
PRESETS = {
    "bert-tiny": Size(4_000_000, 256),
    "bert-mini": Size(11_000_000, 1024),
    "bert-small": Size(27_900_000, 2048),
}
SPACE = SearchSpace(32, [1], [Saving("none")], (1, 128), [], 625 * MIB, 110 * MIB)
SHORTAGE = MemoryShortage(
    costs=COSTS, space=SPACE, usable_bytes=600 * MIB, bytes_of=PARTS, halved=False
)


def advice(space: SearchSpace = SPACE, **changes: object) -> list[str]:
    return remedies(dataclasses.replace(SHORTAGE, space=space, **changes), OWN, PRESETS)


def space(**changes: object) -> SearchSpace:
    return dataclasses.replace(SPACE, **changes)


def test_each_remedy_comes_with_its_peak() -> None:
    assert advice() == [
        "use `recompute` layer (about 578 MiB)",
        "use `max_seq_length` 96 (about 546 MiB)",
        "use `accumulator_dtype` bfloat16 (about 523 MiB)",
        "use `offload` moments (about 358 MiB)",
        "use `offload` all (about 248 MiB)",
        "use `model` bert-mini (about 241 MiB)",
    ]


def test_adapters_are_proposed_if_they_fit() -> None:
    adapters = Adapters(state_bytes=2 * MIB, halved_bytes=50 * MIB)
    less = "trains adapters instead of whole layers"

    def of(usable: int, **changes: object) -> list[str]:
        changes = {"bytes_of": PARTS, "adapters": adapters, "costs": {}} | changes
        found = advice(usable_bytes=usable * MIB, **changes)
        return [line for line in found if "adapt" in line]

    # Of 440 MiB of weights and state, 110 MiB are left.
    assert of(113) == [f"use `adapt` lora, which {less} (about 112 MiB)"]
    both = "`adapt` lora and `frozen_dtype` bfloat16"
    assert of(111) == [f"use {both}, which {less} (about 62 MiB)"]
    assert of(61) == [] == of(113, adapters=None)
    # If the state is offloaded already, only frozen weights can save memory.
    moved = PARTS | {"slots": 0, "accumulators": 0}
    assert of(109, bytes_of=moved) == [f"use {both}, which {less} (about 62 MiB)"]


def test_remark_about_adapters_instead_of_offloading() -> None:
    adapters = Adapters(state_bytes=2 * MIB, halved_bytes=50 * MIB)
    found = adapters.instead_of_offloading(120 * MIB, 122 * MIB)
    assert found.startswith("; `adapt` lora should fit without offloading (about 122 MiB), but")
    found = adapters.instead_of_offloading(120 * MIB, 121 * MIB)
    assert found.startswith("; `adapt` lora and `frozen_dtype` bfloat16 should fit")
    assert adapters.instead_of_offloading(120 * MIB, 71 * MIB) == ""


def test_fewer_windows_that_fit_are_proposed() -> None:
    assert "use `windows` 3 (about 546 MiB)" in advice(space(largest=(4, 128)))


def test_remedies_in_use_or_too_large_are_left_out() -> None:
    kinds = [Saving("none"), Saving("layer")]
    few = advice(space(savings=kinds), halved=True, usable_bytes=400 * MIB)
    assert [line.split(" (")[0] for line in few] == [
        "use `offload` moments",
        "use `offload` all",
        "use `model` bert-mini",
    ]
    assert advice(usable_bytes=10 * MIB) == []
    all_tried = [*kinds, Saving("layer", "moments"), Saving("layer", "all")]
    assert not any("offload" in line for line in advice(space(savings=all_tried)))


def test_largest_smaller_model_that_fits_is_proposed() -> None:
    least = advice(usable_bytes=100 * MIB)
    assert [line.split(" (")[0] for line in least] == ["use `model` bert-tiny"]


def test_remedies_are_for_the_smallest_allowed_micro_batch() -> None:
    lines = advice(
        space(sizes=[8]),
        usable_bytes=650 * MIB,
        costs={Saving("none"): MemoryCost(500 * MIB, 450 * MIB, MIB, 0.0)},
    )
    assert lines[:2] == [
        "use `max_seq_length` 24 (about 642 MiB)",
        "use `micro_batch` 1 (about 578 MiB)",
    ]


def test_remedies_without_measurements_use_the_static_bytes() -> None:
    blind = advice(costs={}, usable_bytes=300 * MIB)
    assert [line.split(" (")[0] for line in blind] == [
        "use `offload` moments",
        "use `offload` all",
        "use `model` bert-mini",
    ]
