"""What lists of runs say of each, and what is said of one."""

from __future__ import annotations

import dataclasses
from typing import Any

from bertaccum.config import TrainConfig
from bertaccum.records.facts import model_name
from bertaccum.records.record import Record


def outline(record: Record) -> dict[str, Any]:
    """A run in a line of a list.

    Returns:
      `run`, `status`, `model`, `target_batch`, `micro_batch`, `updates`, `best_dev_accuracy` and
      `best_update` (None before an evaluation), `seconds`.
    """
    best, plan = record.best or {}, record.plan
    return {
        "run": str(record.paths.path),
        "status": record.status,
        "model": model_name(record),
        "target_batch": record.config.target_batch,
        "micro_batch": plan.get("micro_batch", record.config.micro_batch),
        "updates": record.updates[-1]["update"] if record.updates else 0,
        "best_dev_accuracy": best.get("accuracy"),
        "best_update": best.get("update"),
        "seconds": round(record.seconds, 3),
    }


def details(record: Record) -> dict[str, Any]:
    """All of a run that a person asks for.

    Returns:
      As `outline`, and `plan` (what was decided, and why), `last_update`, `evaluations`,
      `out_of_memory` (events), `summary` (None if it is not over), `config` (what is not at its
      default).
    """
    names = ("micro_batch", "accumulation_steps", "replicas", "recompute", "cut", "why")
    defaults = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    config = dataclasses.asdict(record.config)
    return outline(record) | {
        "plan": {name: record.plan.get(name) for name in names},
        "last_update": record.updates[-1] if record.updates else None,
        "evaluations": record.evaluations,
        "out_of_memory": record.events,
        "summary": record.summary,
        "config": {name: value for name, value in config.items() if value != defaults[name]},
    }
