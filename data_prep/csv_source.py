"""The user's own CSV or TSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from bertaccum.config import PrepareConfig
from bertaccum.errors import ConfigError, InputError
from data_prep.lines import text_lines
from data_prep.source import Example, Part, Source

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
# The endings of files with columns.
COLUMN_FILES = frozenset(_DELIMITERS)
# Python's own limit is 131,072 characters; a review may be longer.
_FIELD_LIMIT = 2**31 - 1


class _Columns(NamedTuple):
    text: int
    label: int
    width: int


def csv_source(config: PrepareConfig) -> Source:
    """The rows of --train-file and --test-file.

    Args:
      config: names the files and their columns.

    Returns:
      A source without test rows when no test file is named.
    """
    assert config.train_file is not None  # PrepareConfig sees to it
    train, test = Path(config.train_file), config.test_file and Path(config.test_file)
    files = train.name if not test else f"{train.name} and {test.name}"
    return Source(
        description=f"the user's own reviews ({files})",
        train=Part(train, read_examples(train, config.text_column, config.label_column)),
        test=Part(test, read_examples(test, config.text_column, config.label_column))
        if test
        else None,
    )


def read_examples(path: Path, text_column: str, label_column: str) -> Iterator[Example]:
    """Reads a CSV or TSV; quoted fields may hold delimiters, line ends and `""`.

    A column is named by its header, or numbered from 1. Two numbers mean that
    the file has no header; with at least one name its first row is the header.

    Args:
      path: the file. `.csv` means commas, `.tsv` and `.tab` mean tabs; for any
        other ending the first line tells.
      text_column: name or number of the column with the text.
      label_column: name or number of the column with the class.

    Yields:
      The rows in order; blank lines are skipped.

    Raises:
      ConfigError: a column option does not fit the file.
      InputError: the file or a row of it cannot be used.
    """
    if text_column == label_column:
        raise ConfigError(
            f"--text-column and --label-column are both {text_column}", "name two columns"
        )
    records = _records(path)
    first = next(records, None)
    if first is None:
        raise InputError("is empty", "give at least one review of each class", path=path)
    header = first[1]
    columns = _Columns(
        _position("--text-column", text_column, header, path),
        _position("--label-column", label_column, header, path),
        len(header),
    )
    has_header = not (text_column.isdecimal() and label_column.isdecimal())
    for row, fields in records if has_header else chain([first], records):
        yield _example(row, fields, columns, path)


def read_column(path: Path, text_column: str) -> Iterator[str]:
    """The texts of a CSV or TSV with a header, classes or not; otherwise as `read_examples`.

    Args:
      path: the file.
      text_column: name of the column with the text; or its number from 1, and then the first
        row counts.
    """
    records = _records(path)
    first = next(records, None)
    if first is None:
        raise InputError("is empty", "give at least one text", path=path)
    width, position = len(first[1]), _position("--text-column", text_column, first[1], path)
    for row, fields in chain([first], records) if text_column.isdecimal() else records:
        _check_width(row, fields, width, path)
        yield fields[position]


def _position(option: str, column: str, header: list[str], path: Path) -> int:
    names = [name.strip() for name in header]
    if column.isdecimal():
        if not 1 <= int(column) <= len(names):
            raise ConfigError(
                f"{option} {column} is not one of the columns 1 to {len(names)}",
                "count from 1",
                path=path,
            )
        return int(column) - 1
    if names.count(column) != 1:
        times = "more than once" if column in names else "not"
        raise ConfigError(
            f"the column {column!r} of {option} is {times} in the header,"
            f" which reads: {', '.join(names)[:200]}",
            "name another column, or give its number from 1",
            path=path,
        )
    return names.index(column)


def _check_width(row: int, fields: list[str], width: int, path: Path) -> None:
    if len(fields) != width:
        raise InputError(
            f"has {len(fields)} columns where the first row has {width}",
            "put a text that holds the delimiter between double quotes",
            path=path,
            row=row,
        )


def _example(row: int, fields: list[str], columns: _Columns, path: Path) -> Example:
    _check_width(row, fields, columns.width, path)
    label = fields[columns.label].strip()
    if not label:
        raise InputError("has no label", "fill in its class or delete the row", path=path, row=row)
    return Example(row, label, fields[columns.text])


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Every record that is not a blank line, with the row on which it starts."""
    reader = csv.reader(
        (line for _, line in text_lines(path)), delimiter=delimiter(path), strict=True
    )
    while True:
        row = reader.line_num + 1
        try:
            with _long_fields():
                fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(
                f"is not valid CSV ({error})",
                'close every quoted field, and write a double quote inside one as ""',
                path=path,
                row=row,
            ) from error
        if fields:
            yield row, fields


@contextmanager
def _long_fields() -> Iterator[None]:
    """Lifts Python's process-wide limit for as long as one record is read."""
    before = csv.field_size_limit(_FIELD_LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def delimiter(path: Path) -> str:
    """What separates the columns of a file.

    Args:
      path: the file; its ending decides, else its first line.

    Returns:
      A tab or a comma.

    Raises:
      ConfigError: neither its ending nor its first line tells.
      InputError: it cannot be read.
    """
    if path.suffix.lower() in _DELIMITERS:
        return _DELIMITERS[path.suffix.lower()]
    _, line = next(text_lines(path), (1, ""))
    for candidate in ("\t", ","):
        if candidate in line:
            return candidate
    raise ConfigError(
        "its name does not end in .csv or .tsv, and its first line has neither tab nor comma",
        "rename it to what it is",
        path=path,
    )
