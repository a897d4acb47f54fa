"""Reads users' tables. Every command uses this reader, and so gets the same rows from a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from bertaccum.errors import ConfigError, InputError
from bertaccum.files import sha256
from bertaccum.progress import Note, unheard
from data_prep.class_folders import class_texts, folder_digest
from data_prep.delimiter import find_delimiter, name_of
from data_prep.header import is_header
from data_prep.named_columns import (
    is_json_lines,
    json_cells,
    json_names,
    parquet_cells,
    parquet_names,
)
from data_prep.prepared_files import is_prepared
from data_prep.quoting import TAB, is_quoted, plain_records, quoted_records
from data_prep.rows import Row
from data_prep.text_files import PARQUET, ending, first_bytes, marked_encoding, text_lines

TEXT, LABEL = "text", "label"
# Header of test files in the CoLA layout, which have no labels.
COLA_TEST_HEADER = ["index", "sentence"]
_COLA_WIDTH, _COLA_TEXT, _COLA_LABEL = 4, 3, 1

Records = Iterator[tuple[int, list[str]]]


@dataclasses.dataclass(frozen=True)
class Reading:
    """Options for reading a table.

    Args:
      text_column: Name of the text column, or its number counted from 1.
      label_column: Name or number of the class column. None reads texts without classes.
      delimiter: Character that separates the columns. None detects it.
      encoding: Python's name for the encoding. None means UTF-8, unless a byte order mark says
        otherwise.
    """

    text_column: str = TEXT
    label_column: str | None = LABEL
    delimiter: str | None = None
    encoding: str | None = None

    @property
    def columns(self) -> list[str]:
        """Return the requested columns."""
        return [c for c in (self.text_column, self.label_column) if c is not None]

    @property
    def has_usual_columns(self) -> bool:
        """Whether the columns have their default names; only then is the CoLA layout accepted."""
        return self.text_column == TEXT and self.label_column in (LABEL, None)


class _Picks(NamedTuple):
    """Positions of the requested columns, counted from 0."""

    text: int
    label: int | None


def read_rows(path: Path, reading: Reading | None = None, note: Note = unheard) -> Iterator[Row]:
    """Read a table, or a folder of texts by class.

    Args:
      path: A delimited file, JSON Lines or Parquet, or a folder as described in `class_texts`.
        Delimited files and JSON Lines may be compressed with gzip, or be the only file in a zip
        archive.
      reading: Options for reading; None uses the defaults.
      note: Called with sentences about the delimiter, quoting, encoding and header that were found.

    Yields:
      The examples in order, without blank lines.

    Raises:
      ConfigError: An option does not fit the file.
      InputError: The file or one of its rows cannot be used.
    """
    reading = reading or Reading()
    if path.is_dir():
        rows = enumerate(class_texts(path, reading.encoding, note), 1)
        return (Row(n, label if reading.label_column else None, text) for n, (label, text) in rows)
    if path.exists() and not path.is_file():
        raise InputError(
            "is a pipe or device, but a table is read more than once",
            "save it to a file first",
            path=path,
        )
    if first_bytes(path).startswith(PARQUET):
        return _named_rows(path, parquet_names(path), reading, partial(parquet_cells, path))
    if is_json_lines(path, ending(path), reading.encoding):
        cells = partial(json_cells, path, reading.encoding)
        return _named_rows(path, json_names(path, reading.encoding), reading, cells)
    return _delimited_rows(path, reading, note)


def digest(path: Path) -> str:
    """Return the SHA-256 of a table or of the texts in a folder, in hexadecimal."""
    return folder_digest(path) if path.is_dir() else sha256(path)


def _named_rows(
    path: Path, names: list[str], reading: Reading, cells: Callable[[list[str]], Records]
) -> Iterator[Row]:
    """Yield the rows of a format that names its columns."""
    if not names:
        raise InputError("is empty", "add at least one row", path=path)
    picks = _named_picks(names, reading, path)
    wanted = [names[position] for position in picks if position is not None]
    for row, values in cells(wanted):
        yield _row(row, values, _Picks(0, None if picks.label is None else 1), path)


def _delimited_rows(path: Path, reading: Reading, note: Note) -> Iterator[Row]:
    records = _open_records(path, reading, note)
    first = next(records(), None)
    if first is None:
        raise InputError("is empty", "add at least one row", path=path)
    picks, skipped = _picks(first[1], records, reading, path, note)
    for row, fields in islice(records(), skipped, None):
        _check_width(row, fields, len(first[1]), path)
        yield _row(row, fields, picks, path)


def _open_records(path: Path, reading: Reading, note: Note) -> Callable[[], Records]:
    """Detect a file's delimiter and quoting; return a function that reads its records."""

    def lines() -> Iterator[tuple[int, str]]:
        return text_lines(path, reading.encoding)

    if is_prepared(path):
        return lambda: plain_records(lines(), TAB)
    names = [column for column in reading.columns if not column.isdecimal()]
    delimiter = reading.delimiter or find_delimiter(lines(), names, ending(path))
    if delimiter is None:
        raise ConfigError(
            "no delimiter was found: the first row has no comma, semicolon, tab or |",
            "pass the delimiter with `delimiter`",
            path=path,
        )
    quoted = is_quoted(lines, delimiter, path)
    _note_writing(path, reading, delimiter, quoted, note)
    if quoted:
        return lambda: quoted_records(lines(), delimiter, path)
    return lambda: plain_records(lines(), delimiter)


