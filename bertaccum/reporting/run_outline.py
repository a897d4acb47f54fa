"""Summaries of a run for `bertaccum runs` and `bertaccum show`."""

from __future__ import annotations

import dataclasses
from typing import Any

from bertaccum.options.fields import named_options
from bertaccum.reporting.batch_advice import noise_facts
from bertaccum.reporting.curves import default_span, read_series, training_loss
from bertaccum.reporting.run_facts import evaluations, model_name
from bertaccum.runs.record import Record, undamaged

# The largest number of updates or seconds that is plausible.
_LARGEST = 1e12


def outline(record: Record) -> dict[str, Any]:
    """Return the facts about a run that a list of runs shows; see `bertaccum runs --json`.

    `best_by` is the metric that selects the best checkpoint, and `best_metric` its name, value and
    update, None before the first evaluation.
    """
    best, plan = record.best or {}, record.plan
    with undamaged(record.paths.path):
        numbers = [plan.get("micro_batch"), plan.get("updates"), record.seconds]
        numbers += [best.get(name) for name in ("accuracy", "update", record.best_by)]
        _check_numbers(*numbers, *(update["update"] for update in record.updates[-1:]))
        return {
            "run": str(record.paths.path),
            "status": record.status,
            "model": model_name(record),
            "target_batch": record.config.target_batch,
            "micro_batch": plan.get("micro_batch", record.config.micro_batch),
            "updates": record.updates[-1]["update"] if record.updates else 0,
            "planned_updates": plan.get("updates"),
            "best_by": record.best_by,
            "best_metric": record.best_metric,
            "best_dev_accuracy": best.get("accuracy"),
            "best_update": best.get("update"),
            "seconds": round(record.seconds, 3),
        }


def _check_numbers(*values: Any) -> None:
    """Raise ValueError unless each value is None or a number that a table can show."""
    for value in values:
        if value is not None and not (isinstance(value, int | float) and abs(value) <= _LARGEST):
            raise ValueError(f"{str(value)[:40]} is not a number of a run")


def details(record: Record) -> dict[str, Any]:
    """Return the facts about a run that `bertaccum show` prints.

    Returns:
      The keys of `outline`, and `plan` (how windows are split, and why), `training_loss` (the
      `mean` over the last `examples`, and the loss of the `last_update`), `last_update`,
      `noise_scale` (see `noise_facts`), `best` (the evaluation of the best checkpoint),
      `evaluations` (on dev.tsv during training), `evaluated` (the results of `bertaccum eval`,
      keyed by split or file), `out_of_memory` (the events), `summary` (None before the run has
      finished), `config` (the options that the user set) and `resolved` (other options that differ
      from their defaults).
    """
    names = ["micro_batch", "accumulation_steps", "replicas", "recompute", "offload", "cut", "why"]
    names += ["shapes", "real_share"]
    with undamaged(record.paths.path):
        return outline(record) | {
            "plan": {name: record.plan.get(name) for name in names},
            "training_loss": _training_loss(record),
            "last_update": record.updates[-1] if record.updates else None,
            "noise_scale": noise_facts(record),
            "best": record.best,
            "evaluations": record.evaluations,
            "evaluated": {name: _totals(values) for name, values in evaluations(record).items()},
            "out_of_memory": record.out_of_memory,
            "summary": record.summary,
            **set_and_resolved(record),
        }


def _training_loss(record: Record) -> dict[str, Any] | None:
    series = read_series(record)
    if not len(series.loss):
        return None
    span = default_span([series])
    last = record.updates[-1]["loss"]
    return {"mean": training_loss(series, span), "examples": span, "last_update": last}


def _totals(values: dict[str, Any]) -> dict[str, Any]:
    """Return an evaluation without its scores per class."""
    return {k: v for k, v in values.items() if k not in ("classes", "confusion_matrix")}


def set_and_resolved(record: Record) -> dict[str, dict[str, Any]]:
    """Return the options that the user set, and others that differ from their defaults.

    The latter include the planned micro-batch size.
    """
    named, changed = record.inputs.get("named", []), named_options(record.config)
    values = dataclasses.asdict(record.config)
    return {
        "config": {name: value for name, value in values.items() if name in named},
        "resolved": {name: value for name, value in changed.items() if name not in named},
    }
