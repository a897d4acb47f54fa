"""What a measurement process builds."""

from __future__ import annotations

import dataclasses
from typing import Any

from bertaccum.options.commands import TrainConfig
from bertaccum.planning.plan_request import PlanRequest


def measurement_job(
    request: PlanRequest, config: TrainConfig, limit: int | None, accumulation_steps: int
) -> dict[str, Any]:
    """Return the job that tells a measurement process what to build.

    Args:
      request: Request to the planner, with model, classes and data.
      config: Options of the training step.
      limit: Memory limit in bytes; None for all of a GPU's memory.
      accumulation_steps: Number of micro-steps; with 1 there are no accumulators.
    """
    source = request.inputs.source
    first_kind = "layer" if config.recompute == "layer" else "none"
    return {
        "config": dataclasses.asdict(dataclasses.replace(config, recompute=first_kind)),
        "encoder": dataclasses.asdict(source.encoder),
        "labels": dataclasses.asdict(request.inputs.labels),
        "vocabulary": source.vocabulary and dataclasses.asdict(source.vocabulary),
        "tsvs": [str(tsv) for tsv in request.inputs.tsvs],
        "limit_bytes": limit,
        "accumulation_steps": accumulation_steps,
        "devices": request.devices,
    }
