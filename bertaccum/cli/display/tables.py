"""Tables of evaluations, prepared data and models, on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertaccum.cli.display.sentences import relative_path
from bertaccum.cli.display.table_fitting import is_limited, print_line, show, show_facts, show_whole
from bertaccum.options.metrics import MAX_CLASSES, confusions, in_unit, modes, scores, warning
from bertaccum.options.task_names import REGRESSION
from bertaccum.system.phrases import counted

if TYPE_CHECKING:
    from data_prep.preparation import PrepareResult

# A table of classes has at most this many rows on a terminal, and in a pipe or file. A table of
# pairs of classes has as many rows as on a terminal.
_MAX_ROWS, _MAX_ROWS_IN_FILE = 20, 200
# Statistics of the scores of a split, in the manifest and in the table of `bertaccum prepare`.
_STATISTICS = ("mean", "std", "min", "max")


def print_evaluation(values: dict[str, Any]) -> None:
    """Print the tables of `bertaccum eval`."""
    data = relative_path(Path(values["data"]))
    update = "" if values["update"] is None else f"; best checkpoint, update {values['update']:,}"
    how = "".join(f", {mode}" for mode in modes(values))
    print_line(f"{counted(values['examples'], 'example')} of {data}{update}{how}")
    show_facts(scores(values) | {"note": warning(values)})
    if "classes" in values:
        _class_scores(values["classes"], values.get("thresholds"))
    if "confusion_matrix" in values:
        names = values.get("confusion_classes") or [row["name"] for row in values["classes"]]
        _confusion(names, values["confusion_matrix"])


def _max_rows() -> int:
    return _MAX_ROWS if is_limited() else _MAX_ROWS_IN_FILE


def _class_scores(classes: list[dict[str, Any]], thresholds: list[float] | None) -> None:
    """Print one row per class; of many classes, only those with the lowest F1."""
    if thresholds:
        pairs = zip(classes, thresholds, strict=True)
        classes = [row | {"threshold": threshold} for row, threshold in pairs]
    columns = ("precision", "recall", "f1", *(["threshold"] if thresholds else []))
    lowest = sorted(classes, key=lambda row: row["f1"])[: _max_rows()]
    left_out = len(classes) - len(lowest)
    rows = [
        [row["name"], *(f"{row[key]:.4f}" for key in columns), f"{row['examples']:,}"]
        for row in (lowest if left_out else classes)
    ]
    head = ["label" if thresholds else "class", *columns, "examples"]
    head[3] = "F1"
    show(head, rows, least=("precision", "recall", "threshold"))
    if left_out:
        more = counted(left_out, "more class", "more classes")
        print_line(f"… {more} with a higher F1; --json lists all classes")


def _confusion(names: list[str], counts: list[list[int]]) -> None:
    """Print the confusion matrix, or the most frequent mistakes if the matrix is too wide."""
    if len(names) <= MAX_CLASSES:
        head = ["label \\ predicted", *names]
        rows = [[n, *(f"{c:,}" for c in row)] for n, row in zip(names, counts, strict=True)]
        if show_whole(head, rows):
            return
    mistakes = confusions(names, counts)
    first = [[label, guess, f"{count:,}"] for count, label, guess in mistakes[:_MAX_ROWS]]
    print_line("most frequent mistakes:" if mistakes else "There are no mistakes.")
    if mistakes:
        show(("label", "predicted", "examples"), first)
    left_out = len(mistakes) - len(first)
    more = f"… {left_out:,} more; " if left_out else ""
    print_line(f"{more}--json prints the confusion matrix")


def print_prepared(result: PrepareResult) -> None:
    """Print the result of `bertaccum prepare`."""
    manifest = result.manifest
    done = "already prepared, unchanged" if result.unchanged else "written"
    print_line(f"{result.folder}: {done}", wrap=False)
    print_line(f"source: {manifest['source']}", wrap=False)
    counts: Mapping[str, Any] = manifest["counts"]
    if manifest.get("task") == REGRESSION:
        head = ["split", "rows", *_STATISTICS]
        show(head, [[split, *_statistics(of)] for split, of in counts.items()])
        return
    without = ["no label"] if "without_label" in counts["train"] else []
    head = ["split", "rows", *manifest["labels"], *without]
    rows = [[split, *_class_counts(of, len(head) - 2)] for split, of in counts.items()]
    if len(head) > MAX_CLASSES or not show_whole(head, rows):
        _classes_in_splits(manifest["labels"], counts)


def _statistics(of: Mapping[str, Any]) -> list[str]:
    """Return the number of rows and the statistics of the scores; a split may have no scores."""
    return [f"{of['rows']:,}", *(in_unit(of[name]) if name in of else "" for name in _STATISTICS)]


def _class_counts(of: Mapping[str, Any], columns: int) -> list[str]:
    """Return the number of rows and that of each class; a split may have no labels."""
    if "classes" not in of:
        return [f"{of['rows']:,}", *[""] * columns]
    without = [of["without_label"]] if "without_label" in of else []
    return [f"{count:,}" for count in (of["rows"], *of["classes"].values(), *without)]


def _classes_in_splits(labels: Sequence[str], counts: Mapping[str, Any]) -> None:
    """Print a row with the totals, then one row for each of the most frequent classes."""
    # The classes are sorted by the counts of the first split.
    splits = [of.get("classes", {}) for of in counts.values()]
    per_class = [[of.get(label) for of in splits] for label in labels]
    classes = sorted(zip(labels, per_class, strict=True), key=lambda row: -(row[1][0] or 0))
    rows = [("all classes", [of["rows"] for of in counts.values()]), *classes[: _max_rows()]]
    if "without_label" in next(iter(counts.values())):
        rows.append(("no label", [of.get("without_label") for of in counts.values()]))
    cells = [
        [label, *("" if number is None else f"{number:,}" for number in numbers)]
        for label, numbers in rows
    ]
    show(["class", *counts], cells)
    if (left_out := len(classes) - _max_rows()) > 0:
        more = counted(left_out, "more class", "more classes")
        print_line(f"… {more} with fewer rows; --json lists all classes")


def print_models(records: list[dict[str, Any]]) -> None:
    """Print the result of `bertaccum models`."""
    head = (
        *("name", "parameters", "layers", "width"),
        *("weights", "language", "case", "SHA-256", "downloaded"),
    )
    rows = [
        [
            record["name"],
            f"{record['parameters'] / 1e6:,.1f} M",
            str(record["layers"]),
            str(record["hidden_size"]),
            f"{4 * record['parameters'] / 2**20:,.0f} MiB",
            record["language"],
            "lowercased" if record["lower_case"] else "cased",
            next(reversed(record["sha256"].values()), "-")[:12],
            "yes" if record["cached"] else "",
        ]
        for record in records
    ]
    show(head, rows, least=("SHA-256", "weights", "downloaded"))
