"""The TSVs that `prepare` writes and training reads.

A line ends at a line feed and a field at a tab, nothing is quoted. Two layouts,
told apart by the first line of each file:

- plain: header `label<TAB>text`, then those two columns;
- cola: four columns (id, label, original mark, text) without a header, as in
  the CoLA corpus; or, for rows without labels, header `index<TAB>sentence`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from bertaccum.errors import InputError
from data_prep.lines import text_lines

# The column of texts, where files have a header.
TEXT = "text"
_PLAIN_HEADER = "label\ttext"
_COLA_TEST_HEADER = "index\tsentence"
_LINES_A_WRITE = 1000


class _Columns(NamedTuple):
    width: int
    label: int | None
    text: int


_HEADERS = {
    _PLAIN_HEADER: _Columns(width=2, label=0, text=1),
    _COLA_TEST_HEADER: _Columns(width=2, label=None, text=1),
}
_COLA = _Columns(width=4, label=1, text=3)


def read_tsv(path: str | Path) -> pd.DataFrame:
    """Reads a TSV in either layout.

    Args:
      path: the file, UTF-8, with or without byte order mark or carriage returns.

    Returns:
      Columns `row` (int, 1-based line of the file), `label` (str, stripped;
      absent when the file has no labels) and `text` (str, as it stands).

    Raises:
      InputError: the file is missing, empty, binary or not UTF-8, or a row has
        another number of columns or no label.
    """
    rows = list(read_rows(Path(path)))
    if not rows:
        raise InputError("has a header but no rows", path=path)
    table = pd.DataFrame(rows, columns=["row", "label", "text"])
    return table.drop(columns="label") if rows[0][1] is None else table


def read_rows(path: Path) -> Iterator[tuple[int, str | None, str]]:
    """What `read_tsv` reads, row by row: line, label (None where there are none) and text."""
    lines = _stripped_lines(path)
    first = next(lines, None)
    if first is None:
        raise InputError("is empty", "bertaccum prepare writes such files", path=path)
    columns, has_header = _layout(first[1], path)
    for row, fields in _fields(lines if has_header else _chain(first, lines), columns, path):
        label = None if columns.label is None else fields[columns.label].strip()
        yield row, label, fields[columns.text]


def has_known_layout(path: Path) -> bool:
    """Whether a file begins as one of the two layouts does."""
    _, line = next(_stripped_lines(path), (1, ""))
    cells = line.split("\t")
    return line in _HEADERS or (len(cells) == _COLA.width and TEXT not in cells)


def _stripped_lines(path: Path) -> Iterator[tuple[int, str]]:
    for row, line in text_lines(path):
        yield row, line.removesuffix("\n").removesuffix("\r")


def _chain(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rest


def _layout(line: str, path: Path) -> tuple[_Columns, bool]:
    if line in _HEADERS:
        return _HEADERS[line], True
    found = line.count("\t") + 1
    if found != _COLA.width:
        raise InputError(
            f"starts with neither the header label, text nor {_COLA.width} columns (found {found})",
            "write columns with tabs: label and text under that header, or CoLA's four without one",
            path=path,
            row=1,
        )
    return _COLA, False


def _fields(
    lines: Iterable[tuple[int, str]], columns: _Columns, path: Path
) -> Iterator[tuple[int, list[str]]]:
    for row, line in lines:
        fields = line.split("\t")
        if len(fields) != columns.width:
            raise InputError(
                f"has {len(fields)} tab-separated columns instead of {columns.width}",
                "put a space for every tab and line end inside a text",
                path=path,
                row=row,
            )
        if columns.label is not None and not fields[columns.label].strip():
            raise InputError("has no label", "fill in its class", path=path, row=row)
        yield row, fields


def default_split(folder: Path) -> str:
    """Return the split that a model is evaluated on by default: test if it has labels, else dev.

    Raises:
      InputError: test.tsv is unusable.
    """
    test = folder / "test.tsv"
    labelled = test.is_file() and next(read_rows(test), (0, None, ""))[1] is not None
    return "test" if labelled else "dev"


def write_tsv(path: Path, split: str, rows: Iterable[tuple[int, bytes]], layout: str) -> str:
    """Writes one split.

    Args:
      path: the file to create.
      split: train, dev or test; in the cola layout a test file has no labels.
      rows: class number and cleaned UTF-8 text of each row, in order.
      layout: plain or cola.

    Returns:
      The file's SHA-256, in hexadecimal.
    """
    digest = hashlib.sha256()
    lines = _lines(split, rows, layout)
    with path.open("wb") as file:
        while block := b"".join(islice(lines, _LINES_A_WRITE)):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _lines(split: str, rows: Iterable[tuple[int, bytes]], layout: str) -> Iterator[bytes]:
    if layout == "plain":
        yield f"{_PLAIN_HEADER}\n".encode()
        yield from (b"%d\t%s\n" % row for row in rows)
    elif split == "test":
        yield f"{_COLA_TEST_HEADER}\n".encode()
        yield from (b"%d\t%s\n" % (index, text) for index, (_, text) in enumerate(rows))
    else:
        name = split.encode()
        for index, (label, text) in enumerate(rows):
            yield b"%s-%d\t%d\t\t%s\n" % (name, index, label, text)