def _note_writing(path: Path, reading: Reading, delimiter: str, quoted: bool, note: Note) -> None:
    encoding = reading.encoding or marked_encoding(path)
    parts = [f"columns separated by {name_of(delimiter)}"]
    parts += ["fields in double quotes"] if quoted and delimiter == TAB else []
    parts += [f"encoding {encoding}"] if encoding else []
    note(f"{path}: {', '.join(parts)}")


def _picks(
    first: list[str],
    records: Callable[[], Records],
    reading: Reading,
    path: Path,
    note: Note,
) -> tuple[_Picks, int]:
    """Return the requested columns of a delimited file, and the number of header rows: 0 or 1."""
    names = [name.strip() for name in first]
    if reading.has_usual_columns:
        if names == COLA_TEST_HEADER:
            return _Picks(1, None), 1
        may_be_cola = len(names) == _COLA_WIDTH and not {TEXT, LABEL} & set(names)
        if may_be_cola and not is_header(_fields(records()), certain=True):
            return _Picks(_COLA_TEXT, _COLA_LABEL if reading.label_column else None), 0
    picks = _named_picks(names, reading, path)
    if not all(column.isdecimal() for column in reading.columns):
        return picks, 1
    has_header = is_header(_fields(records()))
    if has_header:
        said = ", ".join(names)[:80]
        note(f"{path}: row 1 ({said}) is the header and is not read as data")
    return picks, int(has_header)


def _fields(records: Records) -> Iterable[list[str]]:
    return (fields for _, fields in records)


def _named_picks(names: list[str], reading: Reading, path: Path) -> _Picks:
    text = _position("text_column", reading.text_column, names, path)
    if reading.label_column is None:
        return _Picks(text, None)
    label = _position("label_column", reading.label_column, names, path)
    if text == label:
        raise ConfigError(
            f"`text_column` {reading.text_column} and `label_column` {reading.label_column} are"
            " the same column",
            "choose two different columns",
            path=path,
        )
    return _Picks(text, label)


def _position(option: str, column: str, names: list[str], path: Path) -> int:
    if column.isdecimal():
        if not 1 <= int(column) <= len(names):
            raise ConfigError(
                f"`{option}` {column} is not one of the columns 1 to {len(names)}",
                "count columns from 1",
                path=path,
            )
        return int(column) - 1
    if names.count(column) != 1:
        times = "occurs more than once" if column in names else "does not occur"
        raise ConfigError(
            f"the column {column!r} of `{option}` {times} in the header,"
            f" which is: {', '.join(names)[:200]}",
            "choose another column, or pass its number, counted from 1",
            path=path,
        )
    return names.index(column)


def _check_width(row: int, fields: list[str], width: int, path: Path) -> None:
    if len(fields) != width:
        raise InputError(
            f"has {len(fields)} columns, but the first row has {width}",
            "enclose every text that contains the delimiter in double quotes,"
            " or remove the delimiter from it",
            path=path,
            row=row,
        )


def _row(row: int, fields: list[str], picks: _Picks, path: Path) -> Row:
    label = None if picks.label is None else fields[picks.label].strip()
    if label == "":
        raise InputError("has no label", "add one or delete the row", path=path, row=row)
    return Row(row, label, fields[picks.text])
