"""Measuring a plan: training steps are rehearsed in another process, and the best is proven.

One process measures, with all the memory that can be had; a second one, with no more than
the device has, runs a real update of what was chosen.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.precision import resolved_precision
from bertaccum.bert.presets import PRESET_CONFIGS, EncoderConfig
from bertaccum.config import StepConfig, TrainConfig
from bertaccum.data.labels import Labels
from bertaccum.data.token_store import store_digest
from bertaccum.files import sha256
from bertaccum.planning import device_memory
from bertaccum.planning.advice import Situation, Size, remedies
from bertaccum.planning.batch_plan import BatchPlan, even_micro_batches
from bertaccum.planning.measurement import Measurement
from bertaccum.planning.measurement_process import MeasurementProcess
from bertaccum.planning.search import (
    MARGIN,
    Candidate,
    SearchResult,
    SearchSpace,
    rate,
    search,
    verified,
)
from bertaccum.progress import Progress
from bertaccum.settings import AUTO, field_names, size_in_bytes
from bertaccum.sizes import format_size

_MIB = 2**20


@dataclass(frozen=True)
class Subject:
    """What is to be planned for.

    Args:
      config: the options.
      source: the model; its vocabulary is empty if it is not known.
      labels: the classes.
      tsvs: data that windows are taken from; without them all examples are of full length.
      memory_bytes: of a device that is not here, its allowance taken off; None for this one.
      devices: of this process; the plan suits the smallest.
      shared: windows are shares of those that more than one replica update by.
    """

    config: StepConfig
    source: ModelSource
    labels: Labels
    tsvs: list[Path]
    memory_bytes: int | None = None
    devices: int = 1
    shared: bool = False

    @functools.cached_property
    def limit_bytes(self) -> int | None:
        """What the device may hand out; None for all of a GPU, which itself says how much.

        A CPU without limit is taken to have half of the machine's memory for tensors.

        Raises:
          ConfigError: the limit is too small.
        """
        named = size_in_bytes("--memory-limit", self.config.memory_limit)
        limit = self.memory_bytes or named
        if limit is None and device_memory.device_name() == "CPU":
            limit = device_memory.machine_bytes() // 2
        if limit is not None:
            device_memory.check_limit(limit)
        return limit

    @functools.cached_property
    def tsv_digests(self) -> list[str]:
        """What the data are, as digests."""
        return [sha256(tsv) for tsv in self.tsvs]

    @functools.cached_property
    def store_digests(self) -> list[str]:
        """The names of the data's token stores."""
        length, words = self.config.max_seq_length, self.source.vocabulary
        return [
            store_digest(tsv, digest, self.labels, words, length)
            for tsv, digest in zip(self.tsvs, self.tsv_digests, strict=True)
        ]

    @property
    def takes_head(self) -> bool:
        """Whether the pretrained weights include a head for exactly these classes."""
        return self.source.labels == dataclasses.asdict(self.labels)

    def step_config(self) -> TrainConfig:
        """The options as those of a run."""
        return TrainConfig(**{name: getattr(self.config, name) for name in field_names(StepConfig)})


def rehearse(subject: Subject, progress: Progress) -> dict[str, Any]:
    """Measures and chooses.

    Args:
      subject: what to plan for.
      progress: called with what is being done.

    Returns:
      What `plan.json` holds.

    Raises:
      BertAccumError: the data or the model cannot be used.
    """
    start, limit = time.perf_counter(), subject.limit_bytes
    config, what_if = subject.step_config(), subject.memory_bytes is not None
    # On the CPU that stands in for a GPU, slots in host memory would be in the same memory.
    pretended = what_if and config.offload_optimizer
    if pretended:
        config = dataclasses.replace(config, offload_optimizer=False)
    environment = {"CUDA_VISIBLE_DEVICES": ""} if what_if else {}
    pool = _pool_bytes(limit, on_cpu=what_if or device_memory.device_name() == "CPU")
    # The second is started early: it loads TensorFlow while the first builds the model.
    with (
        MeasurementProcess(progress, environment) as process,
        MeasurementProcess(progress, environment) as verifier,
    ):
        built = process.build(measurement_job(subject, config, pool, 2))
        if built is None:
            return _nothing_built(subject, config, limit)
        moved = built["static_bytes"]["slots"] if pretended else 0
        task = _task(subject, config, built, (limit or built["limit_bytes"]) + moved)
        found = search(process, task)
        process.end()
        proven = _prove(subject, config, verifier, task, found, pool)
        verifier.end()
        if proven is None and "layer" not in task.recompute:
            # For the advice.
            other = dataclasses.replace(task, recompute=["layer"], speed_seconds=0.0)
            found.costs |= search(process, other).costs
    values = _values(subject, task, found, built, moved)
    values |= (
        _chosen(task, found, proven, moved)
        if proven
        else _nothing(subject, task, found, built, moved)
    )
    return values | {"planning_seconds": round(time.perf_counter() - start, 1)}


