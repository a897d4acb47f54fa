"""Measuring plans: training steps run in separate processes, and the chosen plan is verified.

The first process measures with as much memory as possible. The second process has only as much
memory as the device to plan for, and runs a real update of the chosen plan.
"""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from typing import Any

from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.precision import resolved_precision
from bertaccum.bert.presets import PRESET_CONFIGS, USUAL
from bertaccum.distribution import device_memory
from bertaccum.options.commands import TrainConfig
from bertaccum.options.fields import AUTO
from bertaccum.options.offload_rungs import LADDER, OFFLOAD
from bertaccum.planning.advice import Situation, Size, remedies
from bertaccum.planning.batch_plan import BatchPlan, Saving, even_micro_batches
from bertaccum.planning.measurement_job import measurement_job
from bertaccum.planning.measurement_process import Measurement, MeasurementProcess
from bertaccum.planning.offloading import bytes_on_device, bytes_on_host, state_bytes
from bertaccum.planning.plan_request import PlanRequest
from bertaccum.planning.search import (
    MARGIN,
    Candidate,
    SearchResult,
    SearchSpace,
    rate,
    search,
    strict_limit,
    verified,
)
from bertaccum.system.machine_memory import available_bytes
from bertaccum.system.progress import Progress
from bertaccum.system.sizes import format_size

_MIB = 2**20


def measure_plan(request: PlanRequest, progress: Progress) -> dict[str, Any]:
    """Measure the candidates, choose a plan and verify it.

    Args:
      request: Request to the planner.
      progress: Called with the current activity.

    Returns:
      The content of `plan.json`.

    Raises:
      BertAccumError: The data or the model cannot be used.
    """
    start, limit = time.perf_counter(), request.limit_bytes
    config, what_if = request.step_config(), request.memory_bytes is not None
    offloads = _offloads(request, limit)
    environment = {"CUDA_VISIBLE_DEVICES": ""} if what_if else {}
    on_cpu = what_if or device_memory.device_name() == "CPU"
    pool = _pool_bytes(limit, on_cpu, _host_bytes(request, offloads[-1]))
    # The second process starts early, to load TensorFlow while the first one builds the model.
    with (
        MeasurementProcess(progress, environment) as process,
        MeasurementProcess(progress, environment) as verifier,
    ):
        for offload in offloads:
            config = dataclasses.replace(config, offload=offload)
            built = process.build(measurement_job(request, config, pool, 2))
            if built is not None:
                break
        else:
            return _nothing_built(request, config, limit)
        offloads = offloads[offloads.index(offload) :]
        space = _space(request, config, built, offloads, limit or built["limit_bytes"])
        measured = _Measured(request, built, space, search(process, space))
        process.end()
        proven = _prove(measured, config, verifier, pool)
        verifier.end()
        recomputed = Saving("layer", offloads[-1])
        if proven is None and recomputed not in space.savings:
            # The advice needs the cost of recomputation, even if the options do not allow it.
            other = dataclasses.replace(space, savings=[recomputed], speed_seconds=0.0)
            measured.found.costs.update(search(process, other).costs)
    values = measured.values() | (measured.chosen(*proven) if proven else measured.nothing())
    return values | {"planning_seconds": round(time.perf_counter() - start, 1)}


def _prove(
    measured: _Measured, config: TrainConfig, verifier: MeasurementProcess, pool: int | None
) -> tuple[Candidate, Measurement] | None:
    """Return the best candidate whose real update fits, and its measurement; None if none does.

    The update must meet `strict_limit`.
    """
    space, best = measured.space, measured.found.best_first()
    strict = strict_limit(space.limit_bytes)
    # The simulated GPU may have more memory than this machine.
    strict = max(min(strict, pool or strict), device_memory.MIN_BYTES)
    if not best:
        return None
    config = dataclasses.replace(config, offload=best[0].plan.offload)
    steps = 1 if space.alone(best[0].plan) else 2
    if not verifier.build(measurement_job(measured.request, config, strict, steps)):
        return None
    return verified(measured.found, verifier, space)


