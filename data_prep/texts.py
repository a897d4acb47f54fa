"""Texts to predict: those of a table or of a folder, or one a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bertaccum.progress import Note, unheard
from data_prep.table import LABEL, TEXT, Reading, read_rows
from data_prep.text_files import PARQUET, ending, first_bytes, text_lines

# The endings of files that are tables for every command; others may hold one text a line.
_TABLES = frozenset({".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".json", ".parquet"})
_STDIN = "-"


def read_texts(path: Path, reading: Reading, note: Note = unheard) -> Iterator[str]:
    """Read the texts of a file, one after the other.

    Args:
      path: a table or a folder, as `read_rows` takes them. A file whose name does not end as a
        table's does has one text a line, unless `reading` names a column or the delimiter, or
        its first line names the columns text and label. `-` is stdin, with one text a line.
      reading: how to read it.
      note: is told how a table is written.

    Raises:
      ConfigError: there is no such column.
      InputError: the file or a row of it cannot be used.
    """
    if str(path) == _STDIN:
        yield from _lines(Path("/dev/stdin"), reading)
    elif path.is_dir() or _is_table(path, reading):
        yield from (row.text for row in read_rows(path, reading, note))
    else:
        yield from _lines(path, reading)


def _lines(path: Path, reading: Reading) -> Iterator[str]:
    return (line.rstrip("\r\n") for _, line in text_lines(path, reading.encoding))


def _is_table(path: Path, reading: Reading) -> bool:
    if reading.text_column != TEXT or reading.delimiter is not None:
        return True
    if not path.is_file():  # A pipe can be read once only.
        return False
    return (
        ending(path) in _TABLES
        or first_bytes(path).startswith(PARQUET)
        or _has_header(next((line for _, line in text_lines(path, reading.encoding)), ""))
    )


def _has_header(line: str) -> bool:
    return any({TEXT, LABEL} <= {c.strip().strip('"') for c in line.split(d)} for d in "\t,;|")