def _prove(
    subject: Subject,
    config: TrainConfig,
    verifier: MeasurementProcess,
    task: SearchSpace,
    found: SearchResult,
    pool: int | None,
) -> tuple[Candidate, Measurement] | None:
    """The best that really fits, with half of the margin: so that it still does another day."""
    best = found.best_first()
    strict = round(task.limit_bytes * (1 - MARGIN / 2)) // _MIB * _MIB
    # A card may be larger than this machine.
    strict = max(min(strict, pool or strict), device_memory.LEAST_BYTES)
    if not best or not verifier.build(
        measurement_job(subject, config, strict, 1 if task.alone(best[0].plan.micro_batch) else 2)
    ):
        return None
    return verified(found, verifier, task)


def _pool_bytes(limit: int | None, on_cpu: bool) -> int | None:
    """What measuring gets: on a CPU more than the limit, near which peaks say little."""
    if limit is None or not on_cpu:
        return limit
    most = min(device_memory.available_bytes(), device_memory.machine_bytes())
    return max(min(4 * limit, int(most * 0.85)) // _MIB * _MIB, device_memory.LEAST_BYTES)


def measurement_job(
    subject: Subject, config: TrainConfig, limit: int | None, accumulation_steps: int
) -> dict[str, Any]:
    """What a process is to build.

    Args:
      subject: model, classes and data.
      config: the options.
      limit: bytes that it may take; None for all that a GPU has.
      accumulation_steps: with one there are no accumulators.
    """
    source = subject.source
    first_kind = "layer" if config.recompute == "layer" else "none"
    return {
        "config": dataclasses.asdict(dataclasses.replace(config, recompute=first_kind)),
        "encoder": dataclasses.asdict(source.encoder),
        "classes": len(subject.labels.values),
        "labels": subject.labels.values,
        "vocabulary": source.vocabulary,
        "tsvs": [str(tsv) for tsv in subject.tsvs],
        "limit_bytes": limit,
        "accumulation_steps": accumulation_steps,
        "devices": subject.devices,
    }


def _task(
    subject: Subject, config: TrainConfig, built: dict[str, Any], limit: float
) -> SearchSpace:
    sizes = even_micro_batches(config.target_batch)
    if config.micro_batch != AUTO:
        sizes = [int(config.micro_batch)]
    return SearchSpace(
        target_batch=config.target_batch,
        sizes=sizes,
        recompute=["none", "layer"] if config.recompute == AUTO else [config.recompute],
        longest=built["longest"],
        windows=built["windows"],
        limit_bytes=limit,
        resting_bytes=built["resting_bytes"],
        accumulator_bytes=built["static_bytes"]["accumulators"],
        cut=config.cut,
        shared=subject.shared,
    )


def _values(
    subject: Subject, task: SearchSpace, found: SearchResult, built: dict[str, Any], moved: int
) -> dict[str, Any]:
    candidates = [
        {
            **dataclasses.asdict(candidate.plan),
            "predicted_peak_bytes": round(candidate.predicted_peak_bytes - moved),
            "measured_peak_bytes": candidate.measured_peak_bytes
            and round(candidate.measured_peak_bytes - moved),
            "examples_per_second": candidate.examples_per_second
            and round(candidate.examples_per_second, 3),
            "fits": candidate.fits,
        }
        for candidate in found.candidates
    ]
    return {
        "model": subject.source.name,
        "parameters": built["parameters"],
        "precision": built["precision"],
        "device": "a GPU, rehearsed on the CPU" if subject.memory_bytes else built["device"],
        "memory_bytes": round(task.limit_bytes - moved),
        "margin_bytes": round(task.limit_bytes * MARGIN),
        "longest": task.longest,
        "static_bytes": built["static_bytes"] | ({"slots": 0} if moved else {}),
        "update_bytes": {k: round(c.update_bytes - moved) for k, c in found.costs.items()},
        "example_bytes": {k: round(c.example_bytes(task.longest)) for k, c in found.costs.items()},
        "candidates": candidates,
    }


def _chosen(
    task: SearchSpace, found: SearchResult, proven: tuple[Candidate, Measurement], moved: int
) -> dict[str, Any]:
    candidate, measurement = proven
    return {
        **dataclasses.asdict(candidate.plan),
        "peak_memory_bytes": round(max(measurement.peak_bytes, task.exchange_bytes) - moved),
        "examples_per_second": round(rate(candidate), 3),
        "why": _why(candidate, found, task.shared),
        "remedies": [],
    }


def _why(chosen: Candidate, found: SearchResult, shared: bool) -> str:
    if shared and chosen.plan.accumulation_steps == 1:
        return "each replica's whole share of a window fits"
    whole = [c for c in found.candidates if c.plan.accumulation_steps == 1 and c.fits]
    if chosen.plan.accumulation_steps == 1:
        return "the whole window fits: no accumulation is needed"
    speed = f"{chosen.examples_per_second:.1f} examples/s"
    if whole and whole[0].examples_per_second and not shared:
        return (
            f"no accumulation is needed, the whole window fits; but cut it is faster: {speed}"
            f" against {whole[0].examples_per_second:.1f}"
        )
    fitting = sum(c.fits for c in found.candidates)
    return f"the fastest of the {fitting} ways that fit: {speed}"


def _nothing(
    subject: Subject, task: SearchSpace, found: SearchResult, built: dict[str, Any], moved: int
) -> dict[str, Any]:
    costs = {kind: cost.less(moved) for kind, cost in found.costs.items()}
    size, usable = min(task.sizes), task.usable_bytes - moved
    many = "one example" if size == 1 else f"a micro-batch of {size}"
    least = min((c.predicted_peak_bytes - moved for c in found.candidates), default=None)
    if least is None:
        takes = "takes more than there is"
    elif least <= usable:
        takes = f"was to take {format_size(least)}, and ran out of memory in a real update"
    else:
        takes = f"takes at least {format_size(least)}"
    why = (
        f"nothing fits: {many} of {task.longest} tokens {takes};"
        f" there are {format_size(usable)}, without the margin"
    )
    parts = {k: v for k, v in built["static_bytes"].items() if k != "embeddings"}
    situation = Situation(
        costs=costs,
        recompute=task.recompute,
        longest=task.longest,
        micro_batch=size,
        # What failed in earnest, or takes nearly as much, is no remedy.
        usable_bytes=usable if least is None else min(usable, 0.97 * least),
        bytes_of=parts | ({"slots": 0} if moved else {}),
        offloaded=subject.config.offload_optimizer,
        halved=subject.config.accumulator_dtype != "float32",
    )
    own = Size(built["parameters"], _activations(subject.source.encoder))
    presets = {name: Size(c.parameters, _activations(c)) for name, c in PRESET_CONFIGS.items()}
    empty = dict.fromkeys(f.name for f in dataclasses.fields(BatchPlan))
    return empty | {
        "peak_memory_bytes": None,
        "examples_per_second": None,
        "why": why,
        "remedies": remedies(situation, own, presets),
    }


def _nothing_built(subject: Subject, config: TrainConfig, limit: int | None) -> dict[str, Any]:
    """What is told where not even the weights with their moments and accumulators fit."""
    parameters = subject.source.encoder.parameters
    parts = {"parameters": 4, "embeddings": 0, "slots": 8, "accumulators": 4}
    built = {
        "static_bytes": {name: size * parameters for name, size in parts.items()},
        "resting_bytes": 16 * parameters,
        "parameters": parameters,
        "device": device_memory.device_name(),
        "precision": resolved_precision(config.precision),
        "longest": config.max_seq_length,
        "windows": [[config.max_seq_length]],
    }
    task = _task(subject, config, built, limit or 0)
    values = _values(subject, task, SearchResult(), built, 0) | _nothing(
        subject, task, SearchResult(), built, 0
    )
    why = (
        f"nothing fits: weights, moments and accumulators of {subject.source.name} alone take"
        f" {format_size(16 * parameters)}"
    )
    return values | {"why": why, "planning_seconds": 0.0}


def _activations(encoder: EncoderConfig) -> int:
    return encoder.num_hidden_layers * encoder.hidden_size
