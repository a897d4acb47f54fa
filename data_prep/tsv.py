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
      path: the file.
      reading: how to read it.
      note: is told how it is written, unless `prepare` wrote it.

    Returns:
      Columns `row` (int, 1-based line of the file), `label` (str, stripped;
      absent when the file has no labels) and `text` (str, as it stands).

    Raises:
      ConfigError: an option does not fit the file.
      InputError: the file or a row of it cannot be used, or there are no rows.
    """
    rows = list(read_rows(Path(path), reading, note))
    if not rows:
        raise InputError("has a header but no rows", path=path)
    table = pd.DataFrame(rows, columns=["row", LABEL, TEXT])
    return table.drop(columns=LABEL) if rows[0].label is None else table


def default_split(folder: Path) -> str:
    """Return the split that a model is evaluated on by default: test if it has labels, else dev.

    Raises:
      InputError: test.tsv is unusable.
    """
    test = folder / "test.tsv"
    first = next(read_rows(test), None) if test.is_file() else None
    return "dev" if first is None or first.label is None else "test"


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
        yield "\t".join(COLA_TEST_HEADER).encode() + b"\n"
        yield from (b"%d\t%s\n" % (index, text) for index, (_, text) in enumerate(rows))
    else:
        name = split.encode()
        for index, (label, text) in enumerate(rows):
            yield b"%s-%d\t%d\t\t%s\n" % (name, index, label, text)
