"""Summaries of runs, for `bertaccum runs`, `show` and `compare`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertaccum.errors import InputError, cannot_create
from bertaccum.options.commands import CompareConfig
from bertaccum.options.fields import means_the_same, named_options
from bertaccum.options.metrics import METRICS
from bertaccum.reporting import curves
from bertaccum.reporting.batch_advice import noise_facts
from bertaccum.reporting.curves import Series
from bertaccum.reporting.run_facts import INPUTS, evaluations, model_name
from bertaccum.runs.record import Record, read_record, undamaged
from bertaccum.system.atomic import write_bytes

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
        numbers += [best.get("update"), *(update["update"] for update in record.updates[-1:])]
        _check_numbers(*numbers)
        # A mean squared error has the square of the labels' unit, and a perplexity no bound.
        scores = best.get("accuracy"), best.get(record.best_by)
        _check_numbers(*scores, largest=sys.float_info.max)
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


def _check_numbers(*values: Any, largest: float = _LARGEST) -> None:
    """Raise ValueError unless each value is None or a number that a table can show."""
    for value in values:
        if value is not None and not (isinstance(value, int | float) and abs(value) <= largest):
            raise ValueError(f"{str(value)[:40]} is not a number of a run")


def details(record: Record) -> dict[str, Any]:
    """Return the facts about a run that `bertaccum show` prints.

    Returns:
      The keys of `outline`, and `plan` (how windows are split, and why), `training_loss` (the
      `mean` over the last `examples`, and the loss of the `last_update`), `last_update`,
      `noise_scale` (see `noise_facts`), `best` (the evaluation of the best checkpoint),
      `evaluations` (on dev.tsv during training), `evaluated` (the results of `bertaccum eval` with
      the best model as it is now, keyed by split or file), `out_of_memory` (the events),
      `summary` (None before the run has finished), `peak_memory_bytes` (of all updates), `config`
      (the options that the user set) and `resolved` (other options that differ from their
      defaults).
    """
    names = ["micro_batch", "accumulation_steps", "replicas", "recompute", "offload", "cut", "why"]
    names += ["shapes", "real_share"]
    with undamaged(record.paths.path):
        named, changed = record.inputs.get("named", []), named_options(record.config)
        values = dataclasses.asdict(record.config)
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
            "peak_memory_bytes": _peak_memory(record),
            "config": {name: value for name, value in values.items() if name in named},
            "resolved": {name: value for name, value in changed.items() if name not in named},
        }


def _training_loss(record: Record) -> dict[str, Any] | None:
    series = curves.read_series(record)
    if not len(series.loss):
        return None
    span = curves.default_span([series])
    last = record.updates[-1]["loss"]
    return {"mean": curves.training_loss(series, span), "examples": span, "last_update": last}


def _totals(values: dict[str, Any]) -> dict[str, Any]:
    """Return an evaluation without its scores per class."""
    return {k: v for k, v in values.items() if k not in ("classes", "confusion_matrix")}


def compare(config: CompareConfig, runs: Sequence[Path]) -> dict[str, Any]:
    """Compare runs, which may be running, and write `compare.png` and `compare.svg`.

    If models were measured, `compare-size.png` and `compare-size.svg` are written as well.

    Returns:
      `smooth` (the number of examples that losses are averaged over), `equal_mean_examples` (the
      number of examples per mean in `noise_of_equal_means`), `best_by` (the metric that selects the
      best checkpoint in all runs; if the runs differ, it is None and the figure shows the
      accuracy), `runs` (one `row` per run), `differences` (the options and inputs that differ, each
      with one value per run), `models` (for each `bertaccum eval` with `latency`: its `run`, its
      `evaluation`, the `metric` with its `value`, `model_bytes` and `milliseconds_per_text`),
      `figures` (the paths of the figures) and `missing_characters` (those
      characters of the runs' names that no installed font has).
    """
    records = [read_record(path) for path in runs]
    metrics = {record.best_by for record in records}
    metric = metrics.pop() if len(metrics) == 1 else None
    several = [curves.read_series(record, metric or "accuracy") for record in records]
    if not any(len(series.loss) for series in several):
        what, remedy = "none of these runs has an update yet", "wait for the first update"
        if all(record.summary for record in records):
            what = "none of these runs made an update, so there is no loss to compare"
            remedy = "add a run that was trained, or see their scores with `bertaccum show`"
        raise InputError(what, remedy, path=runs[0])
    span = config.smooth or curves.default_span(several)
    size = max(int(series.examples.max()) for series in several if len(series.examples))
    names = unique_names(records)
    models = [one for of in zip(names, records, strict=True) for one in _models(*of)]
    one_metric = len({one["metric"] for one in models}) == 1
    drawn = models if one_metric else []
    written, missing = _write_figures(Path(config.out), names, several, span, drawn)
    return {
        "smooth": span,
        "equal_mean_examples": size,
        "best_by": metric,
        "runs": [row(*of, span, size) for of in zip(names, records, several, strict=True)],
        "differences": differences(records),
        "models": models,
        "figures": written,
        "missing_characters": missing,
    }


def _models(name: str, record: Record) -> Iterator[dict[str, Any]]:
    """Yield the size, the latency and the score of each model of a run that was measured."""
    metric = record.best_by
    for evaluation, values in evaluations(record).items():
        with undamaged(record.paths.path):
            if "milliseconds_per_text" in values and values.get(metric) is not None:
                yield {
                    "run": name,
                    "evaluation": evaluation,
                    "metric": metric,
                    "value": float(values[metric]),
                    "model_bytes": int(values["model_bytes"]),
                    "milliseconds_per_text": float(values["milliseconds_per_text"]),
                }


def unique_names(records: Sequence[Record]) -> list[str]:
    """Return the names of the runs, or the paths of those that share a name."""
    names = [record.name for record in records]
    paths = [str(record.paths.path) for record in records]
    return [p if names.count(n) > 1 else n for n, p in zip(names, paths, strict=True)]


def row(name: str, record: Record, series: Series, span: int, size: int) -> dict[str, Any]:
    """Return the facts about a run that the comparison shows; None for a missing fact.

    `size` is the number of examples in the largest update of all runs.
    """
    with undamaged(record.paths.path):
        plan = record.plan
        best, last = record.best or {}, record.evaluations[-1] if record.evaluations else {}
        return {
            "run": name,
            "status": record.status,
            "model": model_name(record),
            "target_batch": record.config.target_batch,
            **{name: plan.get(name) for name in ("micro_batch", "accumulation_steps", "replicas")},
            "updates": len(series.updates),
            "examples": series.total,
            "training_loss": curves.training_loss(series, span),
            "noise_scale": (noise_facts(record) or {}).get("noise_scale"),
            "noise": curves.noise(series, span),
            "noise_of_equal_means": curves.noise(curves.regrouped(series, size), span),
            "best_metric": record.best_metric,
            **{f"best_dev_{metric}": best.get(metric) for metric in METRICS},
            "majority_accuracy": best.get("majority_accuracy"),
            **{f"final_dev_{metric}": last.get(metric) for metric in METRICS},
            "seconds": record.seconds,
            "peak_memory_bytes": _peak_memory(record),
        }


def _peak_memory(record: Record) -> int | None:
    """Return the peak memory of all updates in bytes, None if it is unknown."""
    of_updates = [update.get("peak_memory_bytes") or 0 for update in record.updates]
    return (record.summary or {}).get("peak_memory_bytes") or max(of_updates, default=0) or None


def differences(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Return the options and inputs that differ between runs, with one value per run.

    Inputs may differ between runs with the same options.
    """
    differing: dict[str, list[Any]] = {}
    configs = [vars(record.config) for record in records]
    # `text` of pretraining repeats `data`, and only runs of pretraining have further options.
    shared = {*configs[0]}.intersection(*configs) - {"out", "text"}
    for name in [name for name in configs[0] if name in shared]:
        values = [config[name] for config in configs]
        if not all(means_the_same(name, value, values[0]) for value in values):
            differing[name] = values
    began = [record.inputs for record in records]
    for name in INPUTS:
        digests = [str(inputs.get(name) or "none")[:12] for inputs in began]
        if len(set(digests)) > 1:
            differing[name] = digests
    return differing


def _write_figures(
    folder: Path,
    names: Sequence[str],
    several: Sequence[Series],
    span: int,
    models: Sequence[dict[str, Any]],
) -> tuple[list[str], str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_create(f"`out` {folder} cannot be written", error) from None
    from bertaccum.reporting.figures import comparison

    figures, missing = comparison(names, several, span, models)
    for name, contents in figures.items():
        write_bytes(folder / name, contents)
    return [str(folder / name) for name in figures], missing
