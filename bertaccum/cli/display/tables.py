"""Tables of results on stdout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertaccum.cli.display.sentences import (
    batch_advice,
    duration,
    from_here,
    suggested_rate,
    with_flags,
)
from bertaccum.cli.display.table_fitting import (
    is_limited,
    layout,
    show,
    show_side_by_side,
    stdout_console,
    without_common_folder,
)
from bertaccum.metrics import (
    LABELS,
    METRICS,
    mean_loss,
    noise_scale,
    one_class,
    ordered,
    outcome,
    scores,
    shown,
)
from bertaccum.sizes import format_size, known_size
from bertaccum.task_names import REGRESSION

if TYPE_CHECKING:
    from rich.console import Console

    from bertaccum.planning.batch_plan import PlanResult
    from data_prep.preparation import PrepareResult

# On a terminal, a table of classes or of pairs of classes has at most this many rows.
_MOST_ROWS = 20
# Statistics of the scores of a split, in the manifest and in the table of `bertaccum prepare`.
_STATISTICS = ("mean", "std", "min", "max")


def evaluation(values: dict[str, Any]) -> None:
    """Print the tables of `bertaccum eval`."""
    console = stdout_console()
    data = from_here(Path(values["data"]))
    update = "" if values["update"] is None else f"; best checkpoint, update {values['update']:,}"
    console.print(f"{values['examples']:,} examples of {data}{update}")
    _facts(console, scores(values) | {"note": one_class(values)})
    if "classes" in values:
        _class_scores(console, values["classes"], values.get("thresholds"))
    if "confusion_matrix" in values:
        _confusion(console, [row["name"] for row in values["classes"]], values["confusion_matrix"])


def _class_scores(
    console: Console, classes: list[dict[str, Any]], thresholds: list[float] | None
) -> None:
    """Print one row per class; on a terminal, only for the classes with the lowest F1."""
    if thresholds:
        pairs = zip(classes, thresholds, strict=True)
        classes = [row | {"threshold": threshold} for row, threshold in pairs]
    columns = ("precision", "recall", "f1", *(["threshold"] if thresholds else []))
    lowest = sorted(classes, key=lambda row: row["f1"])[:_MOST_ROWS]
    left_out = len(classes) - len(lowest) if is_limited(console) else 0
    rows = [
        [
            row["name"],
            *(f"{row[key]:.4f}" for key in columns),
            f"{row['examples']:,}",
        ]
        for row in (lowest if left_out else classes)
    ]
    head = ["label" if thresholds else "class", *columns, "examples"]
    head[3] = "F1"
    show(console, head, rows, least=("precision", "recall", "threshold"))
    if left_out:
        console.print(f"… {left_out:,} more classes with a higher F1; --json lists all classes")


def _confusion(console: Console, names: list[str], counts: list[list[int]]) -> None:
    """Print the confusion matrix, or the most frequent mistakes if the matrix is too wide."""
    head = ["label \\ predicted", *names]
    rows = [[n, *(f"{c:,}" for c in row)] for n, row in zip(names, counts, strict=True)]
    if matrix := layout(head, rows, console.width):
        console.print(matrix)
        return
    mistakes = [
        (count, label, predicted)
        for label, row in zip(names, counts, strict=True)
        for predicted, count in zip(names, row, strict=True)
        if count and label != predicted
    ]
    mistakes.sort(key=lambda mistake: -mistake[0])
    first = [[label, guess, f"{count:,}"] for count, label, guess in mistakes[:_MOST_ROWS]]
    console.print("most frequent mistakes:" if mistakes else "There are no mistakes.")
    if mistakes:
        show(console, ("label", "predicted", "examples"), first)
    left_out = len(mistakes) - len(first)
    more = f"… {left_out:,} more; " if left_out else ""
    console.print(f"{more}--json prints the confusion matrix")


def planned(found: PlanResult, path: str) -> None:
    """Print the result of `bertaccum plan`."""
    values = found.values
    console = stdout_console()
    for line in plan_heading(values):
        console.print(line)
    saving = "recompute", "offload"
    head = ("micro-batch", "steps", *saving, "predicted", "measured", "examples/s", "fits")
    rows = [_candidate(row, values) for row in values["candidates"]]
    show(console, head, rows, least=("predicted", "steps", *saving, "measured"))
    console.print(f"examples/s: measured on {found.timed_on}")
    took = f"{values['planning_seconds']:.0f} s"
    console.print(f"measurements: {'from the cache' if found.cached else took}")
    if found.plan is not None:
        console.print(f"* {found.plan}")
        console.print(f"reason: {with_flags(values['why'])}")
        if values["peak_memory_bytes"]:
            console.print(
                f"peak memory of a real update: {format_size(values['peak_memory_bytes'])}"
            )
    console.print(f"{path}: written", soft_wrap=True)


def _candidate(row: dict[str, Any], values: dict[str, Any]) -> list[str]:
    taken = all(row[key] == values[key] for key in ("micro_batch", "recompute", "offload"))
    return [
        f"{row['micro_batch']}" + (" *" if taken else ""),
        f"{row['accumulation_steps']}",
        row["recompute"],
        row["offload"],
        format_size(row["predicted_peak_bytes"]),
        known_size(row["measured_peak_bytes"]),
        f"{row['examples_per_second']:.1f}" if row["examples_per_second"] else "",
        "yes" if row["fits"] else "no",
    ]


_STATIC = {
    "parameters": "parameters",
    "slots": "optimizer slots",
    "accumulators": "gradient accumulators",
}


def plan_heading(values: dict[str, Any]) -> list[str]:
    """Return the lines above the table: model, device, static memory and memory per example."""
    static = {name: format_size(size) for name, size in values["static_bytes"].items() if size}
    if "embeddings" in static:
        static["parameters"] += f" (embeddings {static['embeddings']})"
    parts = ", ".join(
        f"{label} {static[name]}" for name, label in _STATIC.items() if name in static
    )
    host = format_size(values["host_bytes"])
    count = values["largest_windows"]
    windows = f"{count} windows of " if count > 1 else ""
    examples = [
        f"{format_size(v)} per example of {windows}{values['longest']} tokens"
        + (" with recomputation" if kind == "layer" else "")
        for kind, v in values["example_bytes"].items()
    ]
    return [
        f"{values['model']}: {values['parameters']:,} parameters, {values['precision']}",
        f"{values['device']}, {format_size(values['memory_bytes'])},"
        f" of which {format_size(values['margin_bytes'])} is left free",
        f"always in use: {parts}" + (f"; in host memory: {host}" if values["host_bytes"] else ""),
        "micro-batches: " + ", ".join(examples),
    ]


def prepared(result: PrepareResult) -> None:
    """Print the result of `bertaccum prepare`."""
    console, manifest = stdout_console(), result.manifest
    done = "already prepared, unchanged" if result.unchanged else "written"
    console.print(f"{result.folder}: {done}", soft_wrap=True)
    console.print(f"source: {manifest['source']}", soft_wrap=True)
    counts: Mapping[str, Any] = manifest["counts"]
    if manifest.get("task") == REGRESSION:
        head = ["split", "rows", *_STATISTICS]
        show(console, head, [[split, *_statistics(of)] for split, of in counts.items()])
        return
    without = ["no label"] if "without_label" in counts["train"] else []
    head = ["split", "rows", *manifest["labels"], *without]
    rows = [[split, *_class_counts(of, len(head) - 2)] for split, of in counts.items()]
    if table := layout(head, rows, console.width):
        console.print(table)
    else:
        _classes_in_splits(console, manifest["labels"], counts)


def _statistics(of: Mapping[str, Any]) -> list[str]:
    """Return the number of rows and the statistics of the scores; a split may have no scores."""
    return [f"{of['rows']:,}", *(f"{of[name]:.4g}" if name in of else "" for name in _STATISTICS)]


def _class_counts(of: Mapping[str, Any], columns: int) -> list[str]:
    """Return the number of rows and that of each class; a split may have no labels."""
    if "classes" not in of:
        return [f"{of['rows']:,}", *[""] * columns]
    without = [of["without_label"]] if "without_label" in of else []
    return [f"{count:,}" for count in (of["rows"], *of["classes"].values(), *without)]


def _classes_in_splits(console: Console, labels: Sequence[str], counts: Mapping[str, Any]) -> None:
    """Print a row with the totals, then one row for each of the most frequent classes.

    The classes are sorted by the counts of the first split.
    """
    splits = [of.get("classes", {}) for of in counts.values()]
    per_class = [[of.get(label) for of in splits] for label in labels]
    found = sorted(zip(labels, per_class, strict=True), key=lambda row: -(row[1][0] or 0))
    rows = [("all classes", [of["rows"] for of in counts.values()]), *found[:_MOST_ROWS]]
    if "without_label" in next(iter(counts.values())):
        rows.append(("no label", [of.get("without_label") for of in counts.values()]))
    cells = [
        [label, *("" if number is None else f"{number:,}" for number in numbers)]
        for label, numbers in rows
    ]
    show(console, ["class", *counts], cells)
    if (left_out := len(found) - _MOST_ROWS) > 0:
        console.print(f"… {left_out:,} more classes with fewer rows; --json lists all classes")


def runs(outlines: list[dict[str, Any]]) -> None:
    """Print the result of `bertaccum runs`."""
    console = stdout_console()
    metrics = {row["best_by"] for row in outlines}
    mixed = len(metrics) != 1
    metric = f"best dev {'metric' if mixed else LABELS[metrics.pop()]}"
    batches = ("target batch", "micro-batch")
    head = ("run", "status", "model", *batches, "updates", metric, "best update", "time")
    rows = [_outline(row, mixed) for row in outlines]
    if is_limited(console):
        names = _below_common_folder(console, [row[0] for row in rows])
        rows = [[name, *row[1:]] for name, row in zip(names, rows, strict=True)]
    show(console, head, rows, least=("best update", "time", "model", *batches, "updates", "status"))


def models(records: list[dict[str, Any]]) -> None:
    """Print the result of `bertaccum models`."""
    head = ("name", "parameters", "weights", "language", "case", "SHA-256", "downloaded")
    rows = [
        [
            record["name"],
            f"{record['parameters'] / 1e6:,.1f} M",
            f"{4 * record['parameters'] / 2**20:,.0f} MiB",
            record["language"],
            "lowercased" if record["lower_case"] else "cased",
            next(reversed(record["sha256"].values()), "-")[:12],
            "yes" if record["cached"] else "",
        ]
        for record in records
    ]
    show(stdout_console(), head, rows, least=("SHA-256", "weights", "downloaded"))


def _outline(row: dict[str, Any], mixed: bool) -> list[str]:
    """Return the table row of a run.

    Args:
      row: The outline of the run.
      mixed: Whether to add the name of the metric, because the runs use different ones.
    """
    best = row["best_metric"]
    named = f" {LABELS[row['best_by']]}" if mixed else ""
    return [
        row["run"],
        row["status"],
        row["model"],
        f"{row['target_batch']}",
        f"{row['micro_batch']}",
        f"{row['updates']:,}",
        "" if best is None else f"{shown(best, 'value')}{named}",
        "" if best is None else f"{best['update']:,}",
        duration(row["seconds"]),
    ]


def run(found: dict[str, Any]) -> None:
    """Print the result of `bertaccum show`."""
    console = stdout_console()
    last, summary, why = found["last_update"], found["summary"], found["plan"]["why"]
    facts = {
        "run": f"{found['run']}, {found['status']}",
        "model": found["model"],
        "target batch": f"{found['target_batch']}",
        "micro-batch": f"{found['micro_batch']}" + (f" ({why})" if why else ""),
        "updates": f"{found['updates']:,}",
        "training loss": _training_loss(found["training_loss"]),
        "noise scale": noise_scale(found["noise_scale"]),
        "time": duration(found["seconds"]),
        "speed": _speed(summary) if summary else "",
        "peak memory": known_size((summary or last or {}).get("peak_memory_bytes")),
        "out of memory": ", ".join(f"update {e['update']}" for e in found["out_of_memory"]),
    }
    if found["best"]:
        facts |= outcome(found["best"], found["best_by"])
    _facts(console, facts)
    metrics = [found["best_by"], *(name for name in METRICS if name != found["best_by"])]
    if found["evaluations"]:
        _while_training(console, found["evaluations"], metrics)
    if found["evaluated"]:
        _evaluated(console, found["evaluated"], metrics)
    # Runs of earlier versions do not distinguish options that the user set from resolved ones.
    mixed = found["resolved"] is None
    heading = "options that differ from their defaults:" if mixed else "options set:"
    _options(console, heading, found["config"])
    _options(console, "options resolved automatically:", found["resolved"])


def finished(summary: dict[str, Any], folder: str) -> None:
    """Print the result of `bertaccum train` from the summary of the run."""
    metric = summary["best_by"]
    early = ", stopped early: no improvement" if summary["stopped_early"] else ""
    facts = {
        "run folder": folder,
        "updates": f"{summary['updates']:,} ({summary['examples']:,} examples){early}",
        **outcome(summary["best_evaluation"], metric),
        f"final dev {LABELS[metric]}": shown(summary["last_evaluation"], metric),
        "speed": _speed(summary),
        "peak memory": known_size(summary["peak_memory_bytes"]),
        "time": f"{summary['total_seconds']:.0f} s",
    }
    _facts(stdout_console(), facts)


def _speed(summary: dict[str, Any]) -> str:
    """Return the speed of a run; empty if it made no update."""
    speed = summary["examples_per_second"]
    return f"{speed:.1f} examples/s" if speed else ""


def _facts(console: Console, facts: dict[str, str]) -> None:
    """Print one line per fact that is not empty; long lines wrap between words."""
    known = {name: fact for name, fact in facts.items() if fact}
    width = min(max(map(len, known)) + 1, console.width // 2)
    for name, fact in known.items():
        console.print(f"{name:{width}} {fact}")


def _while_training(
    console: Console, evaluations: list[dict[str, Any]], metrics: list[str]
) -> None:
    """Print the evaluations on dev.tsv."""
    metrics = _present(metrics, evaluations)
    head = ["update", *(f"dev {LABELS[metric]}" for metric in metrics), ""]
    rows = [
        [f"{row['update']:,}", *(shown(row, metric) for metric in metrics), _remark(row)]
        for row in evaluations
    ]
    show(console, head, rows, least=[*reversed(head[2:-1])])


def _present(metrics: list[str], rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the metrics that at least one evaluation contains."""
    rows = list(rows)
    return [metric for metric in metrics if any(metric in row for row in rows)]


