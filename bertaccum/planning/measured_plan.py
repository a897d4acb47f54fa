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

from bertaccum.bert.precision import resolved_precision
from bertaccum.distribution import device_memory
from bertaccum.errors import ConfigError
from bertaccum.options.adapting import FULL, LORA, target_names
from bertaccum.options.fields import AUTO
from bertaccum.options.offload_rungs import LADDER, OFFLOAD, OFFLOAD_NONE, offloads_sums
from bertaccum.options.task_names import TOKEN_CLASSIFICATION
from bertaccum.planning.advice import (
    Adapters,
    MemoryShortage,
    Size,
    preset_sizes,
    reason_for,
    reason_nothing_fits,
    remedies,
)
from bertaccum.planning.calculated_speeds import UpdateTimer
from bertaccum.planning.calculated_time import CalculatedTime
from bertaccum.planning.cost import bytes_on_device, bytes_on_host, state_bytes
from bertaccum.planning.measurement import Measurement, MeasurementProcess, PlanRequest
from bertaccum.planning.plan import (
    MARGIN,
    Saving,
    SearchSpace,
    even_micro_batches,
    verification_limit,
)
from bertaccum.planning.plan_result import Candidate, MeasuredCosts, PlanResult
from bertaccum.planning.search import SearchResult, search, verify_best
from bertaccum.system.machine import available_bytes
from bertaccum.system.progress import Progress
from bertaccum.system.sizes import format_size

_MIB = 2**20


def measure_plan(request: PlanRequest, progress: Progress) -> PlanResult:
    """Measure the candidates, choose a plan and verify it.

    Raises:
      BertAccumError: The data or the model cannot be used.
    """
    start, what_if = time.perf_counter(), request.memory_bytes is not None
    offloads = _offloads(request)
    environment = {"CUDA_VISIBLE_DEVICES": ""} if what_if else {}
    # The second process starts early, to load TensorFlow while the first one builds the model.
    with (
        MeasurementProcess(progress, environment) as process,
        MeasurementProcess(progress, environment) as verifier,
    ):
        for offload in offloads:
            pool = _pool_bytes(request, offload)
            built = process.build(request.job(offload, pool, 2))
            if built is not None:
                break
        else:
            return _nothing_built(request, offload)
        offloads = offloads[offloads.index(offload) :]
        space, timer = _search_space(request, built, offloads), _timer(request)
        measured = _Measurements(request, built, space, search(process, space, timer))
        process.end()
        verified = _verify_best(measured, verifier)
        verifier.end()
        recomputed = Saving("layer", offloads[-1])
        if verified is None and recomputed not in space.savings:
            # The advice needs the cost of recomputation, even if the options do not allow it.
            other = dataclasses.replace(space, savings=[recomputed], speed_seconds=0.0)
            measured.result.costs.update(search(process, other, timer).costs)
    plan = measured.verified_plan(*verified) if verified else measured.no_plan()
    return dataclasses.replace(plan, planning_seconds=round(time.perf_counter() - start, 1))


def _offloads(request: PlanRequest) -> list[str]:
    """Return what may be offloaded, the fastest first, without what cannot fit."""
    _, allowed = request.config.saving
    if allowed != AUTO:
        return [allowed]
    in_files = request.config.offload_folder is not None
    free = math.inf if in_files else available_bytes()
    most = math.inf if request.limit_bytes is None else request.limit_bytes
    return [
        name
        for name in OFFLOAD
        if sum(bytes_on_device(_static_bytes(request), name).values()) < most
        and _host_bytes(request, name) <= free
    ] or [OFFLOAD[-1]]


def _static_bytes(request: PlanRequest) -> dict[str, int]:
    """Return the estimated memory for weights and the optimizer."""
    encoder = request.inputs.source.encoder
    trained = _adapted(request)
    if trained is None:
        embeddings = request.config.freeze == "embeddings"
        trained = encoder.trained_parameters(request.config.train_layers, embeddings)
    frozen = max(encoder.parameters - trained, 0)
    saved = 0 if request.config.frozen_dtype == "float32" else 2 * frozen
    return {"parameters": 4 * encoder.parameters - saved, "embeddings": 0} | state_bytes(trained)


def _adapted(request: PlanRequest) -> int | None:
    """Return the estimated number of weights to train; None if whole layers are trained."""
    config = request.config
    if config.adapt == FULL:
        return None
    targets = target_names(config.lora_targets) if config.adapt == LORA else ()
    encoder = request.inputs.source.encoder
    return encoder.adapted_parameters(targets, config.lora_rank, config.train_layers)


