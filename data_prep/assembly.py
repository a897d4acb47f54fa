"""Turns a source into the rows of each split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import SPLITS
from bertaccum.options.fields import column_names
from bertaccum.options.prepare import MIN_DEV_FRACTION, PrepareConfig
from bertaccum.options.task_names import CLASSIFICATION, REGRESSION
from bertaccum.system.phrases import counted
from bertaccum.system.progress import Note, Progress
from data_prep.findings import findings, missing_labels, rows_to_keep, spellings
from data_prep.labels.checks import format_notes
from data_prep.labels.kinds import LabelKind, label_cells, label_kind
from data_prep.split import split_rows
from data_prep.tables.columns import LABEL, PAIR, TEXT, WEIGHT
from data_prep.tables.rows import Part, Rows, Source, read_part

# By default, dev.tsv has at least this number of rows, or this share of them if that is fewer.
_DEV_ROWS, _MOST_OF_FEW = 500, 0.1


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split, ready to be written."""

    columns: list[str]
    # The cell of the first column of each row, or None if the rows have no labels.
    labels: list[bytes] | None
    texts: list[bytes]  # The other cells of each row, separated by tabs.


@dataclass(frozen=True)
class Assembled:
    """The splits of a source."""

    splits: dict[str, SplitRows]  # The rows of each split, in the order of `SPLITS`.
    kind: LabelKind
    findings: dict[str, Any]  # Counts of unusual rows, for the manifest.
    dev_fraction: float  # Fraction of the training rows that is held out as dev.tsv.


def assemble(source: Source, config: PrepareConfig, progress: Progress, note: Note) -> Assembled:
    """Read all rows of a source, and split the training rows."""
    rows = read_part(source.train, "training", progress)
    given = {name: read_part(rows, name, progress) for name, rows in source.given.items()}
    _check_pairs(source, rows, given)
    task, separator = config.task or source.task, source.separator
    columns = column_names(config.label_columns)
    named = [column for column in columns if not column.isdecimal()]
    kind = label_kind(source, rows, task, config.labels_as_written, named)
    if len(columns) > len(kind.labels):
        absent = counted(len(columns) - len(kind.labels), "column")
        what = f"ignored {absent} of `label_columns` with 0 in all rows; names keep such columns"
        note(f"{source.train.where}: {what}")
    for line in format_notes(kind.format, kind.task, task, separator, kind.labels):
        note(f"{source.train.where}: {line}")
    if config.layout == "cola":
        _check_cola(rows, kind)
    cells = label_cells(kind, source.train, rows)
    splits = {
        name: split_of(other, label_cells(kind, source.given[name], other) or None)
        for name, other in given.items()
    }
    apart = [text for other in given.values() for text in other.texts]
    kept = rows_to_keep(rows.texts, apart, config.drop_duplicates)
    dev_fraction = config.dev_fraction or default_dev_fraction(len(kept), config.test_fraction)
    shares = {"test": config.test_fraction, "dev": dev_fraction}
    splits |= _held_out(source, rows, cells, kept, kind, shares, config.seed)
    unusual = findings(rows, given, cells) | {"dropped_rows": len(cells) - len(kept)}
    unusual["missing_labels"] = missing_labels(kind, {"training": rows} | given)
    unusual["spellings"] = spellings(kind, [rows, *given.values()])
    splits = {name: splits[name] for name in SPLITS if name in splits}
    return Assembled(splits, kind, unusual, dev_fraction)


def default_dev_fraction(rows: int, test_fraction: float) -> float:
    """Return the default fraction of rows to hold out as dev.tsv: at least some hundreds of rows.

    With 400 rows, the standard error of an accuracy of 0.9 is 1.5 percentage points.
    """
    wanted = max(MIN_DEV_FRACTION, min(_DEV_ROWS / max(rows, 1), _MOST_OF_FEW))
    return min(wanted, (1 - test_fraction) / 2)


def split_of(
    rows: Rows, cells: Sequence[bytes] | None, wanted: Sequence[int] | None = None
) -> SplitRows:
    """Return the rows of a split: all rows, or those at the positions `wanted`, in order."""
    wanted = range(len(rows.texts)) if wanted is None else wanted
    columns = [TEXT, PAIR][: 1 + rows.pairs] + [WEIGHT] * bool(rows.weights)
    texts = [rows.texts[row] for row in wanted]
    if rows.weights:
        weights = (repr(rows.weights[row]).encode() for row in wanted)
        texts = [b"%s\t%s" % cells for cells in zip(texts, weights, strict=True)]
    labels = None if cells is None else [cells[row] for row in wanted]
    return SplitRows([LABEL] * (labels is not None) + columns, labels, texts)


def _check_pairs(source: Source, rows: Rows, given: Mapping[str, Rows]) -> None:
    for name, split in given.items():
        if split.pairs != rows.pairs:
            kinds = {True: "pairs of texts", False: "single texts"}
            what = f"has {kinds[split.pairs]}, but the training rows are {kinds[rows.pairs]}"
            remedy = "give both files the same columns"
            raise InputError(what, remedy, path=source.given[name].where)


def _check_cola(rows: Rows, kind: LabelKind) -> None:
    for applies, what in (
        (rows.pairs, "second texts"),
        (bool(rows.weights), "weights"),
        (kind.task == REGRESSION, "scores"),
        (kind.task != CLASSIFICATION, "several labels"),
    ):
        if applies:
            raise ConfigError(f"`layout` cola has no column for {what}", "use `layout` plain")


def _held_out(
    source: Source,
    rows: Rows,
    cells: Sequence[bytes],
    kept: Sequence[int],
    kind: LabelKind,
    shares: Mapping[str, float],
    seed: int,
) -> dict[str, SplitRows]:
    """Split the training rows that are kept; return the rows of each split, keyed by its name."""
    own = [cells[row] for row in kept]
    _check_kept(source.train, kind, own)
    shares = {name: part for name, part in shares.items() if part and name not in source.given}
    texts = [rows.texts[row] for row in kept]
    # Each split has the same share of every class.
    groups = list(map(int, own)) if kind.task == CLASSIFICATION else [0] * len(own)
    splits = split_rows(texts, groups, shares, seed)
    for name in shares:
        if not splits[name]:
            what = f"has too few different texts to hold out any of them as {name}.tsv"
            remedy = "add rows with other texts: rows with the same text stay in one split"
            if kind.task == CLASSIFICATION and len(set(groups)) == len(groups):
                what = f"each of the {len(groups):,} labels occurs in only one row"
                remedy = (
                    "add rows of each label, choose another `label_column`, or pass `task`"
                    " regression if the labels are numbers"
                )
            raise InputError(what, remedy, path=source.train.where)
    if rows.weights and not any(rows.weights[kept[number]] for number in splits["train"]):
        remedy = "choose another `weight_column`, or correct the weights"
        raise InputError("the weight of every training row is 0", remedy, path=source.train.where)
    return {
        name: split_of(rows, cells, [kept[number] for number in split])
        for name, split in splits.items()
    }


def _check_kept(part: Part, kind: LabelKind, cells: list[bytes]) -> None:
    if not cells:
        remedy = "choose another `test_file`, or replace the option with `test_fraction` 0.1"
        raise InputError("all its texts are also in the test set", remedy, path=part.where)
    if problem := kind.problem(cells):
        remedy = "add rows of other classes, or keep duplicates with `drop_duplicates=False`"
        raise InputError(f"{problem} after duplicates are dropped", remedy, path=part.where)
