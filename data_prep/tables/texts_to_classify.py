"""Reads the texts to classify from a table, a folder, or a file with one text per line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from bertaccum.system.progress import Note, ignore_note
from data_prep.tables.class_folders import class_root
from data_prep.tables.columns import LABEL, TEXT, ReadOptions
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
        that is not blank declares a delimiter, has a label of fastText, or names the column text
        and others as a header or an object of JSON Lines, and the next line has this form as well.
        `-` is stdin, with one text per line.
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
    named = reading.text_is_named or reading.text_column != TEXT
    if named or reading.delimiter or reading.text_pair_column is not None:
        return True
    if not path.is_file():  # A pipe can be read only once, so its first line cannot be checked.
        return False
    if ending(path) in TABLE_ENDINGS or is_parquet(path):
        return True
    filled = (line for _, line in text_lines(path, reading.encoding) if line.strip())
    first, second = [*islice(filled, 2), "", ""][:2]
    if declared_delimiter(first) is not None or is_fasttext(first):
        return True
    if first.lstrip().startswith("{"):
        goes_on = not second or second.lstrip().startswith("{")
        return goes_on and is_json_lines(path, ending(path), reading.encoding) and '"text"' in first
    return any(_is_header_of(by, first, second) for by in "\t,;|")


def _is_header_of(delimiter: str, first: str, second: str) -> bool:
    """Return whether a first line is the header of a table, given the second line."""
    names = [cell.strip().strip('"') for cell in first.split(delimiter)]
    goes_on = not second or len(second.split(delimiter)) >= len(names)
    return TEXT in names and len(names) > 1 and (LABEL in names or goes_on)