def _evaluated(
    console: Console, evaluations: dict[str, dict[str, Any]], metrics: list[str]
) -> None:
    """Print the saved results of `bertaccum eval`, one row per split or file."""
    metrics = _present(metrics, evaluations.values())
    head = ["evaluated on", "update", "examples", *(LABELS[metric] for metric in metrics), ""]
    rows = [
        [
            name,
            "" if row.get("update") is None else f"{row['update']:,}",
            f"{row['examples']:,}",
            *(shown(row, metric) for metric in metrics),
            _remark(row),
        ]
        for name, row in evaluations.items()
    ]
    show(console, head, rows, least=["update", *reversed(head[4:-1])])


def _options(console: Console, heading: str, options: dict[str, Any] | None) -> None:
    if options:
        console.print(heading)
        for name, value in options.items():
            console.print(f"  {name}: {value}")


def _training_loss(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    last = "" if found["last_update"] is None else f"; last update {found['last_update']:.4f}"
    return mean_loss(found["mean"], found["examples"], last)


def _remark(row: dict[str, Any]) -> str:
    """Return the remark on an evaluation in the last column of a table."""
    only = f"predicts only {row['only_prediction']}" if one_class(row) else ""
    return ", but ".join(filter(None, ["best so far" if row.get("best") else "", only]))


def spread(found: dict[str, Any]) -> None:
    """Print the result of `bertaccum train --seeds`."""
    head = f"{found['runs']} runs; checkpoints selected by dev {LABELS[found['best_by']]}"
    rows = [
        [label, *(f"{v:.4f}" for v in found[name].values())]
        for name, label in _SPREAD.items()
        if name in found
    ]
    show(stdout_console(), (head, "mean", "standard deviation", "minimum", "maximum"), rows)


_SPREAD = {
    **{f"best_dev_{m}": f"dev {label} of the best checkpoint" for m, label in LABELS.items()},
    **{f"final_dev_{m}": f"final dev {label}" for m, label in LABELS.items()},
    "final_loss": "training loss of the last update",
    "total_seconds": "time in seconds",
}


def swept(found: dict[str, Any], command: str) -> None:
    """Print the result of `bertaccum sweep`, and the command that trains with the best values."""
    console = stdout_console()
    names = list(found["cells"][0]["options"])
    metric = LABELS.get(found["best_by"], "metric")
    head = (*names, "runs", "trained", f"dev {metric}", "standard deviation", "")
    show(console, head, [_swept(cell) for cell in found["cells"]])
    console.print(
        f"{found['updates']:,} updates in {duration(found['seconds'])}; the whole grid takes"
        f" {found['grid_updates']:,}"
    )
    for path in found["figures"]:
        console.print(f"{path}: written", soft_wrap=True)
    if command:
        console.print(f"best: {command}", soft_wrap=True)


def _swept(cell: dict[str, Any]) -> list[str]:
    known = cell["mean"] is not None
    return [
        *map(str, cell["options"].values()),
        f"{cell['runs']}",
        f"{cell['fraction']:.0%}",
        f"{cell['mean']:.4f}" if known else "",
        f"{cell['std']:.4f}" if known else "",
        f"failed: {cell['failed']}" if cell["failed"] else "",
    ]


def compared(values: dict[str, Any]) -> None:
    """Print the result of `bertaccum compare`, one column per run."""
    console = stdout_console()
    columns = [compared_run(row, values) for row in values["runs"]]
    facts = {fact: [column[fact] for column in columns] for fact in columns[0]}
    rows = [[fact, *cells] for fact, cells in facts.items() if any(cells)]
    names = [row["run"] for row in values["runs"]]
    if is_limited(console):
        names = _below_common_folder(console, names)
    show_side_by_side(console, ["run", *names], rows)
    console.print(
        f"training loss: mean over the last {values['smooth']:,} examples; noise: standard"
        f" deviation of the loss around its running mean over {values['smooth']:,} examples"
    )
    if values["differences"]:
        differing = [_differing(console, *of) for of in values["differences"].items()]
        show_side_by_side(console, ["differs", *names], differing)
    for path in values["figures"]:
        console.print(f"{path}: written", soft_wrap=True)


def advised(found: dict[str, Any]) -> None:
    """Print the result of `bertaccum advise`."""
    console = stdout_console()
    console.print(batch_advice(found))
    head = ("target batch", "updates", "examples", "learning rate")
    rows = [
        [
            f"{row['target_batch']:,}" + (" *" if row["updates"] == 1 else ""),
            f"{row['updates']:.2f}",
            f"{row['examples']:.2f}",
            f"{row['learning_rate']:.2g}",
        ]
        for row in found["batches"]
    ]
    show(console, head, rows)
    console.print("* this run; updates and examples to the same loss are relative to it")


def found_rate(found: dict[str, Any]) -> None:
    """Print the result of `bertaccum train --find-lr`."""
    console = stdout_console()
    step = max(len(found["smoothed_losses"]) // 10, 1)
    points = list(zip(found["rates"], found["smoothed_losses"], strict=False))[::step]
    show(console, ("learning rate", "training loss"), [[f"{r:.1e}", f"{y:.4f}"] for r, y in points])
    console.print(suggested_rate(found), soft_wrap=True)
    for path in found["figures"]:
        console.print(f"{path}: written", soft_wrap=True)


def _differing(console: Console, option: str, values: Sequence[Any]) -> list[str]:
    """Return the table row of an option that differs between runs.

    On a terminal, the folder that all values share is moved to the first cell.
    """
    cells = ["" if value is None else str(value) for value in values]
    folder, below = without_common_folder(cells) if is_limited(console) else ("", cells)
    return [f"{option} in {folder}" if folder else option, *below]


def _below_common_folder(console: Console, runs: Sequence[str]) -> list[str]:
    """Print the common folder of the runs, if any, and return their paths relative to it."""
    folder, names = without_common_folder(runs)
    if folder:
        console.print(f"in {folder}", soft_wrap=True)
    return names


def compared_run(row: dict[str, Any], values: dict[str, Any]) -> dict[str, str]:
    """Return the facts of a run that `compare` shows; an unknown fact is an empty string."""

    def number(name: str, form: str = ".4f") -> str:
        return "" if row.get(name) is None else format(row[name], form)

    split = [str(row[name] or "?") for name in ("accumulation_steps", "micro_batch")]
    size, metric, best = values["equal_mean_examples"], values["best_by"], row["best_metric"]
    score = "" if best is None else f"{shown(best, 'value')} (update {best['update']:,})"
    if metric is None and best is not None:
        score = f"{LABELS[best['name']]} {score}"
    others = {
        f"dev {LABELS[name]} of the best checkpoint": number(f"best_dev_{name}")
        for name in (ordered(metric)[1:] if metric else ordered("accuracy"))
    }
    return {
        "status": row["status"],
        "model": row["model"],
        "target batch": f"{row['target_batch']:,}",
        "steps x micro-batch": " x ".join(split),
        "replicas": f"{row['replicas']}" if (row["replicas"] or 1) > 1 else "",
        "updates": f"{row['updates']:,}",
        "examples seen": f"{row['examples']:,}",
        "training loss": number("training_loss"),
        "noise": number("noise"),
        f"noise of means over {size:,}": number("noise_of_equal_means"),
        "noise scale": number("noise_scale", ",.0f"),
        f"best dev {LABELS[metric] if metric else 'metric'}": score,
        "majority baseline": number("majority_accuracy"),
        **others,
        f"final dev {LABELS[metric or 'accuracy']}": number(f"final_dev_{metric or 'accuracy'}"),
        "time": f"{row['seconds']:,.0f} s",
        "peak memory": known_size(row["peak_memory_bytes"]),
    }
