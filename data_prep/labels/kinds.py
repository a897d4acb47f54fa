"""Turns the labels of a source into the cells of the label column, for each kind of task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from bertaccum.errors import InputError
from bertaccum.options.task_names import (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)
from bertaccum.system.phrases import listed
from data_prep.labels import tag_schemes
from data_prep.labels.checks import check_labels, likely_task
from data_prep.labels.formats import LabelFormat, class_format, set_format, tag_format
from data_prep.labels.tag_schemes import OUTSIDE, split_tag
from data_prep.tables import spellings
from data_prep.tables.rows import LABEL_SEPARATOR, Part, Rows, Source


def label_kind(
    source: Source,
    rows: Rows,
    task: str | None,
    as_written: bool = False,
    columns: Iterable[str] = (),
) -> LabelKind:
    """Return the labels of the training rows.

    Args:
      task: The kind of task. None means what the labels suit; see `likely_task`.
      columns: Labels of a multi-label task that may occur in no training row.
    """
    if task is None:
        task = likely_task(rows.classes, source.train.where)
    if task == REGRESSION:
        return _Scores(source, rows)
    if task == TOKEN_CLASSIFICATION:
        return _TagSequences(source, rows)
    as_written = as_written or source.joined or bool(source.order)
    if task == MULTI_LABEL:
        return _LabelSets(source, rows, as_written, columns)
    return _Classes(source, rows, as_written)


def label_cells(kind: LabelKind, part: Part, rows: Rows) -> list[bytes]:
    """Return the cell of each row; rows with the same label share one object."""
    labels = kind.format.labels_in(rows.classes)
    by_code = [kind.cell(labels[cell], part, row).encode() for cell, row in rows.classes.items()]
    return [by_code[code] for code in rows.codes]


def label_counts(labels: Mapping[str, Sequence[str]], rows: Rows) -> Counter[str]:
    """Return the number of rows with each label, given the labels in each cell."""
    counts, cells = Counter[str](), list(rows.classes)
    for code, count in Counter(rows.codes).items():
        counts.update(dict.fromkeys(labels[cells[code]], count))
    return counts


def _sorted(labels: Iterable[str]) -> list[str]:
    try:
        return sorted(labels, key=lambda label: (int(label), label))
    except ValueError:
        return sorted(labels)


def _class_names(
    labels: Mapping[str, Sequence[str]], rows: Rows, as_written: bool
) -> Collection[str]:
    """Return the names of the classes, given the labels in each cell of the training rows."""
    counts = label_counts(labels, rows)
    return counts.keys() if as_written else set(spellings.merged(counts).values())


def _number(kind: _Classes | _LabelSets, label: str, part: Part, row: int) -> int:
    """Return the number of the class that a label spells."""
    if (name := kind.find(label)) is not None:
        return kind.numbers[name]
    what = f"the label {label!r} does not occur in the training rows"
    remedy = spellings.flags_remedy(kind.format.flags)
    remedy = remedy or "correct it, or add training rows of that class"
    raise InputError(what, remedy, path=part.where, row=row)


class _Classes:
    """One class for each row."""

    task = CLASSIFICATION

    def __init__(self, source: Source, rows: Rows, as_written: bool) -> None:
        order, part = source.order, source.train
        self.format = LabelFormat(lists=False) if order else class_format(rows.classes)
        if source.joined:
            self.format = LabelFormat(source.separator, lists=False)
        labels = self.format.labels_in(rows.classes)
        check_labels(self.format, labels, rows.classes, part.where)
        names = _class_names(labels, rows, as_written)
        if len(names) == 1:
            what = f"every row has the label {next(iter(names))!r}"
            raise InputError(what, "add rows of at least one other class", path=part.where)
        self.labels = list(order) or _sorted(names)
        self.find = spellings.class_finder(self.labels, as_written)
        self.numbers = {label: number for number, label in enumerate(self.labels)}

    def cell(self, labels: Sequence[str], part: Part, row: int) -> str:
        """Return the cell to write for a row."""
        if len(labels) != 1:
            several = f"several labels ({', '.join(labels)[:80]})" if labels else "no label"
            remedy = (
                "write one class or delete the row; pass `task` multi-label if any number may apply"
            )
            raise InputError(f"has {several}", remedy, path=part.where, row=row)
        return str(_number(self, labels[0], part, row))

    def problem(self, cells: Iterable[bytes]) -> str | None:
        """Return why a model cannot be trained on these rows, or None if it can."""
        return "has rows of only one class" if len(set(cells)) == 1 else None

    def counts(self, cells: Sequence[bytes], names: Sequence[str]) -> dict[str, Any]:
        """Return statistics of the labels of a split, for the manifest."""
        counted = Counter(cells)
        classes = {name: counted[b"%d" % number] for number, name in enumerate(names)}
        return {"rows": len(cells), "classes": classes}


class _Scores:
    """A finite number for each row, with the methods of `_Classes`."""

    task = REGRESSION

    def __init__(self, source: Source, rows: Rows) -> None:
        part = source.train
        self.labels: list[str] = []
        self.format = LabelFormat(source.separator if source.joined else None)
        labels = self.format.labels_in(rows.classes)
        cells = {self.cell(labels[cell], part, row) for cell, row in rows.classes.items()}
        if len(cells) == 1:
            what = f"every row has the score {next(iter(cells))}"
            raise InputError(what, "add rows with other scores", path=part.where)

    def find(self, label: str) -> None:
        return None

    def cell(self, labels: Sequence[str], part: Part, row: int) -> str:
        label = ", ".join(labels)
        score = spellings.finite_number(label)
        if score is None:
            what = f"the label {label[:40]!r} is not a finite number"
            usual = "write a number such as 3.5, delete the row, or omit `task` regression"
            remedy = spellings.number_remedy(label) or usual
            raise InputError(what, remedy, path=part.where, row=row)
        return repr(score)

    def problem(self, cells: Iterable[bytes]) -> str | None:
        return "has rows of only one score" if len(set(cells)) == 1 else None

    def counts(self, cells: Sequence[bytes], _: Sequence[str]) -> dict[str, Any]:
        scores = np.array([float(cell) for cell in cells])
        names = ("mean", "std", "min", "max")
        return {"rows": len(cells)} | {name: float(getattr(scores, name)()) for name in names}


class _LabelSets:
    """Any number of labels for each row, with the methods of `_Classes`."""

    task = MULTI_LABEL

    def __init__(
        self, source: Source, rows: Rows, as_written: bool, columns: Iterable[str]
    ) -> None:
        order, part, by = source.order, source.train, source.separator
        joined = LabelFormat(by or LABEL_SEPARATOR, lists=False)
        self.format = joined if source.joined else set_format(rows.classes, by)
        labels = self.format.labels_in(rows.classes)
        names = _class_names(labels, rows, as_written)
        if len(names) < 2:
            only = f"only one label ({next(iter(names))!r})" if names else "no row with a label"
            remedy = "add rows of other labels, or choose another `label_separator`"
            raise InputError(f"has {only}", remedy, path=part.where)
        check_labels(self.format, labels, rows.classes, part.where)
        self.labels = list(order) or _sorted({*names, *columns})
        self.find = spellings.class_finder(self.labels, as_written)
        self.numbers = {label: number for number, label in enumerate(self.labels)}

    def cell(self, labels: Sequence[str], part: Part, row: int) -> str:
        numbers = sorted({_number(self, label, part, row) for label in labels})
        return LABEL_SEPARATOR.join(map(str, numbers)) or LABEL_SEPARATOR

    def problem(self, cells: Iterable[bytes]) -> str | None:
        few = len(set().union(*map(_numbers, set(cells)))) < 2
        return "has fewer than two different labels" if few else None

    def counts(self, cells: Sequence[bytes], names: Sequence[str]) -> dict[str, Any]:
        counted = Counter(number for cell in cells for number in _numbers(cell))
        classes = {name: counted[b"%d" % number] for number, name in enumerate(names)}
        unlabeled = sum(not _numbers(cell) for cell in cells)
        return {"rows": len(cells), "classes": classes, "without_label": unlabeled}


class _TagSequences:
    """A tag for each word of a row, with the methods of `_Classes`."""

    task = TOKEN_CLASSIFICATION

    def __init__(self, source: Source, rows: Rows) -> None:
        tags = {tag for cell in rows.classes for tag in cell.split()}
        if len(tags) < 2:
            what = f"every word has the tag {next(iter(tags))!r}"
            remedy = "choose the column of the tags with `label_column`"
            raise InputError(what, remedy, path=source.train.where)
        if source.order and (others := sorted(tags.difference(source.order))):
            what = f"has tags without a name in `tag_names`: {listed(others)}"
            raise InputError(what, "add their names, or omit `tag_names`", path=source.train.where)
        self.format = tag_format(rows.classes)
        ordered = sorted(tags, key=lambda tag: (tag != OUTSIDE, *split_tag(tag)[::-1]))
        self.labels = list(source.order) or (ordered if self.format.scheme else sorted(tags))
        self.numbers = {tag: str(number) for number, tag in enumerate(self.labels)}

    def find(self, tag: str) -> str | None:
        return tag if tag in self.numbers else None

    def cell(self, labels: Sequence[str], part: Part, row: int) -> str:
        for tag in labels:
            if tag not in self.numbers:
                what = f"the sentence here has the tag {tag!r}, which the training rows lack"
                remedy = "correct it, or add training rows with this tag"
                raise InputError(what, remedy, path=part.where, row=row)
        return " ".join(self.numbers[tag] for tag in labels)

    def problem(self, cells: Iterable[bytes]) -> str | None:
        few = len({number for cell in cells for number in cell.split()}) < 2
        return "has words of only one tag" if few else None

    def counts(self, cells: Sequence[bytes], names: Sequence[str]) -> dict[str, Any]:
        """Return statistics; the scheme forbids `forbidden_tags`, which stay as they are."""
        sequences = [[names[int(number)] for number in cell.split()] for cell in cells]
        counted = Counter(tag for sequence in sequences for tag in sequence)
        result: dict[str, Any] = {"rows": len(cells), "words": counted.total()}
        result["classes"] = {name: counted[name] for name in names}
        if scheme := self.format.scheme:
            found = (e.type for tags in sequences for e in tag_schemes.entities(tags, scheme))
            result["entities"] = dict(sorted(Counter(found).items()))
            forbidden = sum(tag_schemes.forbidden_tags(tags, scheme) for tags in sequences)
            result |= {"forbidden_tags": forbidden} if forbidden else {}
        return result


LabelKind: TypeAlias = _Classes | _Scores | _LabelSets | _TagSequences


def _numbers(cell: bytes) -> list[bytes]:
    return [number for number in cell.split(LABEL_SEPARATOR.encode()) if number]
