"""Facts about a run that model cards and report pages show, without local paths."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertaccum.data.truncation import Truncation
from bertaccum.options.commands import TrainConfig
from bertaccum.options.metrics import LABELS, mean_loss, noise_scale, outcome, shown, written
from bertaccum.options.pretraining import hidden_options, text_paths
from bertaccum.reporting.batch_advice import noise_facts
from bertaccum.reporting.curves import Series, trailing, training_loss
from bertaccum.runs.record import Record
from bertaccum.system.files import read_mapping
from bertaccum.system.hub_names import parse_pinned
from bertaccum.system.phrases import counted
from bertaccum.system.sizes import format_shapes, format_size, known_size

# Names of the inputs of a run whose digests inputs.json contains.
INPUTS = ("train.tsv", "dev.tsv", "texts", "unlabelled", "vocabulary", "pretrained weights")


def options(config: TrainConfig, deciding: bool = False) -> dict[str, str]:
    """Return the options of a run, or those that decide the updates, with short paths."""
    chosen, omitted = {}, hidden_options(type(config)) | {"out"}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is None or field.name in omitted or (deciding and field.metadata["free"]):
            continue
        is_path = field.metadata["path"] and parse_pinned(str(value)) is None
        chosen[field.name] = _names(value, field.name == "text") if is_path else str(value)
    return chosen


def _names(path: str, several: bool) -> str:
    """Return the name of a file or folder, or of several whose paths are separated by commas."""
    return ", ".join(Path(one).name for one in (text_paths(path) if several else [path]))


def model_name(record: Record) -> str:
    """Return the name of the model of a run."""
    config, summary = record.config, record.summary or {}
    named = config.model or config.bert_config or config.init_checkpoint
    return Path(str(summary.get("model") or named or "a classifier")).name


def data_name(record: Record) -> str:
    """Return the name of the data folder of a run, or those of the texts to pretrain on."""
    return _names(record.config.data, record.config.predicts_masked)


def facts(record: Record, series: Series, span: int) -> dict[str, Any]:
    """Return the variables that the templates of model cards and report pages share."""
    return {
        "name": record.name,
        "model": model_name(record),
        "data": data_name(record),
        "results": _results(record, series, span),
        "span": counted(span, "example"),
        "points": list(_points(series, span)),
        "plan": _plan(record),
        "inputs": _digests(record) | _truncation(record),
        "versions": _versions(record),
    }


def _results(record: Record, series: Series, span: int) -> dict[str, str]:
    """Return the results of a run so far, keyed by name."""
    loss, seconds = training_loss(series, span), trained(record)
    return {
        **_scores(record),
        "training loss": mean_loss(loss, span),
        "updates": f"{len(record.updates):,}",
        "examples seen": f"{series.total:,}",
        "training time": f"{record.seconds:,.0f} s",
        "speed": f"{series.total / seconds:,.1f} examples/s" if seconds else "",
        "noise scale": noise_scale(noise_facts(record)),
        "peak memory": known_size((record.summary or {}).get("peak_memory_bytes")),
    }


def _scores(record: Record) -> dict[str, str]:
    """Return the dev scores of the best checkpoint and, for a finished run, of the final model."""
    best, metric = record.best, record.best_by
    if best is None:
        return {}
    found = outcome(best, metric)
    if record.summary:
        found[f"final dev {LABELS[metric]}"] = shown(record.evaluations[-1], metric)
    return found


def trained(record: Record) -> float:
    """Return the time spent on updates, in seconds."""
    return float(sum(update.get("seconds") or 0 for update in record.updates))


def _plan(record: Record) -> dict[str, str]:
    """Return how windows are split into micro-batches, and why, keyed by name."""
    known = record.plan
    shown = {
        "target batch": record.config.target_batch,
        "micro-batch": known.get("micro_batch"),
        "accumulation steps": known.get("accumulation_steps"),
        **{name: known.get(name) for name in ("replicas", "recompute", "offload")},
        "compiled for": format_shapes(known.get("shapes") or (), known.get("real_share")) or None,
        "device": known.get("device"),
        "memory": _size(known.get("memory_bytes")),
        "peak of the planned update": _size(known.get("peak_memory_bytes")),
        "why": known.get("why"),
        "windows that ran out of memory": len(record.out_of_memory),
    }
    return {name: str(value) for name, value in shown.items() if value is not None}


def _size(value: Any) -> str | None:
    """Return an amount of memory as a string, or None if the value is not a positive number."""
    return format_size(value) if isinstance(value, int | float) and value else None


def _versions(record: Record) -> dict[str, str]:
    """Return the package versions of a finished run; empty for other runs."""
    found = (record.summary or {}).get("versions")
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def evaluations(record: Record) -> dict[str, dict[str, Any]]:
    """Return the results of `bertaccum eval`, keyed by split or file; skip damaged ones.

    They are those of the model that is the best one now, with its present decoding. Others remain
    in the run folder if `eval` ran before the training found a better model, or before `eval`
    fitted or removed a temperature or thresholds.
    """
    best = (record.best or {}).get("update")
    decoding = read_mapping(record.paths.best / "decoding.json") or {}
    temperature, thresholds = decoding.get("temperature") or 1.0, decoding.get("thresholds")

    def is_current(values: dict[str, Any]) -> bool:
        used = values.get("thresholds")
        return (
            values.get("update") in (None, best)
            and values.get("temperature", temperature) == temperature
            and (used is None or used == (thresholds or [0.5] * len(used)))
        )

    results = {}
    for path in sorted(record.paths.path.glob("eval-*.json")):
        values = read_mapping(path) or {}
        is_whole = isinstance(values.get("loss"), int | float) and isinstance(
            values.get("examples"), int
        )
        if is_whole and is_current(values):
            results[path.stem.removeprefix("eval-")] = values
    return results


def _points(series: Series, span: int) -> Iterator[dict[str, str]]:
    """Yield table rows for up to ten evenly spaced updates, ending with the last update."""
    total = len(series.updates)
    rows = np.unique(np.linspace(0, total, min(10, total) + 1)[1:].round().astype(int) - 1)
    means, seen = trailing(series, span), series.seen
    for row in rows.tolist():
        before = series.scores[series.evaluated <= seen[row]][-1:]
        score = [written(one, series.metric) for one in before if np.isfinite(one)]
        yield {
            "examples seen": f"{seen[row]:,}",
            "update": f"{series.updates[row]:,}",
            "training loss": _number(means[row], ".4f"),
            "learning rate": _number(series.learning_rate[row], ".2e"),
            f"dev {LABELS[series.metric]}": "".join(score),
        }


def _digests(record: Record) -> dict[str, str]:
    """Return the SHA-256 of each input of a run, after the number of rows if it was recorded."""
    inputs = record.inputs
    rows = inputs.get("rows") or {}
    digests = {}
    for name in INPUTS:
        if isinstance(inputs.get(name), str):
            known = isinstance(rows.get(name), int)
            count = f"{counted(rows[name], 'row')}, " if known else ""
            digests[name] = f"{count}SHA-256 {inputs[name]}"
    return digests


def _truncation(record: Record) -> dict[str, str]:
    """Return how `max_seq_length` truncated the texts."""
    return {
        f"truncation of {name}": str(Truncation(**lengths)).replace("`", "")
        for name, lengths in (record.inputs.get("truncation") or {}).items()
    }


def class_names(record: Record) -> list[str]:
    """Return the class names of the best model, or the labels of the data if it is missing."""
    known = read_mapping(record.paths.best / "labels.json") or {}
    return [str(name) for name in known.get("names") or record.inputs.get("labels") or []]


def _number(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else ""
