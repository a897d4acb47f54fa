"""Planning with `precision` auto, on simulated GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulated import Simulated, SimulatedGPU, occupy_gpus, show_gpus

from bertaccum.errors import RunError
from bertaccum.options.commands import PlanConfig
from bertaccum.planning import measured_plan, planner
from bertaccum.planning.measurement import MeasurementProcess
from bertaccum.planning.plan import Saving
from bertaccum.planning.plan_result import PlanResult
from bertaccum.planning.planner import agreed_precision, plan_for_options, remember_out_of_memory
from bertaccum.system.child_process import ChildProcess
from bertaccum.system.progress import silent

GTX_1050_TI, T4, A100 = (6, 1), (7, 5), (8, 0)
FLOAT32, FLOAT16, BFLOAT16 = "float32", "mixed_float16", "mixed_bfloat16"

Make = Callable[..., tuple[PlanResult, list[str]]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that plans for simulated GPUs.

    Its arguments are the compute capabilities, the duration of an update in each precision, and
    options. It returns the plan and, in order, the precisions that were measured.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measured_plan, "MeasurementProcess", SimulatedGPU)

    def call(
        gpus: list[tuple[int, int]], times: dict[str, float | None], **options: Any
    ) -> tuple[PlanResult, list[str]]:
        show_gpus(monkeypatch, *gpus)
        monkeypatch.setattr(SimulatedGPU, "times", times)
        monkeypatch.setattr(Simulated, "started", [])
        options = {"memory_limit": "4GiB"} | options
        report = plan_for_options(PlanConfig(**options), silent)
        assert report.values == json.loads((tmp_path / "plan.json").read_text())
        measured = [job["config"]["precision"] for job in Simulated.started]
        return report, [*dict.fromkeys(measured)]

    return call


@pytest.mark.parametrize(
    ("gpus", "half"), [([T4], FLOAT16), ([A100], BFLOAT16), ([A100, T4], FLOAT16)]
)
def test_faster_precision_is_chosen(make: Make, gpus: list[tuple[int, int]], half: str) -> None:
    report, measured = make(gpus, {half: 0.5, FLOAT32: 1.0})
    assert measured == [half, FLOAT32]
    assert report.values["precision"] == half
    fast, slow = report.values["precisions"].values()
    assert report.values["examples_per_second"] == fast > 1.9 * slow
    assert report.why.endswith(f"; {fast:.1f} examples/s in {half}, {slow:.1f} in float32")

    report, measured = make(gpus, {half: 1.1, FLOAT32: 1.0}, target_batch=64)
    assert measured == [half, FLOAT32]
    assert report.values["precision"] == FLOAT32
    slow, fast = report.values["precisions"].values()
    assert report.values["examples_per_second"] == fast > 1.05 * slow
    assert report.why.endswith(f"; {fast:.1f} examples/s in float32, {slow:.1f} in {half}")


@pytest.mark.parametrize(
    ("gpus", "options", "precision"),
    [
        ([GTX_1050_TI], {}, FLOAT32),
        ([A100, GTX_1050_TI], {}, FLOAT32),
        ([], {}, FLOAT32),
        ([A100], {"precision": FLOAT16}, FLOAT16),
        ([GTX_1050_TI], {"precision": FLOAT16}, FLOAT16),
        ([A100], {"micro_batch": 8}, BFLOAT16),  # As in a run, which measures nothing then.
        # A GPU that is not present is simulated on the CPU.
        ([A100], {"memory_limit": None, "device_memory": "4GiB"}, FLOAT32),
    ],
)
def test_only_one_precision_is_possible(
    make: Make, gpus: list[tuple[int, int]], options: dict[str, Any], precision: str
) -> None:
    report, measured = make(gpus, {precision: 1.0}, **options)
    assert measured == [precision] == [report.values["precision"]]
    assert report.values["precisions"] == {precision: report.values["examples_per_second"]}
    assert precision not in report.why


def test_each_precision_is_measured_once(make: Make) -> None:
    times: dict[str, float | None] = {BFLOAT16: 0.5, FLOAT32: 1.0}
    first, _ = make([A100], times)
    again, measured = make([A100], times)
    assert (first.cached, again.cached, measured) == (False, True, [])
    assert again.values == first.values
    # A resumed run names its precision.
    resumed, measured = make([A100], times, precision=BFLOAT16)
    assert (resumed.cached, resumed.plan, measured) == (True, first.plan, [])
    # The speeds in float32 were measured before, and only half precision is new.
    make([T4], {FLOAT32: 1.0}, precision=FLOAT32, target_batch=64)
    mixed, measured = make([T4], {FLOAT16: 2.0}, target_batch=64)
    assert (mixed.values["precision"], mixed.cached, measured) == (FLOAT32, False, [FLOAT16])
    _, measured = make([A100], times, fresh=True)
    assert measured == [BFLOAT16, FLOAT32]


def test_precision_that_does_not_fit_is_not_chosen(make: Make) -> None:
    times: dict[str, float | None] = {BFLOAT16: 1.0, FLOAT32: None}
    half, _ = make([A100], times)
    assert half.values["precision"] == BFLOAT16
    assert half.why.endswith("; nothing fits in float32")
    assert half.values["precisions"] == {
        BFLOAT16: half.values["examples_per_second"],
        FLOAT32: None,
    }
    again, measured = make([A100], times)
    assert (again.values, measured) == (half.values, [])
    # If nothing else fits, it is measured again, because more memory may be free now.
    alone, measured = make([A100], times, precision=FLOAT32)
    assert (alone.plan, measured) == (None, [FLOAT32])

    full, _ = make([A100], {BFLOAT16: None, FLOAT32: 1.0}, target_batch=64)
    assert full.values["precision"] == FLOAT32
    assert full.why.endswith("; nothing fits in mixed_bfloat16")

    neither, _ = make([A100], {BFLOAT16: None, FLOAT32: None}, target_batch=128)
    assert (neither.plan, neither.values["precision"]) == (None, BFLOAT16)
    assert neither.why.startswith("nothing fits: one example")
    assert "float32" not in neither.why
    _, measured = make([A100], {BFLOAT16: None, FLOAT32: None}, target_batch=128)
    assert measured == [BFLOAT16, FLOAT32]


def test_nothing_is_measured_while_this_process_uses_the_gpu(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process would measure what TensorFlow has left free, and the plan would be cached."""
    times: dict[str, float | None] = {BFLOAT16: 0.5, FLOAT32: 1.0}
    first, _ = make([A100], times)
    cached = sorted((tmp_path / "cache/plans").iterdir())
    occupy_gpus(monkeypatch)
    monkeypatch.setattr(measured_plan, "MeasurementProcess", MeasurementProcess)
    assert make([A100], times)[0].plan == first.plan
    message = "this process already uses the GPU, so nothing can be measured; start a new process"
    for options in ({"target_batch": 64}, {"fresh": True}):
        with pytest.raises(RunError, match=message):
            make([A100], times, **options)
    assert sorted((tmp_path / "cache/plans").iterdir()) == cached
    # A process without GPUs measures for a simulated one.
    monkeypatch.setattr(ChildProcess, "start", lambda _: None)
    with MeasurementProcess(silent, {"CUDA_VISIBLE_DEVICES": ""}):
        pass


