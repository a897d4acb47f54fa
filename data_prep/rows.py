"""Labeled texts: the rows that a source yields, and the validated rows that are written."""

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
# Characters that some programs treat as the end of a line, a field or a string (for line ends, the
# list is that of `str.splitlines`), and surrogates, which UTF-8 cannot encode.
_BREAKS = re.compile(r"[\x00\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]")


class Row(NamedTuple):
    """One example, before cleaning.

    Args:
      row: The number of the line or record in the source, counted from 1.
      label: The class without surrounding spaces; never empty. None if the source has no classes
        or the caller did not ask for them.
      text: The text, before cleaning.
    """

    row: int
    label: str | None
    text: str


@dataclass(frozen=True)
class Part:
    """The rows of one file or split. They can be read only once.

    Args:
      where: The file or the name of the data set, for error messages.
      examples: The rows in the order of the source.
      total: The number of rows, or None if it is unknown before reading.
    """

    where: str | Path
    examples: Iterable[Row]
    total: int | None = None


@dataclass(frozen=True)
class Source:
    """The input of `prepare`.

    Args:
      description: Description of the texts, for the manifest.
      train: Rows to split into train.tsv and dev.tsv.
      test: Rows of test.tsv, or None.
      names: Class names, keyed by source label, for labels that are not readable names.
    """

    description: str
    train: Part
    test: Part | None
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """The cleaned rows of one `Part`.

    Args:
      texts: Cleaned texts in UTF-8. They are bytes because a single character above U+00FF doubles
        the size of a str, and 560,000 texts must fit in the memory of a small machine.
      codes: Class of each row, as the position of its label in `classes`.
      classes: Source labels, each mapped to the number of the row where it first occurs.
      numbers: Number of each row in its source.
      empty: Numbers of the rows whose text is empty or blank.
    """

    texts: list[bytes] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    classes: dict[str, int] = field(default_factory=dict)
    numbers: array[int] = field(default_factory=lambda: array("q"))
    empty: list[int] = field(default_factory=list)


def clean(text: str) -> str:
    """Replace each tab, line break, NUL character and surrogate in a text with a space.

    The length of the text does not change, and cleaning it again has no effect.
    """
    return _BREAKS.sub(" ", text)


def gather(part: Part, what: str, progress: Progress) -> Rows:
    """Read, clean and encode all rows of a part.

    Args:
      part: The rows.
      what: The name of the rows in progress messages, such as `training`.
      progress: Called after every 500 rows and at the end.

    Returns:
      The rows in the order of the source.

    Raises:
      InputError: There are no rows, they have no labels, or one of them cannot be used.
    """
    rows = Rows()
    codes: dict[str, int] = {}
    for done, (row, label, text) in enumerate(part.examples, 1):
        if label is None:
            remedy = "pass a file with a column of labels"
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
        raise InputError("has no rows", "add at least one text of each class", path=part.where)
    progress(f"reading {what} texts", len(rows.texts), len(rows.texts))
    return rows


def class_order(part: Part, rows: Rows) -> list[str]:
    """Return the source labels in the order of the class numbers.

    Labels are sorted by value if all are integers, otherwise as strings.

    Args:
      part: The source of the training rows, for the error message.
      rows: The training rows.

    Raises:
      InputError: There is only one class.
    """
    if len(rows.classes) == 1:
        raise InputError(
            f"every row has the label {next(iter(rows.classes))!r}",
            "add rows of at least one other class",
            path=part.where,
        )
    try:
        return sorted(rows.classes, key=lambda label: (int(label), label))
    except ValueError:
        return sorted(rows.classes)


def class_numbers(part: Part, rows: Rows, order: list[str]) -> list[int]:
    """Return the class number of each row.

    Args:
      part: The source of the rows, for the error message.
      rows: The rows.
      order: The source labels in the order of the class numbers.

    Raises:
      InputError: A row has a label that is not in `order`.
    """
    numbers = {label: number for number, label in enumerate(order)}
    for label, row in rows.classes.items():
        if label not in numbers:
            raise InputError(
                f"the label {label!r} does not occur in the training rows",
                "correct it, or add training rows of that class",
                path=part.where,
                row=row,
            )
    by_code = [numbers[label] for label in rows.classes]
    return [by_code[code] for code in rows.codes]
