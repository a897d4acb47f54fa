"""Planning for the options of `bertaccum plan`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bertaccum.atomic import write_text
from bertaccum.bert.model_finder import find_dimensions
from bertaccum.config import PlanConfig
from bertaccum.data.data_folder import read_inputs, tsvs_to_plan_with
from bertaccum.files import json_text
from bertaccum.planning import device_memory
from bertaccum.planning.batch_plan import PlanResult
from bertaccum.planning.plan_request import PlanRequest
from bertaccum.planning.planner import make_report
from bertaccum.progress import Progress
from bertaccum.settings import size_in_bytes
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
    report = make_report(
        PlanRequest(config, read_inputs(source, task, tsvs, config), memory), progress, config.fresh
    )
    write_text(Path(config.out).resolve(), json_text(report.values))
    if not tsvs:
        lacking = f"the vocabulary of {source.name}" if prepared else f"prepared data in {data}"
        timed_on = f"{report.timed_on}, because {lacking} is missing"
        report = dataclasses.replace(report, timed_on=timed_on)
    return report
