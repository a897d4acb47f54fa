"""Labeled texts: the rows that a source yields, and the validated rows that are written."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from bertaccum.errors import InputError
from bertaccum.system.progress import Progress

# The number of each record of a file, counted from 1, and its cells.
Records = Iterator[tuple[int, list[str]]]
# Joins the class numbers of a row in a prepared file.
LABEL_SEPARATOR = "|"
_ROWS_A_REPORT = 500
# Characters that some programs treat as the end of a line, a field or a string (for line ends, the
# list is that of `str.splitlines`), and surrogates, which UTF-8 cannot encode.
_BREAKS = re.compile(r"[\x00\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]")


class Row(NamedTuple):
    """One example, before cleaning."""

    row: int  # The number of the line or record in the source, counted from 1.
    # The class without surrounding spaces; never empty, except with `ReadOptions.may_lack_labels`.
    # None if the source has no classes or the caller did not ask for them.
    label: str | None
    text: str  # The text, before cleaning.
    # The second text of a pair, before cleaning; may be empty. None for single texts.
    pair: str | None = None
    # The weight of the example in the loss, at least 0. None if the source has no weights.
    weight: float | None = None


@dataclass(frozen=True)
class Part:
    """The rows of one file or split. They can be read only once."""

    where: str | Path  # The file or the name of the data set, for error messages.
    examples: Iterable[Row]  # The rows in the order of the source.
    total: int | None = None  # The number of rows, or None if it is unknown before reading.
    # Whether the rows may have no labels, as in the test sets of benchmarks.
    may_lack_labels: bool = False
    # The files that determine the rows, for a source that records their checksums.
    files: Sequence[Path] = ()


@dataclass(frozen=True)
class Source:
    """The input of `prepare`."""

    description: str  # Description of the texts, for the manifest.
    # Training rows. `prepare` holds out some of them as dev.tsv, unless `given` has this split.
    train: Part
    # Rows of every split that is not made from the training rows, keyed by its name.
    given: Mapping[str, Part]
    # Class names, keyed by source label, for labels that are not readable names.
    names: Mapping[str, str] = field(default_factory=dict)
    task: str | None = None  # The kind of task, or None if it depends on the labels.
    # Source labels in the order of the class numbers. If it is empty, the labels of the training
    # rows are sorted.
    order: Sequence[str] = ()
    # Separates the labels of a row in a multi-label task; None to detect it.
    separator: str | None = None
    # Whether the source joined the labels of each row itself. A label is then never a list, and
    # never another spelling of one.
    joined: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)  # Further entries of the manifest.


@dataclass(frozen=True)
class Rows:
    """The cleaned rows of one `Part`."""

    # Cleaned texts in UTF-8; a tab separates the two texts of a pair. They are bytes because a
    # single character above U+00FF doubles the size of a str, and 560,000 texts must fit in the
    # memory of a small machine.
    texts: list[bytes] = field(default_factory=list)
    # Label of each row, as the position of the label in `classes`; empty if the rows have no
    # labels.
    codes: list[int] = field(default_factory=list)
    # Source labels, each mapped to the number of the row where it first occurs.
    classes: dict[str, int] = field(default_factory=dict)
    # Number of each row in its source.
    numbers: array[int] = field(default_factory=lambda: array("q"))
    # Weight of each row; empty if the rows have no weights.
    weights: array[float] = field(default_factory=lambda: array("d"))
    # Numbers of the rows with an empty or blank text.
    empty: list[int] = field(default_factory=list)

    @property
    def pairs(self) -> bool:
        """Whether every row is a pair of texts; if not, every row is a single text."""
        return b"\t" in self.texts[0]


def clean(text: str) -> str:
    """Replace each tab, line break, NUL character and surrogate in a text with a space.

    The length of the text does not change, and cleaning it again has no effect.
    """
    return _BREAKS.sub(" ", text)


def read_part(part: Part, what: str, progress: Progress) -> Rows:
    """Read, clean and encode all rows of a part."""
    rows, codes, first = Rows(), dict[str, int](), None
    for done, (row, label, text, pair, weight) in enumerate(part.examples, 1):
        whole = clean(text) if pair is None else f"{clean(text)}\t{clean(pair)}"
        rows.texts.append(whole.encode())
        rows.numbers.append(row)
        if not text.strip() or (pair is not None and not pair.strip()):
            rows.empty.append(row)
        if label is not None:
            rows.codes.append(codes.setdefault(label, len(codes)))
            rows.classes.setdefault(label, row)
        elif rows.codes or not part.may_lack_labels:
            _refuse_unlabeled(part, row if rows.codes else None)
        if weight is not None:
            rows.weights.append(weight)
        # The files of a split may have different columns.
        has = pair is not None, weight is not None
        if has != (first := first or has):
            name = "second texts" if has[0] != first[0] else "weights"
            remedy = "give all files of the split the same columns"
            raise InputError(f"has {name} only in some rows", remedy, path=part.where, row=row)
        if done % _ROWS_A_REPORT == 0:
            progress(f"reading {what} texts", done, part.total)
    if not rows.texts:
        raise InputError("has no rows", "add at least one text of each class", path=part.where)
    if rows.codes and len(rows.codes) < len(rows.texts):
        _refuse_unlabeled(part, rows.numbers[0])
    progress(f"reading {what} texts", len(rows.texts), len(rows.texts))
    return rows


def _refuse_unlabeled(part: Part, row: int | None) -> NoReturn:
    if row is None:
        remedy = "pass a file with a column of labels"
        raise InputError("has no labels", remedy, path=part.where)
    raise InputError("has no label, unlike other rows", path=part.where, row=row)