def _adapters(request: PlanRequest) -> Adapters | None:
    """Return the memory for training adapters instead of whole layers; None if it is no choice."""
    config, encoder = request.config, request.inputs.source.encoder
    if config.adapt != FULL or config.predicts_masked:
        return None
    try:
        other = dataclasses.replace(config, adapt=LORA)
    except ConfigError:
        return None
    trained = _adapted(dataclasses.replace(request, config=other))
    assert trained is not None
    frozen_bytes = 4 if config.frozen_dtype == "float32" else 0
    return Adapters(
        sum(state_bytes(trained).values()), (encoder.parameters - trained) * frozen_bytes // 2
    )


def costs_with(request: PlanRequest, costs: MeasuredCosts, offload: str) -> MeasuredCosts:
    """Return the costs for a plan that offloads something else."""
    state = _static_bytes(request)
    # Offloaded parts have no size on the device.
    whole = {part: size or state.get(part, 0) for part, size in costs.static_bytes.items()}
    return dataclasses.replace(
        costs,
        static_bytes=bytes_on_device(whole, offload),
        host_bytes=_host_bytes(request, offload),
    )


def _host_bytes(request: PlanRequest, offload: str) -> int:
    return request.devices * bytes_on_host(_static_bytes(request), offload)


def was_cut_short(request: PlanRequest, result: PlanResult) -> bool:
    """Return whether this machine has too little memory to measure all that may fit on a card."""
    limit, pool = request.limit_bytes, _pool_bytes(request, OFFLOAD_NONE)
    if request.card is None or limit is None or pool is None or pool >= limit:
        return False
    measured = [] if result.measured is None else result.measured.candidates
    peaks = [candidate.predicted_peak_bytes for candidate in measured]
    return result.plan is None or any(pool <= peak <= limit * (1 - MARGIN) for peak in peaks)


