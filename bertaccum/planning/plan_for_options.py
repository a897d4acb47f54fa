"""Planning for the options of `bertaccum plan`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bertaccum.bert.model_finder import find_dimensions
from bertaccum.data.run_inputs import read_inputs, tsvs_to_plan_with
from bertaccum.distribution import device_memory
from bertaccum.options.commands import PlanConfig, TrainConfig
from bertaccum.options.fields import size_in_bytes
from bertaccum.planning.batch_plan import PlanResult
from bertaccum.planning.compile_cost import cost_if_it_pays
from bertaccum.planning.plan_request import PlanRequest
from bertaccum.planning.planner import make_report
from bertaccum.system.atomic import write_text
from bertaccum.system.files import json_text
from bertaccum.system.progress import Progress
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.prepared_labels import read_labels


def plan_for_options(config: PlanConfig, progress: Progress) -> PlanResult:
    """Return the plan for the options, and write it to `config.out`.

    If the default data folder is missing, or the vocabulary has not been downloaded yet, all
    examples are assumed to have the maximum length.

    Args:
      config: Options of the plan.
      progress: Called with the current activity.

    Raises:
      ConfigError, InputError: The data or the model cannot be used.
    """
    data = Path(config.data)
    tsvs = prepared = tsvs_to_plan_with(config)
    task = make_task(read_labels(data, config.task) if prepared else Labels.numbered(2))
    source = find_dimensions(config, progress)
    if not source.vocabulary:
        tsvs = []
    memory = size_in_bytes("device_memory", config.device_memory)
    if memory is not None:
        memory = device_memory.memory_for_tensors(memory)
    request = PlanRequest(config, read_inputs(source, task, tsvs, config), memory)
    report = make_report(request, progress, config.fresh)
    report = _compiled(report, request, progress)
    write_text(Path(config.out).resolve(), json_text(report.values))
    if not tsvs:
        lacking = f"the vocabulary of {source.name}" if prepared else f"prepared data in {data}"
        timed_on = f"{report.timed_on}, because {lacking} is missing"
        report = dataclasses.replace(report, timed_on=timed_on)
    return report


def _compiled(report: PlanResult, request: PlanRequest, progress: Progress) -> PlanResult:
    """Return the plan with the shapes of compiled steps, if a run of the usual length has them."""
    known = request.inputs.tsvs and request.memory_bytes is None
    if report.plan is None or not known:
        return report
    settled = request.in_precision(report.values["precision"])
    compile, cost = cost_if_it_pays(settled, report, TrainConfig.epochs, None, progress)
    if cost is None or not compile:
        return report
    found = {"shapes": cost.shapes, "real_share": cost.real_share}
    values = report.values | found | {"peak_memory_bytes": cost.peak_bytes}
    return dataclasses.replace(report, values=values | {"compile_cost": dataclasses.asdict(cost)})
