"""Compiling is decided once per run, from measured times on simulated devices."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from simulated import Simulated, SimulatedXLA, occupy_gpus, show_gpus
from small import Notes

from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.model_source import ModelSource
from bertaccum.data.run_inputs import RunInputs
from bertaccum.data.window_cuts import PRICES, Prices
from bertaccum.errors import RunError
from bertaccum.options.commands import TrainConfig
from bertaccum.planning import compile_cost as costs
from bertaccum.planning import planner
from bertaccum.planning.compile_cost import CompileCost, compile_cost
from bertaccum.planning.cost import fit_prices
from bertaccum.planning.measurement import MeasurementProcess, PlanRequest
from bertaccum.planning.plan import Saving, make_plan
from bertaccum.planning.plan_result import MeasuredCosts, PlanResult
from bertaccum.system.progress import silent
from bertaccum.tasks.labels import Labels
from bertaccum.training import compilation

PLAN = make_plan(32, 8, cut="cost")


@pytest.fixture(autouse=True)
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(costs, "MeasurementProcess", SimulatedXLA)
    monkeypatch.setattr(Simulated, "started", [])


def request(**options: Any) -> PlanRequest:
    source = ModelSource("small", EncoderConfig(), None, None)
    inputs = RunInputs(source, Labels.numbered(2), [Path("train.tsv")], ["a"], ["b"])
    config = TrainConfig(**{"precision": "float32", "memory_limit": "4GiB"} | options)
    return PlanRequest(config, inputs)


def cost(**options: Any) -> CompileCost | None:
    return compile_cost(request(**options), PLAN, PRICES, silent)


def test_times_are_those_of_compiled_windows() -> None:
    found = cost()
    assert found is not None
    assert found.updates_per_epoch == 1000
    assert found.shape_seconds == pytest.approx(SimulatedXLA.shape_seconds)
    assert found.window_seconds > 2 * found.compiled_seconds
    saved = 3000 * (found.window_seconds - found.compiled_seconds) - 5 * len(found.shapes)
    assert found.saved_seconds(3000) == pytest.approx(saved)
    assert 1 < len(found.shapes) <= 8
    assert 0.5 < found.real_share < 1
    assert found.compile_tokens == pytest.approx(found.shape_seconds / found.token_seconds)


def test_cost_is_measured_once_for_each_plan() -> None:
    first = cost()
    assert cost() == first and len(Simulated.started) == 1
    other = dataclasses.replace(PLAN, micro_batch=4)
    compile_cost(request(), other, PRICES, silent)
    assert len(Simulated.started) == 2


def test_runs_of_all_lengths_share_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "device_name", lambda: "NVIDIA T4")
    found = [
        compilation.decide(TrainConfig(epochs=epochs), request(), timed_plan(), silent).compile
        for epochs in (3.0, 0.004, 4.0)
    ]
    assert found == [True, False, True] and len(Simulated.started) == 1


def test_run_is_not_compiled_if_this_process_uses_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(monkeypatch, (7, 5))
    assert cost() is not None
    occupy_gpus(monkeypatch)
    monkeypatch.setattr(costs, "MeasurementProcess", MeasurementProcess)
    assert cost() is not None
    config, told = TrainConfig(micro_batch=8), Notes()
    planned = PlanResult(dataclasses.replace(PLAN, micro_batch=4))
    assert not compilation.decide(config, request(), planned, told).compile
    why = "steps are not compiled, because this process already uses the GPU, so nothing can be me"
    assert len(told.lines) == 1 and told.lines[0].startswith(why)
    with pytest.raises(RunError, match="this process already uses the GPU"):
        compilation.decide(config, request(compile="on"), planned, silent)


def test_process_uses_the_folder_that_replaces_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTACCUM_TEMPORARY_CACHE", "")
    (tmp_path / "cache").touch()
    seen: list[str] = []

    class Recording(SimulatedXLA):
        def __init__(self, *arguments: Any) -> None:
            seen.append(os.environ["BERTACCUM_TEMPORARY_CACHE"])
            super().__init__(*arguments)

    monkeypatch.setattr(costs, "MeasurementProcess", Recording)
    assert cost() == cost() is not None  # The second one is read from that folder.
    assert len(seen) == 1 and seen[0]


def test_plan_that_does_not_fit_compiled_has_no_cost() -> None:
    assert cost(memory_limit="600MiB") is None
    # Once a run uses the device, it could not be measured again.
    assert cost(memory_limit="600MiB") is None and len(Simulated.started) == 1


@pytest.mark.parametrize("device", ["CPU", "NVIDIA T4"])
@pytest.mark.parametrize("asked", ["auto", "on", "off"])
@pytest.mark.parametrize("speedup", [0.9, 4.0])
@pytest.mark.parametrize("hours", [0.01, 2.0])
def test_compiles_if_it_pays(
    monkeypatch: pytest.MonkeyPatch, device: str, asked: str, speedup: float, hours: float
) -> None:
    monkeypatch.setattr(costs, "device_name", lambda: device)
    monkeypatch.setattr(SimulatedXLA, "speedup", speedup)
    config = TrainConfig(compile=asked)
    examples = 32_000
    rate = 3 * examples / (3600 * hours)
    planned = dataclasses.replace(
        timed_plan(), examples_per_second=rate, prices=Prices(50.0, 0.001)
    )
    found = compilation.decide(config, request(compile=asked), planned, silent)
    long = hours == 2.0
    assert found.compile == (asked == "on" or (asked == "auto" and long and speedup > 1))
    assert (found.cost is not None) == (asked == "on" or (asked == "auto" and long))
    again = compilation.Compilation(found.compile).with_numbers(found.numbers())
    assert again == dataclasses.replace(found, cost=None)
    short = dataclasses.replace(config, max_updates=10)
    brief = compilation.decide(short, request(compile=asked), planned, silent)
    assert brief.compile == (asked == "on")
    apart = compilation.decide(config, request(compile=asked), planned, silent, workers=2)
    assert apart.compile == (asked == "on") and apart.cost is None


@pytest.mark.parametrize(
    "values", [{"step_tokens": -1.0}, {"step_tokens": "a"}, {"attention": None}, {"other": 1.0}]
)
def test_damaged_numbers_are_refused(values: dict[str, Any]) -> None:
    whole = compilation.Compilation(True).numbers()
    with pytest.raises((ValueError, TypeError)):
        compilation.Compilation(True).with_numbers(whole | values)


def test_given_size_is_measured_only_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    config, planned = TrainConfig(micro_batch=8), PlanResult(PLAN)
    assert not compilation.decide(config, request(), planned, silent).compile
    assert not Simulated.started
    monkeypatch.setattr(costs, "device_name", lambda: "NVIDIA T4")
    assert compilation.decide(config, request(), planned, silent).compile


def test_run_goes_on_if_compiling_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RunError("the measurement process failed (libdevice not found)")

    monkeypatch.setattr(costs, "device_name", lambda: "NVIDIA T4")
    monkeypatch.setattr(SimulatedXLA, "run", fail)
    planned, told = PlanResult(PLAN), Notes()
    assert not compilation.decide(TrainConfig(micro_batch=8), request(), planned, told).compile
    assert told.lines and "libdevice" in told.lines[0]
    with pytest.raises(RunError, match="libdevice"):
        config = TrainConfig(micro_batch=8, compile="on")
        compilation.decide(config, request(compile="on"), planned, silent)


def test_sums_in_host_memory_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "device_name", lambda: "NVIDIA T4")
    planned = PlanResult(make_plan(32, 8, Saving("none", "all"), "cost"))
    assert not compilation.decide(TrainConfig(micro_batch=8), request(), planned, silent).compile


def test_prices_fit_times() -> None:
    usual = Prices(150.0, 1e-3)

    def seconds(length: int) -> float:
        return 1e-5 * length * (1 + length * 2e-3)

    prices, token = fit_prices(3e-3, {128: seconds(128), 64: seconds(64)}, usual)
    assert prices == Prices(300.0, 0.002)
    assert token == pytest.approx(1e-5)
    # Without a second length, and with times that make no sense, a pair has its usual price.
    for times in ({128: seconds(128)}, {128: 1.0, 64: 0.0}):
        assert fit_prices(3e-3, times, usual)[0].attention == 1e-3
    noisy = fit_prices(0.0, {128: 1.0, 64: 0.9}, usual)[0]
    assert noisy == Prices(1.0, 0.00025)


def test_shapes_that_compile_at_once_have_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedXLA, "shape_seconds", 0.0)
    found = compilation.decide(
        TrainConfig(compile="on"), request(compile="on"), timed_plan(), silent
    )
    assert found.cost and found.with_numbers(found.numbers()) == found


def timed_plan() -> PlanResult:
    """Return a plan with a speed, which the planner measured for 32,000 examples."""
    costs = MeasuredCosts(
        model="small",
        parameters=28_000_000,
        train_examples=32_000,
        precision="float32",
        device="CPU",
        memory_bytes=2**32,
        margin_bytes=2**27,
        longest=128,
        largest_windows=1,
        static_bytes={},
        host_bytes=0,
        update_bytes={},
        example_bytes={},
        candidates=[],
    )
    return PlanResult(PLAN, costs, examples_per_second=1.0)


def test_plan_with_compiled_steps_has_their_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "device_name", lambda: "NVIDIA T4")
    before = timed_plan()
    after = planner._with_compilation(before, request(), silent)
    assert after.compile_cost is not None and after.examples_per_second is not None
    faster = after.compile_cost.window_seconds / after.compile_cost.compiled_seconds
    assert before.examples_per_second is not None and faster > 2
    assert after.examples_per_second == pytest.approx(faster * before.examples_per_second, abs=1e-3)