def _pool_bytes(request: PlanRequest, offload: str) -> int | None:
    """Return the memory to measure with; None for the whole memory of a GPU.

    On a CPU, the result exceeds the limit if the machine has enough memory, because measured peaks
    are unreliable close to a limit.
    """
    limit = request.limit_bytes
    on_cpu = request.memory_bytes is not None or device_memory.device_name() == "CPU"
    if limit is None or not on_cpu:
        return limit
    most = available_bytes() - _host_bytes(request, offload)
    return max(min(4 * limit, int(most * 0.85)) // _MIB * _MIB, device_memory.MIN_BYTES)


def _search_space(request: PlanRequest, built: dict[str, Any], offloads: list[str]) -> SearchSpace:
    config = request.config
    sizes = even_micro_batches(config.target_batch)
    if config.micro_batch != AUTO:
        sizes = [int(config.micro_batch)]
    recompute, _ = config.saving
    kinds = ["none", "layer"] if recompute == AUTO else [recompute]
    return SearchSpace(
        target_batch=config.target_batch,
        sizes=sizes,
        savings=[Saving(kind, offload) for offload in offloads for kind in kinds],
        largest=tuple(built["largest"]),
        windows=[[tuple(shape) for shape in window] for window in built["windows"]],
        limit_bytes=request.limit_bytes or built["limit_bytes"],
        accumulator_bytes=built["static_bytes"]["accumulators"],
        cut=config.cut,
        shared=request.shared,
    )


def _timer(request: PlanRequest) -> UpdateTimer | None:
    """Return the function that calculates times for a simulated card."""
    config, card = request.config, request.card
    if card is None:
        return None
    frozen = config.freeze == "embeddings"
    time = CalculatedTime(
        *(card, request.inputs.source.encoder, config.precision, config.train_layers, frozen),
        adapted=_adapted(request),
        every_token=request.inputs.labels.task == TOKEN_CLASSIFICATION,
    )
    return time.update_seconds


def _verify_best(
    measured: _Measurements, verifier: MeasurementProcess
) -> tuple[Candidate, Measurement] | None:
    """Return the best candidate whose real update fits in the memory of the device, if any does."""
    space, best = measured.space, measured.result.best_first()
    if not best:
        return None
    offload = best[0].plan.offload
    # The simulated GPU may have more memory than this machine.
    limit, pool = verification_limit(space.limit_bytes), _pool_bytes(measured.request, offload)
    limit = max(min(limit, pool or limit), device_memory.MIN_BYTES)
    steps = 2 if space.accumulates(best[0].plan) else 1
    if not verifier.build(measured.request.job(offload, limit, steps)):
        return None
    return verify_best(measured.result, verifier, space)


@dataclass(frozen=True)
class _Measurements:
    """The measurements for a request, from which its answer is made."""

    request: PlanRequest
    built: dict[str, Any]
    space: SearchSpace
    result: SearchResult

    def costs(self) -> MeasuredCosts:
        """Return the costs, as they are if nothing is offloaded."""
        built, space, costs, card = self.built, self.space, self.result.costs, self.request.card
        return MeasuredCosts(
            model=self.request.inputs.source.name,
            parameters=built["parameters"],
            train_examples=built["train_examples"],
            precision=resolved_precision(self.request.config.precision),
            device=f"{card.title}, simulated on the CPU" if card else built["device"],
            memory_bytes=round(space.limit_bytes),
            margin_bytes=round(space.limit_bytes * MARGIN),
            longest=space.longest,
            largest_windows=space.largest[0],
            static_bytes=built["static_bytes"],
            host_bytes=0,
            update_bytes={str(k): round(c.update_bytes) for k, c in costs.items()},
            example_bytes={
                k.recompute: round(c.example_bytes(space.longest)) for k, c in costs.items()
            },
            candidates=[candidate.rounded() for candidate in self.result.candidates],
        )

    def verified_plan(self, candidate: Candidate, measurement: Measurement) -> PlanResult:
        """Return the result for a candidate whose real update fits."""
        saving, result, card = candidate.plan.saving, self.result, self.request.card
        # The gradients of a compiled micro-step are all on the device at once.
        compiled_bytes = measurement.peak_bytes + self.space.accumulator_bytes
        compiled_rate, compiles = None, not offloads_sums(saving.offload)
        if card is not None and compiles and compiled_bytes <= self.space.usable_bytes:
            compiled_rate = round(result.compiled_rates[saving][candidate.plan.micro_batch], 3)
        all_reduce = self.space.all_reduce_bytes(saving, result.resting_bytes[saving])
        costs = costs_with(self.request, self.costs(), saving.offload)
        why = reason_for(candidate, result.candidates, self.space.shared)
        adapters = None if saving.offload == OFFLOAD_NONE else _adapters(self.request)
        if adapters is not None:
            peak = candidate.predicted_peak_bytes
            why += adapters.instead_of_offloading(peak, self.space.usable_bytes)
        return PlanResult(
            candidate.plan,
            costs,
            prices=result.prices[saving],
            peak_memory_bytes=round(max(measurement.peak_bytes, all_reduce)),
            examples_per_second=round(candidate.rate, 3),
            why=why,
            card=None if card is None else card.title,
            compiled_examples_per_second=compiled_rate,
            timed_on=self.request.timed_on,
        )

    def no_plan(self) -> PlanResult:
        """Return the result if no candidate fits, with advice."""
        usable, static = self.space.usable_bytes, self.built["static_bytes"]
        least = min((c.predicted_peak_bytes for c in self.result.candidates), default=None)
        shortage = MemoryShortage(
            costs=self.result.costs,
            space=self.space,
            # Do not propose a change whose predicted peak is close to the peak that failed.
            usable_bytes=usable if least is None else min(usable, 0.97 * least),
            bytes_of={name: part for name, part in static.items() if name != "embeddings"},
            halved=self.request.config.accumulator_dtype != "float32",
            adapters=_adapters(self.request),
        )
        encoder = self.request.inputs.source.encoder
        own = Size(self.built["parameters"], encoder.num_hidden_layers * encoder.hidden_size)
        found = remedies(shortage, own, preset_sizes())
        if self.request.limit_bytes is None:
            found.append("close other programs that use the GPU, or choose a smaller `model`")
        return PlanResult(
            None,
            self.costs(),
            why=reason_nothing_fits(self.space, least),
            remedies=found,
            timed_on=self.request.timed_on,
        )


def _nothing_built(request: PlanRequest, offload: str) -> PlanResult:
    """Return the result for weights, moments and accumulators that do not fit in memory."""
    config, source = request.config, request.inputs.source
    static = bytes_on_device(_static_bytes(request), offload)
    largest = config.windows, config.max_seq_length
    built = {
        "static_bytes": static,
        "limit_bytes": 0,
        "parameters": source.encoder.parameters,
        "train_examples": None,
        "device": device_memory.device_name(),
        "largest": largest,
        "windows": [[largest]],
    }
    space = _search_space(request, built, [offload])
    result = _Measurements(request, built, space, SearchResult()).no_plan()
    taken = format_size(sum(static.values()))
    why = f"nothing fits: {LADDER[offload].left} of {source.name} alone take {taken}"
    return dataclasses.replace(result, why=why)
