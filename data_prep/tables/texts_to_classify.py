"""Reads the texts to classify from a table, a folder, or a file with one text per line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bertaccum.system.progress import Note, ignore_note
from data_prep.tables.class_folders import class_root
from data_prep.tables.columns import TEXT, ReadOptions
from data_prep.tables.detection import declared_delimiter
from data_prep.tables.other_formats import is_fasttext, is_json_lines
from data_prep.tables.table import read_rows
from data_prep.tables.tagged_words import has_sentences, refuse_conll
from data_prep.tables.text_files import TABLE_ENDINGS, ending, is_parquet, text_lines
from data_prep.tables.words import SplitText

_STDIN = "-"


def read_texts(
    path: Path, reading: ReadOptions, note: Note = ignore_note
) -> Iterator[str | tuple[str, str]]:
    """Yield the texts of a file in order; a table with second texts yields pairs.

    Args:
      path: A table or a folder, as for `read_rows`. A file without the ending of a table is read
        as one text per line, unless `reading` chooses a column or a delimiter, or the first line
        that is not blank names the column text and others, declares a delimiter, has a label of
        fastText or is an object of JSON Lines. `-` is stdin, with one text per line.
    """
    if reading.words and str(path) != _STDIN and has_sentences(path, reading):
        yield from (SplitText(row.text) for row in read_rows(path, reading, note))
    elif str(path) == _STDIN:
        yield from _lines(Path("/dev/stdin"), reading)
    elif class_root(path) is not None or is_table(path, reading):
        for row in read_rows(path, reading, note):
            text = SplitText(row.text) if reading.words else row.text
            yield text if row.pair is None else (text, row.pair)
    else:
        if not reading.words:
            refuse_conll(path)
        yield from _lines(path, reading)


def _lines(path: Path, reading: ReadOptions) -> Iterator[str]:
    return (line.rstrip("\r\n") for _, line in text_lines(path, reading.encoding))


def is_table(path: Path, reading: ReadOptions) -> bool:
    """Return whether a file is a table, and not one text per line."""
    if reading.text_column != TEXT or reading.delimiter or reading.text_pair_column is not None:
        return True
    if not path.is_file():  # A pipe can be read only once, so its first line cannot be checked.
        return False
    if ending(path) in TABLE_ENDINGS or is_parquet(path):
        return True
    first = next((line for _, line in text_lines(path, reading.encoding) if line.strip()), "")
    rows = ({cell.strip().strip('"') for cell in first.split(by)} for by in "\t,;|")
    is_header = any(TEXT in cells and len(cells) > 1 for cells in rows)
    is_declared = declared_delimiter(first) is not None or is_fasttext(first)
    return is_header or is_declared or is_json_lines(path, ending(path), reading.encoding)
