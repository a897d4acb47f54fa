"""Writes and reads the TSVs of `prepare`, which training uses.

Lines end with a line feed, tabs separate fields, and nothing is quoted. There are two layouts,
which differ in their first line:

- plain: a header, then the columns `label` and `text`; for pairs of texts also `text_pair`, and for
  weighted rows `weight`. A test file without labels lacks the first column;
- cola: four columns (id, label, original mark, text) without a header, as in the CoLA corpus. A
  file without labels has the header `index<TAB>sentence` and these two columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd

from bertaccum.errors import ConfigError, InputError
from bertaccum.system.files import sha256
from bertaccum.system.progress import Note, ignore_note
from data_prep.tables.columns import LABEL, PAIR, TEXT, WEIGHT, ReadOptions
from data_prep.tables.table import COLA_TEST_HEADER, read_rows

# The cell of the label of each row, None if no row has one, and its other cells in UTF-8, separated
# by tabs.
Lines = Iterable[tuple[bytes | None, bytes]]


def read_tsv(
    path: str | Path, reading: ReadOptions | None = None, note: Note = ignore_note
) -> pd.DataFrame:
    """Read a TSV in either layout, or any other table.

    Returns:
      A DataFrame with the columns `row` (int, line or record of the file, counted from 1), `label`
      (str without surrounding spaces), `text` (str, unchanged), `text_pair` (str) and `weight`
      (float64). A column that the file does not have is absent.
    """
    rows = list(read_rows(Path(path), reading, note))
    if not rows:
        raise InputError("has a header but no rows", path=path)
    table = pd.DataFrame(rows, columns=["row", LABEL, TEXT, PAIR, WEIGHT])
    absent = [name for name, value in zip(table.columns, rows[0], strict=True) if value is None]
    return table.drop(columns=absent)


def default_split(folder: Path) -> str:
    """Return the split that evaluation uses by default: test if it has labels, else dev."""
    test = folder / "test.tsv"
    try:
        first = next(read_rows(test), None) if test.is_file() else None
    except ConfigError:  # It has no column of labels.
        return "dev"
    return "dev" if first is None or first.label is None else "test"


def write_tsv(
    path: Path, split: str, rows: Lines, layout: str, columns: Sequence[str] = (LABEL, TEXT)
) -> str:
    """Write one split to a file, and return the file's SHA-256.

    Args:
      rows: The rows in order.
    """
    with path.open("wb") as file:
        file.writelines(_lines(split, rows, layout, columns))
    return sha256(path)


def _lines(split: str, rows: Lines, layout: str, columns: Sequence[str]) -> Iterator[bytes]:
    if layout == "plain":
        yield "\t".join(columns).encode() + b"\n"
        yield from (
            # An empty line would be skipped when it is read.
            b"%s\n" % (text or b" ") if label is None else b"%s\t%s\n" % (label, text)
            for label, text in rows
        )
    elif split.startswith("test"):
        yield "\t".join(COLA_TEST_HEADER).encode() + b"\n"
        yield from (b"%d\t%s\n" % (index, text) for index, (_, text) in enumerate(rows))
    else:
        name = split.encode()
        for index, (label, text) in enumerate(rows):
            yield b"%s-%d\t%s\t\t%s\n" % (name, index, label, text)
