"""Tables of several runs and of advice on options, on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertaccum.cli.display import table_fitting as fitting
from bertaccum.cli.display.sentences import batch_advice, duration, suggested_rate
from bertaccum.options.metrics import LABELS, ordered, shown, written
from bertaccum.system.phrases import counted
from bertaccum.system.sizes import format_size, known_size

_SPREAD = {
    **{f"best_dev_{m}": f"dev {label} of the best checkpoint" for m, label in LABELS.items()},
    **{f"final_dev_{m}": f"final dev {label}" for m, label in LABELS.items()},
    "final_loss": "training loss of the last update",
    "total_seconds": "training time in seconds",
}


def print_seeds(result: dict[str, Any]) -> None:
    """Print the result of `bertaccum train --seeds`."""
    runs, metric = counted(result["runs"], "run"), LABELS[result["best_by"]]
    head = f"{runs}; checkpoints selected by dev {metric}"
    known = [name for name in _SPREAD if name in result]
    rows = [[_SPREAD[n], *(written(v, n) for v in result[n].values())] for n in known]
    fitting.show((head, "mean", "standard deviation", "minimum", "maximum"), rows)


def print_sweep(result: dict[str, Any], command: str) -> None:
    """Print the result of `bertaccum sweep`, and the command that trains with the best values."""
    names = list(result["cells"][0]["options"])
    metric = LABELS.get(result["best_by"], "metric")
    head = (*names, "runs", "trained", f"dev {metric}", "standard deviation", "")
    fitting.show(head, [_swept(cell, result["best_by"] or "") for cell in result["cells"]])
    grid = f"the whole grid takes {result['grid_updates']:,}"
    updates = counted(result["updates"], "update")
    fitting.print_line(f"{updates} in {duration(result['seconds'])}; {grid}")
    fitting.print_paths(result["figures"])
    if command:
        best, *_ = ranks = [(cell["fraction"], cell["mean"]) for cell in result["cells"]]
        equal = ranks.count(best)
        first = f" (the first of {equal} with the same score)" if equal > 1 else ""
        fitting.print_line(f"best{first}: {command}", wrap=False)


def _swept(cell: dict[str, Any], metric: str) -> list[str]:
    return [
        *map(str, cell["options"].values()),
        f"{cell['runs']}",
        f"{cell['fraction']:.0%}",
        shown(cell, "mean", metric=metric),
        "" if cell["mean"] is None or cell["runs"] == 1 else shown(cell, "std", metric=metric),
        f"failed: {cell['failed']}" if cell["failed"] else "",
    ]


def print_comparison(values: dict[str, Any]) -> None:
    """Print the result of `bertaccum compare`, one column per run."""
    columns = [_compared_run(row, values) for row in values["runs"]]
    facts = {fact: [column[fact] for column in columns] for fact in columns[0]}
    rows = [[fact, *cells] for fact, cells in facts.items() if any(cells)]
    names = fitting.below_common_folder([row["run"] for row in values["runs"]])
    fitting.show_side_by_side(["run", *names], rows)
    span = counted(values["smooth"], "example")
    noise = f"standard deviation of the loss around its running mean over {span}"
    fitting.print_line(f"training loss: mean over the last {span}; noise: {noise}")
    if values["differences"]:
        differing = [_differing(*of) for of in values["differences"].items()]
        fitting.show_side_by_side(["differs", *names], differing)
    if values["models"]:
        head = ("model", "evaluated on", "score", "weights", "time for one text")
        fitting.show(head, [_measured_model(one) for one in values["models"]])
        if len({one["metric"] for one in values["models"]}) > 1:
            fitting.print_line("no figure compares these scores, because their metrics differ")
    fitting.print_paths(values["figures"])


def _measured_model(one: dict[str, Any]) -> list[str]:
    score = f"{LABELS[one['metric']]} {shown(one, 'value', metric=one['metric'])}"
    size, time = format_size(one["model_bytes"]), f"{one['milliseconds_per_text']:.1f} ms"
    return [one["run"], one["evaluation"], score, size, time]


def _differing(option: str, values: Sequence[Any]) -> list[str]:
    """Return the table row of an option that differs between runs."""
    # On a terminal, the folder that all values share is moved to the first cell.
    cells = ["" if value is None else str(value) for value in values]
    folder, below = fitting.without_common_folder(cells) if fitting.is_limited() else ("", cells)
    return [f"{option} in {folder}" if folder else option, *below]


def _compared_run(row: dict[str, Any], values: dict[str, Any]) -> dict[str, str]:
    """Return the facts of a run that `compare` shows; an unknown fact is an empty string."""
    split = [str(row[name] or "?") for name in ("accumulation_steps", "micro_batch")]
    size, metric, best = values["equal_mean_examples"], values["best_by"], row["best_metric"]
    score = ""
    if best is not None:
        name = f"{LABELS[best['name']]} " if metric is None else ""
        value = shown(best, "value", metric=best["name"])
        score = f"{name}{value} (update {best['update']:,})"
    names = ordered(metric)[1:] if metric else ordered("accuracy")
    own = {f"dev {LABELS[n]} of the best checkpoint": shown(row, f"best_dev_{n}") for n in names}
    return {
        "status": row["status"],
        "model": row["model"],
        "target batch": f"{row['target_batch']:,}",
        "steps x micro-batch": " x ".join(split),
        "replicas": f"{row['replicas']}" if (row["replicas"] or 1) > 1 else "",
        "updates": f"{row['updates']:,}",
        "examples seen": f"{row['examples']:,}",
        "training loss": shown(row, "training_loss"),
        "noise": shown(row, "noise"),
        f"noise of means over {size:,}": shown(row, "noise_of_equal_means"),
        "noise scale": shown(row, "noise_scale", ",.0f"),
        f"best dev {LABELS[metric] if metric else 'metric'}": score,
        "dev majority baseline": shown(row, "majority_accuracy"),
        **own,
        f"final dev {LABELS[metric or 'accuracy']}": shown(
            row, f"final_dev_{metric or 'accuracy'}"
        ),
        "training time": f"{row['seconds']:,.0f} s",
        "peak memory": known_size(row["peak_memory_bytes"]),
    }


def print_advice(result: dict[str, Any]) -> None:
    """Print the result of `bertaccum advise`."""
    fitting.print_line(batch_advice(result))
    head = ("target batch", "updates", "examples", "learning rate")
    forms = {"updates": ".2f", "examples": ".2f", "learning_rate": ".2g"}
    rows = []
    for row in result["batches"]:
        batch = f"{row['target_batch']:,}" + (" *" if row["updates"] == 1 else "")
        rows.append([batch, *(shown(row, name, form) for name, form in forms.items())])
    fitting.show(head, rows)
    fitting.print_line("* this run; updates and examples to the same loss are relative to it")


def print_rates(result: dict[str, Any]) -> None:
    """Print the result of `bertaccum train --find-lr`."""
    step = max(len(result["smoothed_losses"]) // 10, 1)
    points = list(zip(result["rates"], result["smoothed_losses"], strict=False))[::step]
    fitting.show(("learning rate", "training loss"), [[f"{r:.1e}", f"{y:.4f}"] for r, y in points])
    fitting.print_line(suggested_rate(result), wrap=False)
    fitting.print_paths(result["figures"])
