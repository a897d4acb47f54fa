"""The planner: finds the fastest plan that fits in memory, and caches the measurements.

Measurements are stored in the user's cache, keyed by a digest of everything they depend on.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from bertaccum.bert.model_finder import find_dimensions
from bertaccum.data.run_inputs import read_inputs, tsvs_to_plan_with
from bertaccum.distribution import device_memory
from bertaccum.options.commands import PlanConfig, TrainConfig
from bertaccum.options.fields import AUTO
from bertaccum.options.pretraining import PretrainConfig
from bertaccum.options.task_names import CLASSIFICATION, REGRESSION
from bertaccum.planning.compile_cost import should_compile
from bertaccum.planning.measured_plan import costs_with, measure_plan, was_cut_short
from bertaccum.planning.measurement import PlanRequest
from bertaccum.planning.plan import BatchPlan, Saving
from bertaccum.planning.plan_result import PlanResult
from bertaccum.system.atomic import write_text
from bertaccum.system.cache import cache_folder, evict, prepare_cache, read_cached, write_cached
from bertaccum.system.files import json_text
from bertaccum.system.phrases import counted
from bertaccum.system.progress import Progress, silent, tell
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.prepared_labels import read_labels


def plan_for_options(config: PlanConfig, progress: Progress) -> PlanResult:
    """Return the plan for the options of `bertaccum plan`, and write it to `config.out`.

    If the default data folder is missing, or the vocabulary has not been downloaded yet, all
    examples are assumed to have the maximum length.

    Raises:
      ConfigError, InputError: The data or the model cannot be used.
    """
    data = Path(config.data)
    tsvs = prepared = tsvs_to_plan_with(config)
    task = make_task(read_labels(data, config.task) if prepared else _usual_labels(config.task))
    source = find_dimensions(config, progress)
    if not source.vocabulary:
        tsvs = []
    card = config.simulated_card
    memory = None if card is None else device_memory.memory_for_tensors(card)
    request = PlanRequest(config, read_inputs(source, task, tsvs, config), memory, card)
    result = _with_compilation(
        find_fastest_plan(request, progress, config.fresh), request, progress
    )
    write_text(Path(config.out).resolve(), json_text(result.values))
    if not tsvs:
        missing = f"the vocabulary of {source.name}" if prepared else f"prepared data in {data}"
        remedy = " (pass one with --vocab)" if prepared else ""
        timed_on = f"{result.timed_on}, because {missing} is missing{remedy}"
        result = dataclasses.replace(result, timed_on=timed_on)
    return result


def _usual_labels(task: str | None) -> Labels:
    """Return the labels of a task, by default a classification, for data that are not known."""
    if task == REGRESSION:
        return Labels([], [], task=REGRESSION)
    return dataclasses.replace(Labels.numbered(2), task=task or CLASSIFICATION)


def _with_compilation(result: PlanResult, request: PlanRequest, progress: Progress) -> PlanResult:
    """Add the shapes of compiled steps, if a run of the usual length compiles its steps."""
    known = request.inputs.tsvs and request.card is None
    if result.plan is None or result.measured is None or not known:
        return result
    request = request.in_precision(result.measured.precision)
    compile, cost = should_compile(request, result, TrainConfig.epochs, None, progress)
    if cost is None or not compile:
        return result
    plan = dataclasses.replace(result.plan, shapes=cost.shapes, real_share=cost.real_share)
    rate = result.examples_per_second or 0.0
    return dataclasses.replace(
        result,
        plan=plan,
        peak_memory_bytes=cost.peak_bytes,
        examples_per_second=round(rate * cost.window_seconds / cost.compiled_seconds, 3) or None,
        compile_cost=cost,
    )


def find_fastest_plan(request: PlanRequest, progress: Progress, fresh: bool = False) -> PlanResult:
    """Return the plan for a request, from the cache if the same request was measured before.

    With `precision` auto on a GPU that supports half precision, this is the faster one of two
    plans: in half precision and in float32.

    With `fresh`, the planner measures again, and forgets which sizes ran out of memory.

    Raises:
      BertAccumError: The data or the model cannot be used.
    """
    results: dict[str, PlanResult] = {}
    for name in request.precisions:
        fits = any(result.plan for result in results.values())
        own = request.in_precision(name)
        results[name] = _plan_in_precision(own, progress, fresh, keep_failure=fits)
    speeds = {name: result.examples_per_second for name, result in results.items()}
    best = max(results, key=lambda name: speeds[name] or 0.0)
    return dataclasses.replace(
        results[best],
        precisions=speeds,
        why=f"{results[best].why}{_comparison(results, best)}",
        planning_seconds=sum(result.planning_seconds for result in results.values()),
        cached=all(result.cached for result in results.values()),
    )


def agreed_precision(speeds: list[dict[str, float | None]]) -> str:
    """Return the precision in which a run is fastest; the slowest worker decides its speed.

    Args:
      speeds: For each worker, the speed in each precision that it can use, in examples/s; None if
        it was not measured, or if no plan fits.
    """
    common = [name for name in speeds[0] if all(name in own for own in speeds)]
    return max(common, key=lambda name: min(own[name] or 0.0 for own in speeds))


def _comparison(results: dict[str, PlanResult], best: str) -> str:
    """Return the end of the reason for the best plan: how fast the other precision is."""
    other = next((name for name in results if name != best), None)
    if other is None or results[best].plan is None:
        return ""
    if results[other].plan is None:
        return f"; nothing fits in {other}"
    one, two = (results[name].examples_per_second for name in (best, other))
    # A plan that avoids sizes that ran out of memory before may never have been timed.
    return f"; {one:.1f} examples/s in {best}, {two:.1f} in {other}" if one and two else ""


def _plan_in_precision(
    request: PlanRequest, progress: Progress, fresh: bool, keep_failure: bool
) -> PlanResult:
    """Return the plan for a request that names its precision.

    If `keep_failure`, another precision fits; cache that nothing fits in this one, so that it is
    not measured again and again. Otherwise, more memory may be free later.
    """
    path = cache_folder() / "plans" / f"{request.digest()}.json"
    values = None if fresh else read_cached(path, progress)
    result = None if values is None else PlanResult.from_values(values, request.timed_on)
    if result is None or (result.plan is None and not keep_failure):
        prepare_cache(progress)
        if request.card is not None:
            minutes = max(round(_expected_seconds(request) / 60), 1)
            took = counted(minutes, "minute")
            tell(progress, f"planning takes about {took} on two cores that nothing else uses")
        result = measure_plan(request, progress)
        if fresh:
            evict(path)
            evict(_limits_file(request))
        if was_cut_short(request, result):
            tell(
                progress,
                "this machine has less free memory than the card, so what it cannot measure counts"
                " as not fitting: free memory, or plan on a larger machine",
            )
        elif result.plan is not None or keep_failure:
            write_cached(path, result.values, progress)
    if request.config.micro_batch == AUTO:
        return _avoiding_learned_limits(result, request, learned_limits(request, progress))
    return result


def _expected_seconds(request: PlanRequest) -> float:
    """Return about how long the measurements for a card take on two cores of a CPU.

    Processes start and trace the layers, about ten examples are computed, and about as many
    optimizer steps.
    """
    encoder, config = request.inputs.source.encoder, request.config
    weights = encoder.trained_parameters(None)
    operations = 6 * weights * config.windows * config.max_seq_length
    return 20 + 2 * encoder.num_hidden_layers + operations / 1.2e10 + weights / 2e7


def _avoiding_learned_limits(
    result: PlanResult, request: PlanRequest, learned: dict[str, int]
) -> PlanResult:
    """Return the plan, or the next best one if its size has run out of memory before."""
    plan, measured = result.plan, result.measured
    if not learned or plan is None or measured is None:
        return result
    result = dataclasses.replace(result, learned_limits=learned)

    def too_large(one: BatchPlan) -> bool:
        return one.micro_batch >= learned.get(str(one.saving), math.inf)

    left = [c for c in measured.candidates if c.fits and not too_large(c.plan)]
    # If no candidate is left and memory runs out again, training reduces the size.
    if not too_large(plan) or not left:
        return result
    best = max(left, key=lambda c: (c.rate, c.plan.micro_batch))
    sizes = ", ".join(f"{size} (`recompute` {kind})" for kind, size in learned.items())
    remedy = "plan with `fresh`"
    if isinstance(request.config, PretrainConfig):  # `plan` cannot plan it.
        remedy = f"delete {_limits_file(request)}"
    return dataclasses.replace(
        result,
        plan=best.plan,
        measured=costs_with(request, measured, best.plan.offload),
        examples_per_second=best.examples_per_second,
        compiled_examples_per_second=None,
        peak_memory_bytes=best.measured_peak_bytes,
        why=f"micro-batches of {sizes} ran out of memory before; {remedy} to retry them",
    )


def remember_out_of_memory(request: PlanRequest, micro_batch: int, saving: Saving) -> None:
    """Remember that a micro-batch size ran out of memory, for all later plans."""
    path = _limits_file(request)
    limits = read_cached(path, silent) or {}
    limits[str(saving)] = min(micro_batch, limits.get(str(saving), micro_batch))
    write_cached(path, limits, silent)


def learned_limits(request: PlanRequest, progress: Progress = silent) -> dict[str, int]:
    """Return, for each `Saving` as a string, the smallest micro-batch that ran out of memory."""
    return read_cached(_limits_file(request), progress) or {}


def _limits_file(request: PlanRequest) -> Path:
    """Return the file in the cache of the sizes that ran out of memory on a device."""
    # A size is that of one device, however many there are. The option `fresh` of `plan`, which has
    # no options for devices and unlabeled texts, must find the file as well.
    inputs = dataclasses.replace(request.inputs, unlabelled=None)
    request = dataclasses.replace(request, inputs=inputs, devices=1, shared=False)
    digest = request.digest("target_batch", "micro_batch", "recompute", "offload")
    return cache_folder() / "plans" / f"{digest}.learned.json"
