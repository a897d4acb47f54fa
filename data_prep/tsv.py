"""Writes and reads the TSVs of `prepare`, which training uses.

Lines end with a line feed, tabs separate fields, and nothing is quoted. There are two layouts,
which differ in their first line:

- plain: the header `label<TAB>text`, then these two columns;
- cola: four columns (id, label, original mark, text) without a header, as in the CoLA corpus. A
  file without labels has the header `index<TAB>sentence` and these two columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pandas as pd

from bertaccum.errors import InputError
from bertaccum.progress import Note, unheard
from data_prep.table import COLA_TEST_HEADER, LABEL, TEXT, Reading, read_rows

_PLAIN_HEADER = f"{LABEL}\t{TEXT}"
_LINES_A_WRITE = 1000


def read_tsv(
    path: str | Path, reading: Reading | None = None, note: Note = unheard
) -> pd.DataFrame:
    """Read a TSV in either layout, or any other table.

    Args:
      path: The file.
      reading: Options for reading; None uses the defaults.
      note: Called with sentences about the file's format, unless `prepare` wrote it.

    Returns:
      A DataFrame with the columns `row` (int, line or record of the file, counted from 1), `label`
      (str without surrounding spaces; absent if the file has no labels) and `text` (str,
      unchanged).

    Raises:
      ConfigError: An option does not fit the file.
      InputError: The file or one of its rows cannot be used, or there are no rows.
    """
    rows = list(read_rows(Path(path), reading, note))
    if not rows:
        raise InputError("has a header but no rows", path=path)
    table = pd.DataFrame(rows, columns=["row", LABEL, TEXT])
    return table.drop(columns=LABEL) if rows[0].label is None else table


def default_split(folder: Path) -> str:
    """Return the split that evaluation uses by default: test if it has labels, else dev.

    Raises:
      InputError: test.tsv cannot be used.
    """
    test = folder / "test.tsv"
    first = next(read_rows(test), None) if test.is_file() else None
    return "dev" if first is None or first.label is None else "test"


def write_tsv(path: Path, split: str, rows: Iterable[tuple[int, bytes]], layout: str) -> str:
    """Write one split to a file.

    Args:
      path: The file to create.
      split: train, dev or test. In the cola layout a test file has no labels.
      rows: Class number and cleaned UTF-8 text of each row, in order.
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
        yield "\t".join(COLA_TEST_HEADER).encode() + b"\n"
        yield from (b"%d\t%s\n" % (index, text) for index, (_, text) in enumerate(rows))
    else:
        name = split.encode()
        for index, (label, text) in enumerate(rows):
            yield b"%s-%d\t%d\t\t%s\n" % (name, index, label, text)
