"""Tables of results, on stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertaccum.display.text import duration, from_here
from bertaccum.sizes import format_size

if TYPE_CHECKING:
    from rich.console import Console

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
    console.print(f"{values['examples']:,} examples of {data}", soft_wrap=True)
    for name in ("accuracy", "loss", "matthews_correlation"):
        console.print(f"{name.replace('_', ' '):22}{values[name]:.4f}")
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

    heads = ("run", "status", "model", "batch", "updates", "dev accuracy", "best at", "time")
    table = Table(*heads)
    for row in outlines:
        accuracy = row["best_dev_accuracy"]
        table.add_row(
            row["run"],
            row["status"],
            row["model"],
            f"{row['target_batch']} by {row['micro_batch']}",
            f"{row['updates']:,}",
            "" if accuracy is None else f"{accuracy:.4f}",
            "" if accuracy is None else f"{row['best_update']:,}",
            duration(row["seconds"]),
        )
    _console().print(table)


def run(found: dict[str, Any]) -> None:
    """Prints what `bertaccum show` found."""
    from rich.table import Table

    console = _console()
    last, summary = found["last_update"], found["summary"]
    loss = (last or {}).get("loss")
    facts = {
        "run": f"{found['run']}, {found['status']}",
        "model": found["model"],
        "batch": f"{found['target_batch']} by {found['micro_batch']} ({found['plan']['why']})",
        "updates": f"{found['updates']:,}" + ("" if loss is None else f", loss {loss:.4f}"),
        "time": duration(found["seconds"]),
        "speed": f"{summary['examples_per_second']:.1f} examples/s" if summary else "",
        "memory": _peak(summary or last),
        "out of memory": ", ".join(f"update {e['update']}" for e in found["out_of_memory"]),
    }
    for name, fact in facts.items():
        if fact:
            console.print(f"{name:16}{fact}", soft_wrap=True)
    if found["evaluations"]:
        table = Table("update", "dev accuracy", "loss", "Matthews correlation", "")
        for row in found["evaluations"]:
            scores = (f"{row[k]:.4f}" for k in ("accuracy", "loss", "matthews_correlation"))
            table.add_row(f"{row['update']:,}", *scores, "best so far" if row["best"] else "")
        console.print(table)
    console.print("configuration, where it is not the default:")
    for name, value in found["config"].items():
        console.print(f"  {name}: {value}", soft_wrap=True)


def spread(found: dict[str, Any]) -> None:
    """Prints what `bertaccum train --seeds` found."""
    from rich.table import Table

    table = Table(f"of {found['runs']} runs", "mean", "spread", "least", "most")
    for name, values in found.items():
        if name != "runs":
            table.add_row(name.replace("_", " "), *(f"{v:.4f}" for v in values.values()))
    _console().print(table)


def _peak(values: dict[str, Any] | None) -> str:
    peak = (values or {}).get("peak_memory_bytes")
    return format_size(peak) if peak else ""


def compared(values: dict[str, Any]) -> None:
    """Prints what `bertaccum compare` found: a column a run."""
    from rich.table import Table

    console = _console()
    names = [row["run"] for row in values["runs"]]
    columns = [compared_run(row, values["equal_mean_examples"]) for row in values["runs"]]
    table = Table("run", *names)
    for fact in columns[0]:
        table.add_row(fact, *(column[fact] for column in columns))
    console.print(table)
    console.print(
        f"final loss: mean over the last {values['smooth']:,} examples; noise: standard deviation"
        " around the running mean over as many",
        soft_wrap=True,
    )
    if values["differences"]:
        table = Table("differs", *names)
        for option, each in values["differences"].items():
            table.add_row(option, *("" if value is None else str(value) for value in each))
        console.print(table)
    for path in values["figures"]:
        console.print(f"{path}: written", soft_wrap=True)


def compared_run(row: dict[str, Any], size: int) -> dict[str, str]:
    """A run's facts as they are shown; nothing for what it has not."""

    def number(name: str, form: str = ".4f") -> str:
        return "" if row[name] is None else format(row[name], form)

    cut = [row[name] for name in ("micro_batch", "accumulation_steps", "replicas")]
    several = (cut[2] or 1) > 1
    return {
        "status": row["status"],
        "model": row["model"],
        "target batch": f"{row['target_batch']:,}",
        "micro-batch x steps": " x ".join(str(part or "?") for part in cut[: 2 + several]),
        "updates": f"{row['updates']:,}",
        "examples seen": f"{row['examples']:,}",
        "final loss": number("final_loss"),
        "noise": number("noise"),
        f"noise of means over {size:,}": number("noise_of_equal_means"),
        "final dev accuracy": number("final_dev_accuracy"),
        "best dev accuracy": number("best_dev_accuracy"),
        "time": f"{row['seconds']:,.0f} s",
        "peak memory": format_size(row["peak_memory_bytes"]) if row["peak_memory_bytes"] else "",
    }
