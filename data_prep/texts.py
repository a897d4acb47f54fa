"""Texts without classes, to predict: from TSVs in our layouts, CSVs, or one a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from data_prep.csv_source import COLUMN_FILES, read_column
from data_prep.lines import text_lines
from data_prep.tsv import TEXT, has_known_layout, read_rows


def read_texts(path: Path, column: str) -> Iterator[str]:
    """The texts of a file, one after the other, as they are read.

    Args:
      path: `.tsv` and `.tab` as `prepare` writes them, or with a header; `.csv` with a header;
        whatever ends otherwise, and `-`, which is stdin, has one text a line.
      column: name, or number from 1, of the text in files with a header.

    Raises:
      ConfigError: there is no such column.
      InputError: the file or a row of it cannot be used.
    """
    if str(path) == "-":
        path = Path("/dev/stdin")
    if path.suffix.lower() not in COLUMN_FILES:
        yield from (line.rstrip("\r\n") for _, line in text_lines(path))
    elif path.suffix.lower() != ".csv" and column == TEXT and has_known_layout(path):
        yield from (text for _, _, text in read_rows(path))
    else:
        yield from read_column(path, column)