def _pool_bytes(limit: int | None, on_cpu: bool, host_bytes: int) -> int | None:
    """Return the memory to measure with, in bytes; None for the whole memory of a GPU.

    On a CPU, the result exceeds the limit if the machine has enough memory, because measured peaks
    are unreliable close to a limit.
    """
    if limit is None or not on_cpu:
        return limit
    most = available_bytes() - host_bytes
    return max(min(4 * limit, int(most * 0.85)) // _MIB * _MIB, device_memory.MIN_BYTES)


def _offloads(request: PlanRequest, limit: int | None) -> list[str]:
    """Return what may be offloaded, the fastest first, without what leaves too much for the limit.

    Args:
      request: Request to the planner.
      limit: Memory limit in bytes; None for all of a GPU's memory.
    """
    allowed = request.config.offload
    if allowed != AUTO:
        return [allowed]
    in_files = request.config.offload_folder is not None
    free = math.inf if in_files else available_bytes()
    most = math.inf if limit is None else limit
    return [
        name
        for name in OFFLOAD
        if sum(bytes_on_device(_static_bytes(request), name).values()) < most
        and _host_bytes(request, name) <= free
    ] or [OFFLOAD[-1]]


def _static_bytes(request: PlanRequest) -> dict[str, int]:
    """Return the estimated memory for weights and the optimizer, in bytes."""
    config, encoder = request.config, request.inputs.source.encoder
    trained = encoder.trained_parameters(config.train_layers, config.freeze == "embeddings")
    return {"parameters": 4 * encoder.parameters, "embeddings": 0} | state_bytes(trained)


def _host_bytes(request: PlanRequest, offload: str) -> int:
    """Return the estimated memory of the host for the offloaded tensors, in bytes."""
    return request.devices * bytes_on_host(_static_bytes(request), offload)


def _space(
    request: PlanRequest,
    config: TrainConfig,
    built: dict[str, Any],
    offloads: list[str],
    limit: float,
) -> SearchSpace:
    sizes = even_micro_batches(config.target_batch)
    if config.micro_batch != AUTO:
        sizes = [int(config.micro_batch)]
    kinds = ["none", "layer"] if config.recompute == AUTO else [config.recompute]
    return SearchSpace(
        target_batch=config.target_batch,
        sizes=sizes,
        savings=[Saving(kind, offload) for offload in offloads for kind in kinds],
        largest=tuple(built["largest"]),
        windows=[[tuple(shape) for shape in window] for window in built["windows"]],
        limit_bytes=limit,
        accumulator_bytes=built["static_bytes"]["accumulators"],
        cut=config.cut,
        shared=request.shared,
    )


@dataclass(frozen=True)
class _Measured:
    """The measurements for a request, as the content of `plan.json`.

    Args:
      request: Request to the planner.
      built: Description of the model that the measurement process built.
      space: Candidates and limits of the search.
      found: Result of the search.
    """

    request: PlanRequest
    built: dict[str, Any]
    space: SearchSpace
    found: SearchResult

    def values(self) -> dict[str, Any]:
        """Return the values that do not depend on the choice."""
        built, longest, costs = self.built, self.space.longest, self.found.costs
        candidates = [
            {
                **dataclasses.asdict(candidate.plan),
                "predicted_peak_bytes": round(candidate.predicted_peak_bytes),
                "measured_peak_bytes": candidate.measured_peak_bytes
                and round(candidate.measured_peak_bytes),
                "examples_per_second": candidate.examples_per_second
                and round(candidate.examples_per_second, 3),
                "fits": candidate.fits,
            }
            for candidate in self.found.candidates
        ]
        simulated = self.request.memory_bytes
        return {
            "model": self.request.inputs.source.name,
            "parameters": built["parameters"],
            "train_examples": built["train_examples"],
            "precision": built["precision"],
            "device": "GPU simulated on the CPU" if simulated else built["device"],
            "memory_bytes": round(self.space.limit_bytes),
            "margin_bytes": round(self.space.limit_bytes * MARGIN),
            "longest": longest,
            "largest_windows": self.space.largest[0],
            "static_bytes": built["static_bytes"],
            "host_bytes": 0,
            "update_bytes": {str(k): round(c.update_bytes) for k, c in costs.items()},
            "example_bytes": {
                k.recompute: round(c.example_bytes(longest)) for k, c in costs.items()
            },
            "candidates": candidates,
        }

    def chosen(self, candidate: Candidate, measurement: Measurement) -> dict[str, Any]:
        """Return the values for a candidate that was verified."""
        saving = candidate.plan.saving
        exchange = self.space.exchange_bytes(saving, self.found.resting_bytes[saving])
        return {
            **dataclasses.asdict(candidate.plan),
            "static_bytes": bytes_on_device(self.built["static_bytes"], saving.offload),
            "host_bytes": _host_bytes(self.request, saving.offload),
            "prices": dataclasses.asdict(self.found.prices[saving]),
            "peak_memory_bytes": round(max(measurement.peak_bytes, exchange)),
            "examples_per_second": round(rate(candidate), 3),
            "why": _why(candidate, self.found, self.space.shared),
            "remedies": [],
        }

    def nothing(self) -> dict[str, Any]:
        """Return the values if no candidate fits, with advice."""
        found, usable = self.found, self.space.usable_bytes
        least = min((c.predicted_peak_bytes for c in found.candidates), default=None)
        static, encoder = self.built["static_bytes"], self.request.inputs.source.encoder
        situation = Situation(
            costs=found.costs,
            space=self.space,
            # Do not propose a change whose predicted peak is close to the peak that failed.
            usable_bytes=usable if least is None else min(usable, 0.97 * least),
            bytes_of={name: part for name, part in static.items() if name != "embeddings"},
            halved=self.request.config.accumulator_dtype != "float32",
        )
        own = Size(self.built["parameters"], _activations(encoder))
        usual = ((name, PRESET_CONFIGS[name]) for name in USUAL)
        presets = {name: Size(c.parameters, _activations(c)) for name, c in usual}
        empty = dict.fromkeys(f.name for f in dataclasses.fields(BatchPlan))
        return empty | {
            "peak_memory_bytes": None,
            "examples_per_second": None,
            "why": _why_nothing(self.space, least),
            "remedies": remedies(situation, own, presets),
        }


def _why(chosen: Candidate, found: SearchResult, shared: bool) -> str:
    if shared and chosen.plan.accumulation_steps == 1:
        return "each replica's whole share of a window fits"
    whole = [c for c in found.candidates if c.plan.accumulation_steps == 1 and c.fits]
    if chosen.plan.accumulation_steps == 1:
        others = any(rate(c) for c in found.candidates if c.plan != chosen.plan)
        untimed = "" if others else "; smaller micro-batches were not timed"
        return f"the whole window fits: no accumulation is needed{untimed}"
    speed = f"{rate(chosen):.1f} examples/s"
    if whole and rate(whole[0]) and not shared:
        better = "are faster" if rate(chosen) > rate(whole[0]) else "need less memory"
        return (
            f"the whole window fits, but smaller micro-batches {better}: {speed}"
            f" instead of {rate(whole[0]):.1f}"
        )
    fitting = [c for c in found.candidates if c.fits]
    if any(rate(c) > rate(chosen) for c in fitting):
        return f"it needs the least memory of those that fit and are about as fast: {speed}"
    return f"the fastest of the {len(fitting)} candidates that fit: {speed}"


def _why_nothing(space: SearchSpace, least: float | None) -> str:
    """Return why no candidate fits, given the lowest predicted peak in bytes; None if unknown."""
    size, usable, (windows, longest) = min(space.sizes), space.usable_bytes, space.largest
    many = "one example" if size == 1 else f"a micro-batch of {size}"
    tokens = f"{windows} windows of {longest} tokens" if windows > 1 else f"{longest} tokens"
    if least is None:
        takes = "exceeds the memory"
    elif least <= usable:
        takes = f"should take {format_size(least)}, but ran out of memory in a real update"
    else:
        takes = f"takes at least {format_size(least)}"
    return (
        f"nothing fits: {many} of {tokens} {takes};"
        f" {format_size(usable)} is usable after the safety margin"
    )


def _nothing_built(request: PlanRequest, config: TrainConfig, limit: int | None) -> dict[str, Any]:
    """Return the result for weights, moments and accumulators that do not fit in memory."""
    parameters = request.inputs.source.encoder.parameters
    static = bytes_on_device(_static_bytes(request), config.offload)
    built = {
        "static_bytes": static,
        "parameters": parameters,
        "train_examples": None,
        "device": device_memory.device_name(),
        "precision": resolved_precision(config.precision),
        "largest": (config.windows, config.max_seq_length),
        "windows": [[(config.windows, config.max_seq_length)]],
    }
    space = _space(request, config, built, [config.offload], limit or 0)
    measured = _Measured(request, built, space, SearchResult())
    parts = LADDER[config.offload].left
    taken = format_size(sum(static.values()))
    why = f"nothing fits: {parts} of {request.inputs.source.name} alone take {taken}"
    return measured.values() | measured.nothing() | {"why": why, "planning_seconds": 0.0}


def _activations(encoder: EncoderConfig) -> int:
    return encoder.num_hidden_layers * encoder.hidden_size
