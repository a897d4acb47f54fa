"""A run with `precision` auto keeps the precision that the planner chose."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tf_keras
from simulated import Simulated, SimulatedGPU
from small import write_small_task

from bertaccum.bert import precision
from bertaccum.distribution.topology import Topology
from bertaccum.errors import ConfigError
from bertaccum.options.commands import TrainConfig
from bertaccum.planning import measured_plan
from bertaccum.runs.paths import RunPaths
from bertaccum.runs.record import read_run_config
from bertaccum.system.progress import silent
from bertaccum.training import agreed_plan
from bertaccum.training import train as training
from bertaccum.training.events import Started
from bertaccum.training.inputs import run_inputs
from bertaccum.training.loop import Run
from bertaccum.training.train import resume, train

GTX_1050_TI, T4, A100 = (6, 1), (7, 5), (8, 0)
FLOAT32, FLOAT16, BFLOAT16 = "float32", "mixed_float16", "mixed_bfloat16"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """Return the configuration of a run that is planned with simulated measurements."""
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measured_plan, "MeasurementProcess", SimulatedGPU)
    monkeypatch.setattr(Simulated, "started", [])
    data = tmp_path / "reviews"
    return TrainConfig(
        data=str(data),
        out=str(tmp_path / "run"),
        bert_config=str(write_small_task(data, train=16, dev=4)),
        init_checkpoint="none",
        max_seq_length=16,
        target_batch=8,
        max_updates=0,
        save_every="1",
        noise_scale="none",
    )


def pretend(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    """Pretend to have a GPU, but only where the default precision is looked up."""
    details = SimpleNamespace(get_device_details=lambda _: {"compute_capability": capability})
    gpus = SimpleNamespace(list_physical_devices=lambda _: ["GPU"], experimental=details)
    monkeypatch.setattr(precision, "tf", SimpleNamespace(config=gpus))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Return a list to which each run is added."""
    made: list[Run] = []
    monkeypatch.setattr(training, "Run", lambda *args: made.append(Run(*args)) or made[-1])
    return made


def start(events: Any) -> None:
    """Start a run, and close it before its first update."""
    assert isinstance(next(events), Started)
    events.close()


def check(run: Run, precision: str) -> None:
    """Check that every part of a run uses a precision."""
    dtype = precision.removeprefix("mixed_")
    lengths = run.setup.train_store.shapes[:, 1]
    assert run.setup.config.precision == run.setup.request.config.precision == precision
    assert run.model.layers[-1].compute_dtype == dtype
    assert (lengths % 8 == 0).all() == (dtype != "float32")
    scaled = isinstance(run.optimizer.inner, tf_keras.mixed_precision.LossScaleOptimizer)
    assert scaled == (dtype == "float16")


@pytest.mark.parametrize(
    ("gpu", "half", "time", "chosen"), [(A100, BFLOAT16, 2.0, FLOAT32), (T4, FLOAT16, 0.5, FLOAT16)]
)
def test_run_uses_records_and_keeps_the_faster_precision(
    config: TrainConfig,
    runs: list[Run],
    monkeypatch: pytest.MonkeyPatch,
    gpu: tuple[int, int],
    half: str,
    time: float,
    chosen: str,
) -> None:
    pretend(monkeypatch, gpu)
    monkeypatch.setattr(SimulatedGPU, "times", {half: time, FLOAT32: 1.0})
    list(train(config, silent))
    folder = RunPaths(Path(str(config.out)))
    plan = json.loads(folder.plan.read_text())
    assert (read_run_config(folder.path).precision, plan["precision"]) == (chosen, chosen)
    assert list(plan["precisions"]) == [half, FLOAT32]
    assert f" examples/s in {chosen}, " in plan["why"]

    # The rest of the run does not depend on the GPU or on new measurements.
    pretend(monkeypatch, GTX_1050_TI)
    Simulated.started.clear()
    start(resume(folder.path, {"max_updates": 2, "precision": "auto"}, silent))
    assert Simulated.started == []
    assert json.loads(folder.plan.read_text()) == plan | {"updates": 2}
    assert read_run_config(folder.path).precision == chosen
    for run in runs:
        check(run, chosen)
    other = {BFLOAT16: FLOAT32, FLOAT32: FLOAT16, FLOAT16: FLOAT32}[chosen]
    with pytest.raises(ConfigError, match=rf"`precision` to {other} \(was {chosen}\)"):
        list(resume(folder.path, {"precision": other}, silent))
    assert len(runs) == 2


def test_device_decides_if_nothing_is_measured(
    config: TrainConfig, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, A100)
    start(train(dataclasses.replace(config, micro_batch=4), silent))
    check(runs[0], BFLOAT16)
    assert Simulated.started == []


def test_workers_use_the_precision_on_which_they_agree(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half precision is faster on this worker, but the other one has another GPU."""
    pretend(monkeypatch, A100)
    monkeypatch.setattr(SimulatedGPU, "times", {BFLOAT16: 0.5, FLOAT32: 1.0})
    inputs, topology = run_inputs(config, silent), Topology()
    alone, request, _ = agreed_plan.agree_on_plan(config, inputs, topology, silent)
    assert alone.precision == request.config.precision == BFLOAT16

    other = {FLOAT16: 20.0, FLOAT32: 10.0}
    monkeypatch.setattr(agreed_plan, "all_gather", lambda _, mine: [mine, other])
    Simulated.started.clear()
    config, request, planned = agreed_plan.agree_on_plan(config, inputs, topology, silent)
    assert config.precision == request.config.precision == planned.values["precision"] == FLOAT32
    assert Simulated.started == []  # This worker measured float32 as well.

    given = dataclasses.replace(config, precision="auto", micro_batch=4)
    monkeypatch.setattr(agreed_plan, "all_gather", lambda _, mine: [mine, dict.fromkeys(other)])
    config, request, _ = agreed_plan.agree_on_plan(given, inputs, topology, silent)
    assert config.precision == request.config.precision == FLOAT32
