"""Labelled texts: as a source hands them over, and validated, as the bytes that will be written."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bertaccum.errors import InputError
from bertaccum.progress import Progress

_ROWS_A_REPORT = 500
# Everything that ends a line for some reader (`str.splitlines` is the broadest),
# separates fields or ends a C string; and surrogates, which UTF-8 cannot hold.
_BREAKS = re.compile(r"[\x00\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]")


class Row(NamedTuple):
    """One example as its source spells it.

    Args:
      row: 1-based row of the file or stream it comes from, or number of the record.
      label: its class, stripped and never empty; None if the source has none or none is wanted.
      text: its text, as it stands.
    """

    row: int
    label: str | None
    text: str


@dataclass(frozen=True)
class Part:
    """The rows of one file or split, read once.

    Args:
      where: the file or data set, for messages.
      examples: the rows, in the source's order.
      total: how many there are, when that is known before reading.
    """

    where: str | Path
    examples: Iterable[Row]
    total: int | None = None


@dataclass(frozen=True)
class Source:
    """Everything there is to prepare.

    Args:
      description: what the texts are, for the manifest.
      train: the rows that train.tsv and dev.tsv share.
      test: the rows of test.tsv, if there are any.
      names: readable class names by source label, where those differ.
    """

    description: str
    train: Part
    test: Part | None
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """The rows of one `Part`.

    Args:
      texts: cleaned, UTF-8. Bytes, not str: a single character above U+00FF
        doubles a str, and 560,000 texts must fit in small machines.
      codes: each row's class, as its position in `classes`.
      classes: source labels, each with the row where it first appears.
      numbers: each row's number in its source.
      empty: numbers of the rows whose text is empty or blank.
    """

    texts: list[bytes] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    classes: dict[str, int] = field(default_factory=dict)
    numbers: array[int] = field(default_factory=lambda: array("q"))
    empty: list[int] = field(default_factory=list)


def clean(text: str) -> str:
    """Puts a space for every character that a line, tab or UTF-8 reader would trip over.

    Args:
      text: any text.

    Returns:
      Text of the same length; cleaning it again changes nothing.
    """
    return _BREAKS.sub(" ", text)


def gather(part: Part, what: str, progress: Progress) -> Rows:
    """Reads, cleans and encodes every row.

    Args:
      part: the rows.
      what: what to call them in progress reports.
      progress: called as rows come in.

    Returns:
      The rows in their order.

    Raises:
      InputError: there are none, they have no labels, or the source says one of them is wrong.
    """
    rows = Rows()
    codes: dict[str, int] = {}
    for done, (row, label, text) in enumerate(part.examples, 1):
        if label is None:
            remedy = "name a file with a column of classes"
            raise InputError("has no labels", remedy, path=part.where)
        rows.texts.append(clean(text).encode())
        rows.numbers.append(row)
        if not text.strip():
            rows.empty.append(row)
        rows.codes.append(codes.setdefault(label, len(codes)))
        rows.classes.setdefault(label, row)
        if done % _ROWS_A_REPORT == 0:
            progress(f"reading {what} texts", done, part.total)
    if not rows.texts:
        raise InputError("has no rows", "give at least one text of each class", path=part.where)
    progress(f"reading {what} texts", len(rows.texts), len(rows.texts))
    return rows


def class_order(part: Part, rows: Rows) -> list[str]:
    """Orders the classes: by value when all are integers, else as strings.

    Args:
      part: where the training rows come from, for the message.
      rows: the training rows.

    Returns:
      Source labels by class number.

    Raises:
      InputError: there is only one class, so nothing to learn.
    """
    if len(rows.classes) == 1:
        raise InputError(
            f"every row has the label {next(iter(rows.classes))!r}",
            "a classifier needs at least two classes",
            path=part.where,
        )
    try:
        return sorted(rows.classes, key=lambda label: (int(label), label))
    except ValueError:
        return sorted(rows.classes)


def class_numbers(part: Part, rows: Rows, order: list[str]) -> list[int]:
    """Numbers each row's class.

    Args:
      part: where the rows come from, for the message.
      rows: the rows.
      order: source labels by class number.

    Returns:
      One class number a row.

    Raises:
      InputError: a row has a label that is not in `order`.
    """
    numbers = {label: number for number, label in enumerate(order)}
    for label, row in rows.classes.items():
        if label not in numbers:
            raise InputError(
                f"the label {label!r} is not among those of the training rows",
                "correct it, or add training rows of that class",
                path=part.where,
                row=row,
            )
    by_code = [numbers[label] for label in rows.classes]
    return [by_code[code] for code in rows.codes]
