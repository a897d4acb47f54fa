"""The plan of a run, on which all workers agree."""

from __future__ import annotations

import dataclasses
from typing import Any

from bertaccum.bert.precision import candidate_precisions
from bertaccum.data.run_inputs import RunInputs
from bertaccum.distribution.collectives import all_gather
from bertaccum.distribution.topology import Topology
from bertaccum.options.commands import TrainConfig
from bertaccum.options.fields import AUTO
from bertaccum.planning.measurement import PlanRequest
from bertaccum.planning.plan import Saving, largest_share, make_plan
from bertaccum.planning.plan_result import PlanResult
from bertaccum.planning.planner import agreed_precision, find_fastest_plan
from bertaccum.system.progress import Progress


def agree_on_plan(
    config: TrainConfig, inputs: RunInputs, topology: Topology, progress: Progress
) -> tuple[TrainConfig, PlanRequest, PlanResult]:
    """Plan in the same precision on all workers, and return the configuration that names it.

    If the user set the micro-batch size, no speeds are known, and the devices decide the precision.
    """
    local, workers = topology.local_replicas, topology.workers
    request, planned = find_plan(config, inputs, local, workers, progress)
    unmeasured = dict.fromkeys(candidate_precisions(config.precision))
    speeds = all_gather(topology, planned.values.get("precisions", unmeasured))
    precision = agreed_precision(speeds)
    config = dataclasses.replace(config, precision=precision)
    if planned.values.get("precision", precision) != precision:
        # This worker has planned in each precision that it can use, so the plan is in the cache.
        planned = find_plan(config, inputs, local, workers, progress)[1]
    return config, request.in_precision(precision), planned


def find_plan(
    config: TrainConfig, inputs: RunInputs, local_replicas: int, workers: int, progress: Progress
) -> tuple[PlanRequest, PlanResult]:
    """Return the request to the planner, and its answer.

    If the user set the micro-batch size, nothing is measured.
    """
    request, replicas = PlanRequest(config, inputs), local_replicas * workers
    if replicas > 1:
        # Each worker plans its replicas' shares for its own devices.
        share = largest_share(config.target_batch, replicas)
        own: dict[str, Any] = {"target_batch": share, "micro_batch": AUTO, "replicas": None}
        shared = dataclasses.replace(config, **own)
        request = PlanRequest(shared, inputs, devices=local_replicas, shared=True)
    if isinstance(config.micro_batch, int):
        saving, cut = Saving(*config.saving), config.cut
        plan = make_plan(config.target_batch, config.micro_batch, saving, cut, replicas)
        return request, PlanResult(plan)
    planned = find_fastest_plan(request, progress)
    planned.require_plan()
    return request, planned.of_whole_window(config.target_batch, replicas)