def test_other_programs_may_be_why_nothing_fits_on_a_gpu(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Simulated):
        def build(self, job: dict[str, Any]) -> None:
            assert job["limit_bytes"] is None

    monkeypatch.setattr(measured_plan, "MeasurementProcess", Full)
    report, _ = make([GTX_1050_TI], {}, memory_limit=None)
    message = "alone take 110 MiB; close other programs that use the GPU, or choose a smaller `mo"
    with pytest.raises(RunError, match=message):
        report.require_plan()


def test_learned_limits_may_change_the_choice(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest micro-batches in half precision run out of memory; the others are slower."""
    seen = []
    read = planner.find_fastest_plan
    monkeypatch.setattr(
        planner, "find_fastest_plan", lambda s, *rest: seen.append(s) or read(s, *rest)
    )
    times: dict[str, float | None] = {BFLOAT16: 0.99, FLOAT32: 1.0}
    assert make([A100], times)[0].values["precision"] == BFLOAT16
    half = seen[0].in_precision(BFLOAT16)
    remember_out_of_memory(half, 8, Saving())
    report, _ = make([A100], times)
    assert (report.values["precision"], report.plan.micro_batch) == (FLOAT32, 8)


@pytest.mark.parametrize(
    ("told", "agreed"),
    [
        ([{BFLOAT16: 2.0, FLOAT32: 1.0}], BFLOAT16),
        # Measurements vary; the slowest worker counts.
        ([{BFLOAT16: 2.0, FLOAT32: 1.9}, {BFLOAT16: 1.8, FLOAT32: 1.9}], FLOAT32),
        ([{BFLOAT16: 1.9, FLOAT32: 2.0}, {BFLOAT16: 1.9, FLOAT32: 1.8}], BFLOAT16),
        # Only one precision is possible on both GPUs, or fits on both.
        ([{BFLOAT16: 2.0, FLOAT32: 1.0}, {FLOAT16: 2.0, FLOAT32: 1.0}], FLOAT32),
        ([{FLOAT32: 1.0}, {BFLOAT16: 2.0, FLOAT32: 1.0}], FLOAT32),
        ([{BFLOAT16: 1.0, FLOAT32: 2.0}, {BFLOAT16: 1.0, FLOAT32: None}], BFLOAT16),
        # Nothing was measured.
        ([{BFLOAT16: None, FLOAT32: None}] * 2, BFLOAT16),
        ([{FLOAT16: None}] * 2, FLOAT16),
    ],
)
def test_workers_agree_on_the_precision(told: list[dict[str, float | None]], agreed: str) -> None:
    assert agreed_precision(told) == agreed
