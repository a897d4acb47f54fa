"""Tables of evaluations, plans, prepared data and models, on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertaccum.cli.display.sentences import from_here, with_flags
from bertaccum.cli.display.table_fitting import is_limited, layout, show, show_facts, stdout_console
from bertaccum.metrics import one_class, scores
from bertaccum.reporting import candidates
from bertaccum.sizes import format_size
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
    show_facts(console, scores(values) | {"note": one_class(values)})
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
    rows = [candidates.candidate_cells(row, values) for row in values["candidates"]]
    show(console, candidates.COLUMNS, rows, candidates.LEAST)
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
