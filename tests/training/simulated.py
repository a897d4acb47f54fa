"""A simulated measurement process, for tests of planning."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import pytest
import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.distribution import device_memory
from bertaccum.planning.measurement import Measurement, MeasurementRequest

MIB = 2**20


def show_gpus(monkeypatch: pytest.MonkeyPatch, *capabilities: tuple[int, int]) -> None:
    """Make TensorFlow list GPUs with these compute capabilities."""
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: [*capabilities])
    monkeypatch.setattr(
        tf.config.experimental, "get_device_details", lambda gpu: {"compute_capability": gpu}
    )


def occupy_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process hold the memory of the GPUs, as after a run."""
    monkeypatch.setattr(device_memory, "_limits", [])
    monkeypatch.setattr(device_memory, "used_bytes", lambda: 1)
    monkeypatch.setattr(_tf_compat, "has_started", lambda: True)


class Simulated:
    """A simulated `MeasurementProcess` for BERT-Small, fastest with micro-batches of eight."""

    started: ClassVar[list[dict[str, Any]]] = []
    examples: ClassVar[int] = 64

    def __init__(self, progress: object, environment: dict[str, str]) -> None:
        self.environment = environment

    def __enter__(self) -> Simulated:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        pass

    def build(self, job: dict[str, Any]) -> dict[str, Any]:
        self.job = job
        self.started.append(job | {"environment": self.environment})
        target = job["config"]["target_batch"]
        parts = {"parameters": 110, "embeddings": 60, "slots": 220, "accumulators": 110}
        return {
            "static_bytes": {name: mib * MIB for name, mib in parts.items()},
            "limit_bytes": job["limit_bytes"],
            "device": "CPU",
            "precision": job["config"]["precision"],
            "parameters": 28_000_000,
            "train_examples": len(job["tsvs"]) and self.examples,
            "largest": (1, 128),
            "windows": [[(1, 128)] * target],
        }

    def run(self, request: MeasurementRequest) -> Measurement | None:
        size, (_, length) = max((len(m), max(m)) for m in request.micro_batches)
        example = 12 if request.recompute == "layer" else 37
        moved = {"none": 0, "moments": 220, "all": 330}[request.offload]
        static = (450 if request.accumulate else 340) - moved
        peak = max(500 - moved, static + example * size * length / 128) * MIB
        if peak > self.job["limit_bytes"]:
            return None
        slower = 1.25 if request.recompute == "layer" else 1.0
        slower *= {"none": 1.0, "moments": 1.05, "all": 1.1}[request.offload]
        seconds = sum(
            0.01 + len(m) * (1 + abs(len(m) - 8) / 32) / 20 for m in request.micro_batches
        )
        return Measurement(0.1 + slower * seconds, peak, (440 - moved) * MIB)


class SimulatedGPU(Simulated):
    """A simulated process on a GPU whose speed depends on the precision.

    `times` has the duration of an update in each precision, relative to that of `Simulated`; None
    if nothing fits.
    """

    times: ClassVar[dict[str, float | None]] = {}

    def run(self, request: MeasurementRequest) -> Measurement | None:
        time, found = self.times[self.job["config"]["precision"]], super().run(request)
        if time is None or found is None:
            return None
        return dataclasses.replace(found, seconds=time * found.seconds)


class SimulatedXLA(Simulated):
    """A simulated process in which compiled steps take other times.

    `speedup` divides the time of compiled updates. Each shape takes `shape_seconds` to compile.
    """

    examples: ClassVar[int] = 32_000
    speedup: ClassVar[float] = 4.0
    shape_seconds: ClassVar[float] = 5.0

    def build(self, job: dict[str, Any]) -> dict[str, Any]:
        self.compiled: set[tuple[int, int]] = set()
        windows = [[(1, n) for n in range(4, 132, 4)]] * 4
        return super().build(job) | {"windows": windows}

    def run(self, request: MeasurementRequest) -> Measurement | None:
        found, padded = super().run(request), request.padded
        if found is None or padded is None:
            return found
        assert len(padded) == len(request.micro_batches)
        for examples, (rows, length) in zip(request.micro_batches, padded, strict=True):
            assert len(examples) <= rows and max(n for _, n in examples) <= length
        new = set(padded) - self.compiled
        self.compiled |= new
        seconds = found.seconds / self.speedup + len(new) * self.shape_seconds
        return dataclasses.replace(found, seconds=seconds)
