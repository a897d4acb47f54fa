"""Tables of results, on stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertaccum.display.text import duration, from_here
from bertaccum.metrics import LABELS, METRICS, baseline, one_class, outcome, shown
from bertaccum.sizes import format_size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from bertaccum.training.planner import Report

# Where there is no terminal, whose width would matter.
_LOG_WIDTH = 200


def _console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else _LOG_WIDTH
    return Console(file=sys.stdout, highlight=False, markup=False, width=width)


def evaluation(values: dict[str, Any]) -> None:
    """Prints the tables of `bertaccum eval`."""
    from rich.table import Table

    console = _console()
    data = from_here(Path(values["data"]))
    update = "" if values["update"] is None else f"; best checkpoint, update {values['update']:,}"
    console.print(f"{values['examples']:,} examples of {data}{update}", soft_wrap=True)
    for name, fact in _scores(values).items():
        console.print(f"{name:22}{fact}", soft_wrap=True)
    scores = Table("class", "precision", "recall", "F1", "examples")
    for row in values["classes"]:
        figures = (f"{row[key]:.4f}" for key in ("precision", "recall", "f1"))
        scores.add_row(row["name"], *figures, f"{row['examples']:,}")
    console.print(scores)
    names = [row["name"] for row in values["classes"]]
    confusion = Table("label \\ predicted", *names)
    for name, counts in zip(names, values["confusion_matrix"], strict=True):
        confusion.add_row(name, *(f"{count:,}" for count in counts))
    console.print(confusion)


def _scores(values: dict[str, Any]) -> dict[str, str]:
    """All metrics of an evaluation, the majority baseline beside the accuracy."""
    facts = {}
    for metric in METRICS:
        facts[LABELS[metric]] = shown(values, metric)
        if metric == "accuracy":
            facts["majority baseline"] = baseline(values)
    facts["note"] = one_class(values)
    return {name: fact for name, fact in facts.items() if fact}


def planned(found: Report, path: str) -> None:
    """Prints what `bertaccum plan` found."""
    from rich.table import Table

    values = found.values
    console = _console()
    for line in plan_heading(values):
        console.print(line, soft_wrap=True)
    table = Table(
        "micro-batch x steps x replicas", "recompute", "predicted", "measured", "examples/s", "fits"
    )
    for row in values["candidates"]:
        taken = all(row[key] == values[key] for key in ("micro_batch", "recompute"))
        table.add_row(
            f"{row['micro_batch']} x {row['accumulation_steps']} x {row['replicas']}"
            f" = {row['target_batch']}" + (" *" if taken else ""),
            row["recompute"],
            format_size(row["predicted_peak_bytes"]),
            format_size(row["measured_peak_bytes"]) if row["measured_peak_bytes"] else "",
            f"{row['examples_per_second']:.1f}" if row["examples_per_second"] else "",
            "yes" if row["fits"] else "no",
        )
    console.print(table)
    console.print(f"examples/s: of {found.timed_on}", soft_wrap=True)
    kept = ", measured before" if found.cached else f", {values['planning_seconds']:.0f} s"
    if found.plan is not None:
        console.print(f"* {found.plan}: {values['why']}", soft_wrap=True)
        if values["peak_memory_bytes"]:
            console.print(f"peak of its real update: {format_size(values['peak_memory_bytes'])}")
    console.print(f"{path}: written{kept}", soft_wrap=True)


def plan_heading(values: dict[str, Any]) -> list[str]:
    """What the memory is and what is always in it."""
    parts = ", ".join(f"{k} {format_size(v)}" for k, v in values["static_bytes"].items() if v)
    examples = [
        f"{format_size(v)} an example of {values['longest']} tokens"
        + (" with recomputation" if kind == "layer" else "")
        for kind, v in values["example_bytes"].items()
    ]
    return [
        f"{values['model']}: {values['parameters']:,} parameters, {values['precision']}",
        f"{values['device']}, {format_size(values['memory_bytes'])},"
        f" of which {format_size(values['margin_bytes'])} are left free",
        f"always in use: {parts}",
        "micro-batches: " + ", ".join(examples),
    ]


def prepared(folder: str, manifest: dict[str, Any], unchanged: bool) -> None:
    """Prints what `bertaccum prepare` wrote."""
    from rich.table import Table

    console = _console()
    done = "is there already, unchanged" if unchanged else "written"
    console.print(f"{folder}: {done}", soft_wrap=True)
    console.print(f"source: {manifest['source']}", soft_wrap=True)
    table = Table("split", "rows", *manifest["labels"])
    for split, counts in manifest["counts"].items():
        per_class = (f"{count:,}" for count in counts["classes"].values())
        table.add_row(split, f"{counts['rows']:,}", *per_class)
    console.print(table)


def runs(outlines: list[dict[str, Any]]) -> None:
    """Prints what `bertaccum runs` found."""
    from rich.table import Table

    names = {row["best_by"] for row in outlines}
    metric = f"best dev {LABELS[names.pop()] if len(names) == 1 else 'metric'}"
    table = Table("run", "status", "model", "batch", "updates", metric, "at", "time")
    for row in outlines:
        best = row["best_metric"]
        named = f" {LABELS[row['best_by']]}" if metric == "best dev metric" else ""
        table.add_row(
            row["run"],
            row["status"],
            row["model"],
            f"{row['target_batch']} by {row['micro_batch']}",
            f"{row['updates']:,}",
            "" if best is None else f"{shown(best, 'value')}{named}",
            "" if best is None else f"{best['update']:,}",
            duration(row["seconds"]),
        )
    _console().print(table)


def run(found: dict[str, Any]) -> None:
    """Prints what `bertaccum show` found."""
    console = _console()
    last, summary = found["last_update"], found["summary"]
    facts = {
        "run": f"{found['run']}, {found['status']}",
        "model": found["model"],
        "batch": f"{found['target_batch']} by {found['micro_batch']} ({found['plan']['why']})",
        "updates": f"{found['updates']:,}",
        "training loss": _training_loss(found["training_loss"]),
        "time": duration(found["seconds"]),
        "speed": f"{summary['examples_per_second']:.1f} examples/s" if summary else "",
        "memory": _peak(summary or last),
        "out of memory": ", ".join(f"update {e['update']}" for e in found["out_of_memory"]),
    }
    if found["best"]:
        facts |= outcome(found["best"], found["best_by"])
    width = max(map(len, facts)) + 2
    for name, fact in facts.items():
        if fact:
            console.print(f"{name:{width}}{fact}", soft_wrap=True)
    metrics = [found["best_by"], *(name for name in METRICS if name != found["best_by"])]
    if found["evaluations"]:
        console.print(_while_training(found["evaluations"], metrics))
    if found["evaluated"]:
        console.print(_evaluated(found["evaluated"], metrics))
    _print_options(console, found["config"], found["resolved"])


def _while_training(evaluations: list[dict[str, Any]], metrics: list[str]) -> Table:
    """The evaluations on dev.tsv."""
    from rich.table import Table

    table = Table("update", *(f"dev {LABELS[metric]}" for metric in metrics), "")
    for row in evaluations:
        scores = (shown(row, metric) for metric in metrics)
        table.add_row(f"{row['update']:,}", *scores, _remark(row))
    return table


def _evaluated(evaluations: dict[str, dict[str, Any]], metrics: list[str]) -> Table:
    """What `bertaccum eval` found, a row for each split or file."""
    from rich.table import Table

    heads = (LABELS[metric] for metric in metrics)
    table = Table("evaluated on", "update", "examples", *heads, "")
    for name, row in evaluations.items():
        update = "" if row.get("update") is None else f"{row['update']:,}"
        scores = (shown(row, metric) for metric in metrics)
        table.add_row(name, update, f"{row['examples']:,}", *scores, _remark(row))
    return table


def _print_options(
    console: Console, config: dict[str, Any], resolved: dict[str, Any] | None
) -> None:
    """Prints the options that were set, and those that were resolved; old runs mix the two."""
    unknown = resolved is None
    heading = "options not at their defaults, set or resolved:" if unknown else "options set:"
    parts = {heading: config, "options resolved automatically:": resolved or {}}
    for heading, options in parts.items():
        if options:
            console.print(heading)
        for name, value in options.items():
            console.print(f"  {name}: {value}", soft_wrap=True)


def _training_loss(found: dict[str, Any] | None) -> str:
    if found is None or found["mean"] is None:
        return ""
    last = "" if found["last_update"] is None else f"; last update {found['last_update']:.4f}"
    return f"{found['mean']:.4f} (mean over the last {found['examples']:,} examples{last})"


def _remark(row: dict[str, Any]) -> str:
    """What is to be said of an evaluation in a table."""
    only = f"predicts only {row['only_prediction']}" if one_class(row) else ""
    return ", but ".join(filter(None, ["best so far" if row.get("best") else "", only]))


def spread(found: dict[str, Any]) -> None:
    """Prints what `bertaccum train --seeds` found."""
    from rich.table import Table

    head = f"{found['runs']} runs, best checkpoints by dev {LABELS[found['best_by']]}"
    table = Table(head, "mean", "spread", "least", "most")
    for name, label in _SPREAD.items():
        if name in found:
            table.add_row(label, *(f"{v:.4f}" for v in found[name].values()))
    _console().print(table)


_SPREAD = {
    **{f"best_dev_{m}": f"dev {label} of the best checkpoint" for m, label in LABELS.items()},
    "final_dev_accuracy": "final dev accuracy",
    "final_loss": "training loss of the last update",
    "total_seconds": "time in seconds",
}


def _peak(values: dict[str, Any] | None) -> str:
    peak = (values or {}).get("peak_memory_bytes")
    return format_size(peak) if peak else ""


def compared(values: dict[str, Any]) -> None:
    """Prints what `bertaccum compare` found: a column a run."""
    from rich.table import Table

    console = _console()
    names = [row["run"] for row in values["runs"]]
    columns = [compared_run(row, values) for row in values["runs"]]
    table = Table("run", *names)
    for fact in columns[0]:
        table.add_row(fact, *(column[fact] for column in columns))
    console.print(table)
    console.print(
        f"training loss: mean over the last {values['smooth']:,} examples; noise: standard"
        " deviation of the loss around its running mean over as many",
        soft_wrap=True,
    )
    if values["differences"]:
        table = Table("differs", *names)
        for option, each in values["differences"].items():
            table.add_row(option, *("" if value is None else str(value) for value in each))
        console.print(table)
    for path in values["figures"]:
        console.print(f"{path}: written", soft_wrap=True)


def compared_run(row: dict[str, Any], values: dict[str, Any]) -> dict[str, str]:
    """Return a run's facts as `compare` shows them; nothing for what it lacks."""

    def number(name: str, form: str = ".4f") -> str:
        return "" if row[name] is None else format(row[name], form)

    cut = [row[name] for name in ("micro_batch", "accumulation_steps", "replicas")]
    several = (cut[2] or 1) > 1
    size, metric, best = values["equal_mean_examples"], values["best_by"], row["best_metric"]
    score = "" if best is None else f"{shown(best, 'value')} (update {best['update']:,})"
    if metric is None and best is not None:
        score = f"{LABELS[best['name']]} {score}"
    return {
        "status": row["status"],
        "model": row["model"],
        "target batch": f"{row['target_batch']:,}",
        "micro-batch x steps": " x ".join(str(part or "?") for part in cut[: 2 + several]),
        "updates": f"{row['updates']:,}",
        "examples seen": f"{row['examples']:,}",
        "training loss": number("training_loss"),
        "noise": number("noise"),
        f"noise of means over {size:,}": number("noise_of_equal_means"),
        f"best dev {LABELS[metric] if metric else 'metric'}": score,
        "dev accuracy of the best checkpoint": number("best_dev_accuracy"),
        "majority baseline": number("majority_accuracy"),
        "dev macro-F1 of the best checkpoint": number("best_dev_macro_f1"),
        "dev loss of the best checkpoint": number("best_dev_loss"),
        "final dev accuracy": number("final_dev_accuracy"),
        "time": f"{row['seconds']:,.0f} s",
        "peak memory": format_size(row["peak_memory_bytes"]) if row["peak_memory_bytes"] else "",
    }
