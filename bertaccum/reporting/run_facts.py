"""What cards and pages say of a run, in plain words and numbers; no path of the machine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertaccum.config import TrainConfig
from bertaccum.data.truncation import Truncation
from bertaccum.files import read_mapping
from bertaccum.metrics import LABELS, METRICS, baseline, mean_loss, outcome, shown
from bertaccum.reporting.curves import Series, trailing, training_loss
from bertaccum.reporting.run_record import Record
from bertaccum.sizes import format_size, known_size

_PATHS = ("data", "init_checkpoint", "bert_config", "vocab")


def options(config: TrainConfig, deciding: bool = False) -> dict[str, str]:
    """A run's options as they are shown; of paths the last part.

    Args:
      config: of the run.
      deciding: only those that decide the updates.
    """
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is None or field.name == "out" or (deciding and field.metadata["free"]):
            continue
        found[field.name] = Path(value).name if field.name in _PATHS else str(value)
    return found


def model_name(record: Record) -> str:
    """What the run's model is called."""
    config, summary = record.config, record.summary or {}
    named = config.model or config.bert_config or config.init_checkpoint
    return Path(str(summary.get("model") or named or "a classifier")).name


def data_name(record: Record) -> str:
    """The data folder's own name."""
    return Path(record.config.data).name


def facts(record: Record, series: Series, span: int) -> dict[str, Any]:
    """Return what cards and pages both say of a run: variables of their templates.

    Args:
      record: of the run.
      series: its curves.
      span: examples that training losses are means over.
    """
    return {
        "name": record.name,
        "model": model_name(record),
        "data": data_name(record),
        "results": _results(record, series, span),
        "span": f"{span:,}",
        "points": list(_points(series, span)),
        "plan": _plan(record),
        "inputs": _digests(record) | _truncation(record),
        "versions": _versions(record),
    }


def _results(record: Record, series: Series, span: int) -> dict[str, str]:
    """Return name and value of what a run has come to so far."""
    loss, seconds = training_loss(series, span), trained(record)
    return {
        **_scores(record),
        "training loss": mean_loss(loss, span),
        "updates": f"{len(record.updates):,}",
        "examples seen": f"{series.total:,}",
        "time": f"{record.seconds:,.0f} s",
        "speed": f"{series.total / seconds:,.1f} examples/s" if seconds else "",
        "peak memory": known_size((record.summary or {}).get("peak_memory_bytes")),
    }


def _scores(record: Record) -> dict[str, str]:
    """What dev.tsv says of the best checkpoint and, once the run is over, of the last model."""
    best, metric = record.best, record.config.best_by
    if best is None:
        return {}
    found = outcome(best, metric)
    if record.summary:
        found[f"final dev {LABELS[metric]}"] = shown(record.evaluations[-1], metric)
    return found


def trained(record: Record) -> float:
    """Seconds spent on updates."""
    return float(sum(update.get("seconds") or 0 for update in record.updates))


def _plan(record: Record) -> dict[str, str]:
    """How windows are cut, and why."""
    known = record.plan
    shown = {
        "target batch": record.config.target_batch,
        "micro-batch": known.get("micro_batch"),
        "accumulation steps": known.get("accumulation_steps"),
        "replicas": known.get("replicas"),
        "recompute": known.get("recompute"),
        "device": known.get("device"),
        "memory": _size(known.get("memory_bytes")),
        "peak of the planned update": _size(known.get("peak_memory_bytes")),
        "why": known.get("why"),
        "windows that ran out of memory": len(record.events),
    }
    return {name: str(value) for name, value in shown.items() if value is not None}


def _size(value: Any) -> str | None:
    """An amount of memory, if it is one."""
    return format_size(value) if isinstance(value, int | float) and value else None


def _versions(record: Record) -> dict[str, str]:
    """What the run was made with; nothing if it is not over."""
    found = (record.summary or {}).get("versions")
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def evaluations(record: Record) -> dict[str, dict[str, Any]]:
    """What `bertaccum eval` found, by the name of its file; damaged ones are left out."""
    found = {}
    for path in sorted(record.paths.path.glob("eval-*.json")):
        values = read_mapping(path)
        if values is not None and _is_evaluation(values):
            found[path.stem.removeprefix("eval-")] = values
    return found


def scores(evaluation: dict[str, Any]) -> dict[str, str]:
    """Return the metrics of an evaluation and its majority baseline, by what they are called."""
    found = {LABELS[metric]: shown(evaluation, metric) for metric in METRICS}
    return found | {"majority baseline": baseline(evaluation)}


def _is_evaluation(values: dict[str, Any]) -> bool:
    scores = [values.get(name) for name in ("accuracy", "loss", "matthews_correlation")]
    numbers = all(isinstance(score, int | float) for score in scores)
    return numbers and isinstance(values.get("examples"), int) and "classes" in values


def _points(series: Series, span: int, count: int = 10) -> Iterator[dict[str, str]]:
    """A run's curves at so many places, as far apart as can be; the last is its end.

    Yields:
      The examples seen, the update, the training loss (mean over the last `span` examples), the
      learning rate and the series' metric at the last evaluation until then; nothing for what is
      not known.
    """
    total = len(series.updates)
    rows = np.unique(np.linspace(0, total, min(count, total) + 1)[1:].round().astype(int) - 1)
    means, seen = trailing(series, span), series.seen
    for row in rows.tolist():
        before = series.scores[series.evaluated <= seen[row]]
        yield {
            "examples seen": f"{seen[row]:,}",
            "update": f"{series.updates[row]:,}",
            "training loss": _number(means[row], ".4f"),
            "learning rate": _number(series.learning_rate[row], ".2e"),
            f"dev {LABELS[series.metric]}": _number(before[-1], ".4f") if len(before) else "",
        }


def _digests(record: Record) -> dict[str, str]:
    """SHA-256 of what the run began with, and the rows of its TSVs where they were counted."""
    inputs = record.inputs
    rows = inputs.get("rows") or {}
    found = {}
    for name in ("train.tsv", "dev.tsv", "vocabulary", "pretrained weights"):
        if isinstance(inputs.get(name), str):
            count = f"{rows[name]:,} rows, " if isinstance(rows.get(name), int) else ""
            found[name] = f"{count}SHA-256 {inputs[name]}"
    return found


def _truncation(record: Record) -> dict[str, str]:
    """What `max_seq_length` cut off the texts; nothing for runs of versions that did not count."""
    return {
        f"truncation of {name}": str(Truncation(**lengths)).replace("`", "")
        for name, lengths in (record.inputs.get("truncation") or {}).items()
    }


def class_names(record: Record) -> list[str]:
    """The classes' names: those of the best model, else the labels as the data has them."""
    try:
        values = json.loads((record.paths.best / "labels.json").read_text(encoding="utf-8"))
        return [str(name) for name in values["names"]]
    except (OSError, ValueError, KeyError, TypeError):
        return [str(label) for label in record.inputs.get("labels") or []]


def _number(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else ""
