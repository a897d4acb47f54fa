"""Tables of runs on stdout."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from bertaccum.cli.display.sentences import duration, updates_done
from bertaccum.cli.display.table_fitting import below_common_folder, print_line, show, show_facts
from bertaccum.options import metrics
from bertaccum.options.metrics import LABELS, METRICS, shown
from bertaccum.system.phrases import counted
from bertaccum.system.sizes import format_shapes, known_size


def print_runs(outlines: list[dict[str, Any]]) -> None:
    """Print the result of `bertaccum runs`."""
    order = {row["best_by"] for row in outlines}
    mixed = len(order) != 1
    metric = f"best dev {'metric' if mixed else LABELS[order.pop()]}"
    batches = ("target batch", "micro-batch")
    head = ("run", "status", "model", *batches, "updates", metric, "best update", "training time")
    names = below_common_folder([row["run"] for row in outlines])
    rows = [[name, *_outline(row, mixed)] for name, row in zip(names, outlines, strict=True)]
    show(head, rows, least=("best update", "training time", "model", *batches, "updates", "status"))


def _outline(row: dict[str, Any], mixed: bool) -> list[str]:
    """Return the table row of a run, without its name."""
    best = row["best_metric"] or {}
    named = f" {LABELS[row['best_by']]}" if mixed else ""
    return [
        row["status"],
        row["model"],
        f"{row['target_batch']}",
        f"{row['micro_batch']}",
        f"{row['updates']:,}",
        f"{shown(best, 'value', metric=row['best_by'])}{named}" if best else "",
        shown(best, "update", ","),
        duration(row["seconds"]),
    ]


def print_run(details: dict[str, Any]) -> None:
    """Print the result of `bertaccum show`."""
    summary, plan = details["summary"], details["plan"]
    why = plan["why"]
    facts = {
        "run": f"{details['run']}, {details['status']}",
        "model": details["model"],
        "target batch": f"{details['target_batch']}",
        "micro-batch": f"{details['micro_batch']}" + (f" ({why})" if why else ""),
        "compiled for": format_shapes(plan["shapes"] or (), plan["real_share"]),
        "updates": updates_done(details),
        "training loss": _training_loss(details["training_loss"]),
        "noise scale": metrics.noise_scale(details["noise_scale"]),
        "training time": duration(details["seconds"]),
        "speed": _speed(summary) if summary else "",
        "peak memory": known_size(details["peak_memory_bytes"]),
        "out of memory": ", ".join(f"update {e['update']}" for e in details["out_of_memory"]),
    }
    if details["best"]:
        facts |= metrics.outcome(details["best"], details["best_by"])
    show_facts(facts)
    order = [details["best_by"], *(name for name in METRICS if name != details["best_by"])]
    if details["evaluations"]:
        _while_training(details["evaluations"], order)
    if details["evaluated"]:
        _evaluated(details["evaluated"], order)
    _options("options set:", details["config"])
    _options("options resolved automatically:", details["resolved"])


def print_summary(summary: dict[str, Any], folder: str, seconds: float) -> None:
    """Print the result of `bertaccum train`; `seconds` include loading, planning and compiling."""
    metric = summary["best_by"]
    early = ", stopped early: no improvement" if summary["stopped_early"] else ""
    facts = {
        "run folder": folder,
        "updates": f"{summary['updates']:,} ({counted(summary['examples'], 'example')}){early}",
        **metrics.outcome(summary["best_evaluation"], metric),
        f"final dev {LABELS[metric]}": shown(summary["last_evaluation"], metric),
        "speed": _speed(summary),
        "peak memory": known_size(summary["peak_memory_bytes"]),
        "best checkpoint": known_size(summary.get("best_bytes")),
        "training time": f"{summary['total_seconds']:.0f} s",
        "time of the command": f"{seconds:.0f} s",
    }
    show_facts(facts)


def _speed(summary: dict[str, Any]) -> str:
    """Return the speed of a run; empty if it made no update."""
    speed = summary["examples_per_second"]
    return f"{speed:,.1f} examples/s" if speed else ""


def _while_training(evaluations: list[dict[str, Any]], order: list[str]) -> None:
    """Print the evaluations on dev.tsv."""
    order = _present(order, evaluations)
    head = ["update", *(f"dev {LABELS[metric]}" for metric in order), ""]
    rows = [
        [f"{row['update']:,}", *(shown(row, metric) for metric in order), _remark(row)]
        for row in evaluations
    ]
    show(head, rows, least=[*reversed(head[2:-1])])


def _present(order: list[str], rows: Collection[dict[str, Any]]) -> list[str]:
    """Return the metrics that at least one evaluation contains."""
    return [metric for metric in order if any(metric in row for row in rows)]


def _evaluated(evaluations: dict[str, dict[str, Any]], order: list[str]) -> None:
    """Print the saved results of `bertaccum eval`, one row per split or file."""
    order = _present(order, evaluations.values())
    head = ["evaluated on", "update", "examples", *(LABELS[metric] for metric in order), ""]
    counts = ("update", "examples")
    rows = [
        [name, *(shown(row, n, ",") for n in counts), *(shown(row, n) for n in order), _remark(row)]
        for name, row in evaluations.items()
    ]
    show(head, rows, least=["update", *reversed(head[4:-1])])


def _options(heading: str, options: dict[str, Any]) -> None:
    if options:
        print_line(heading)
        for name, value in options.items():
            print_line(f"  {name}: {value}")


def _training_loss(loss: dict[str, Any] | None) -> str:
    if loss is None:
        return ""
    last = "" if loss["last_update"] is None else f"; last update {loss['last_update']:.4f}"
    return metrics.mean_loss(loss["mean"], loss["examples"], last)


def _remark(row: dict[str, Any]) -> str:
    """Return the remark on an evaluation in the last column of a table."""
    only = f"predicts only {row['only_prediction']!r}" if metrics.one_class(row) else ""
    return ", but ".join(filter(None, ["best so far" if row.get("best") else "", only]))
