"""Reads users' tables. Every command uses this reader, and so gets the same rows from a file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from bertaccum.errors import ConfigError, InputError
from bertaccum.options.fields import DELIMITERS
from bertaccum.system.files import refuse_special
from bertaccum.system.phrases import counted, listed
from bertaccum.system.progress import Note, ignore_note
from data_prep.tables import other_formats, quoting, tagged_words
from data_prep.tables.class_folders import class_root, class_texts
from data_prep.tables.columns import (
    LABEL,
    TEXT,
    ColumnIndices,
    ReadOptions,
    example,
    find_columns,
    with_usual_columns,
)
from data_prep.tables.detection import declared_delimiter, find_delimiter, is_header
from data_prep.tables.rows import Records, Row
from data_prep.tables.text_files import HAS_RETURN, ending, is_parquet, marked_encoding, text_lines

# Header of test files in the CoLA layout, which have no labels.
COLA_TEST_HEADER = ["index", "sentence"]
_COLA_WIDTH, _COLA_TEXT, _COLA_MARK, _COLA_LABEL = 4, 3, 2, 1
_MARK = re.compile(r"[\W_]{0,3}")  # Such as `*` or `?*`, of the authors of the sentences in CoLA.
_LONGEST_NAME = 80
_USUAL = {TEXT, LABEL}
_ENCLOSE = (
    "enclose every text that contains the delimiter in double quotes, or remove the delimiter from"
    " it"
)

# Returns the number of each row and its values in some columns, one of which may be the label.
ReadCells = Callable[[list[str], str | None], Records]


def read_rows(
    path: Path, reading: ReadOptions | None = None, note: Note = ignore_note
) -> Iterator[Row]:
    """Read a table, or a folder of texts by class.

    Args:
      path: A delimited file, JSON Lines, Parquet or a file in fastText's format, or a folder as
        described in `class_texts`. Files of text may be compressed with gzip, or be the only file
        in a zip archive; a folder may be a zip archive.
    """
    reading = reading or ReadOptions()
    if reading.words:
        refuse_special(path)
        if not tagged_words.is_table(path, reading):
            return tagged_words.tagged_sentences(path, reading, note)
        table = read_rows(path, dataclasses.replace(reading, words=False), note)
        return tagged_words.of_table(table, path, reading, note)
    if root := class_root(path):
        for option, _ in reading.named:
            is_needed = not (option == "weight_column" and reading.may_lack_weights)
            if option not in ("text_column", "label_column") and is_needed:
                what = "is a folder of texts, which has no columns"
                raise ConfigError(what, f"omit `{option}`", path=path)
        labeled = reading.label_column is not None
        rows = enumerate(class_texts(root, reading.encoding, note, labeled), 1)
        return (Row(n, label if labeled else None, text) for n, (label, text) in rows)
    refuse_special(path)
    tagged_words.refuse_conll(path)
    if is_parquet(path):
        names = other_formats.parquet_names(path)
        return _named_rows(path, names, reading, partial(other_formats.parquet_cells, path), note)
    if other_formats.is_json_lines(path, ending(path), reading.encoding):
        names = other_formats.json_names(path, reading.encoding)
        cells = partial(other_formats.json_cells, path, reading.encoding)
        return _named_rows(path, names, reading, cells, note)
    first = next((line for _, line in _lines(path, reading) if line.strip()), "")
    if other_formats.is_fasttext(first) and reading.has_usual_columns and reading.delimiter is None:
        note(f"{path}: labels and texts in fastText's format")
        return other_formats.fasttext_rows(path, reading)
    return _delimited_rows(path, reading, note)


def _named_rows(
    path: Path, names: list[str], reading: ReadOptions, cells: ReadCells, note: Note
) -> Iterator[Row]:
    """Yield the rows of a format that names its columns."""
    if not names:
        raise InputError("is empty", "add at least one row", path=path)
    indices = find_columns(names, with_usual_columns(names, reading, path, note), path)
    used = indices.used
    label = None if indices.label is None else names[indices.label]
    for row, values in cells([names[position] for position in used], label):
        yield example(row, dict(zip(used, values, strict=True)), indices, path)


def _delimited_rows(path: Path, reading: ReadOptions, note: Note) -> Iterator[Row]:
    records = _open_records(path, reading, note)
    first = next(records(), None)
    if first is None:
        raise InputError("is empty", "add at least one row", path=path)
    indices, skipped = _find_columns(records, reading, path, note)
    header, repeated, named, blank = _folded(first[1]), *(list[int]() for _ in range(3))
    label = indices.label if skipped else None
    # A file with one column may contain its name as a text.
    names = frozenset(header if skipped and len(header) > 1 else ())
    for row, fields in islice(records(), skipped, None):
        start = fields[0][:_LONGEST_NAME].strip().casefold()  # Texts are longer than names.
        if not skipped and start in _USUAL and set(_folded(fields)) >= _USUAL:
            repeated.append(row)
            continue
        if start in names and sorted(_folded(fields)) == sorted(header):
            if _folded(fields) != header:  # Of concatenated files, one has another order.
                what = f"is a header with the columns in another order, {', '.join(fields)[:80]}"
                remedy = "reorder the columns of the rows below it and delete it"
                raise InputError(what, remedy, path=path, row=row)
            repeated.append(row)
            continue
        # Spreadsheets leave such rows behind. A text without a label is kept in its place.
        is_kept = indices.label is None and not quoting.is_blank_line(fields)
        if len(header) > 1 and not is_kept and not "".join(fields).strip():
            blank.append(row)
            continue
        if len(fields) != len(header):
            what = f"has {counted(len(fields), 'column')}, but the first row has {len(header)}"
            raise InputError(what, _ENCLOSE, path=path, row=row)
        if label is not None and fields[label].strip().casefold() == header[label]:
            named.append(row)
        yield example(row, fields, indices, path)
    if repeated:
        note(f"{path}: repeated header rows are not read as data: {_rows(repeated)}")
    if blank:
        note(f"{path}: skipped rows without any content: {_rows(blank)}")
    if named:
        what = "these rows have the name of the label column as their label"
        note(f"{path}: {what}; delete them if they are headers: {_rows(named)}")


def _rows(numbers: list[int]) -> str:
    return listed([f"{number:,}" for number in numbers])


def _folded(fields: list[str]) -> list[str]:
    return [field.strip().casefold() for field in fields]


def _open_records(path: Path, reading: ReadOptions, note: Note) -> Callable[[], Records]:
    """Detect a file's delimiter and quoting; return a function that reads its records."""

    def lines() -> Iterator[tuple[int, str]]:
        # Blank lines are skipped, but counted. Concatenated files repeat the declaration.
        found = _lines(path, reading)
        return ((n, "\n" if declared and is_declared(line) else line) for n, line in found)

    def is_declared(line: str) -> bool:
        return declared_delimiter(line) == declared

    declared = declared_delimiter(next(_lines(path, reading), (1, ""))[1])
    if reading.is_prepared(path):
        return lambda: quoting.plain_records(lines(), quoting.TAB)
    delimiter = reading.delimiter or declared
    delimiter = delimiter or find_delimiter(lines(), reading.with_label.by_name, ending(path))
    if delimiter is None and not any(line.strip() for _, line in lines()):
        return lambda: iter(())
    if delimiter is None:
        what = "no delimiter was found: the first row has no comma, semicolon, tab or |"
        remedy = "pass the delimiter with `delimiter`; for a word and its tag in each line, pass"
        raise ConfigError(what, f"{remedy} `task` token-classification", path=path)
    escaped = quoting.is_escaped(lines, delimiter, path)
    quoted = escaped or quoting.is_quoted(lines, delimiter, path)
    names = {character: name for name, character in DELIMITERS.items()}
    encoding = reading.encoding or marked_encoding(path)
    parts = [f"columns separated by {names.get(delimiter, delimiter)}"]
    parts += ["fields in double quotes"] if quoted and delimiter == quoting.TAB else []
    parts += ["backslashes that escape the next character"] if escaped else []
    parts += [f"encoding {encoding}"] if encoding else []
    note(f"{path}: {', '.join(parts)}")
    if quoted:
        return lambda: quoting.quoted_records(lines(), delimiter, path, escaped)
    return lambda: quoting.plain_records(lines(), delimiter)


def _lines(path: Path, reading: ReadOptions) -> Iterator[tuple[int, str]]:
    return text_lines(path, reading.encoding)


def _find_columns(
    records: Callable[[], Records], reading: ReadOptions, path: Path, note: Note
) -> tuple[ColumnIndices, int]:
    """Return the requested columns of a delimited file, and the number of header rows: 0 or 1."""
    row, first = next(records())
    names, prepared = [name.strip() for name in first], reading.is_prepared(path)
    if reading.has_usual_columns:
        if names == COLA_TEST_HEADER:
            return ColumnIndices(1), 1
        may_be_cola = len(names) == _COLA_WIDTH and not {TEXT, LABEL} & set(names)
        may_be_cola = may_be_cola and _has_marks(records)
        if may_be_cola and not is_header((fields for _, fields in records()), certain=True):
            if not prepared:
                labels = "column 2 has the labels and " if reading.label_column else ""
                note(f"{path}: no header, so {labels}column 4 has the texts, as in CoLA")
            return ColumnIndices(_COLA_TEXT, _COLA_LABEL if reading.label_column else None), 0
    if reading.by_name and any("\r" in name.replace("\r\n", "") for name in names):
        raise InputError(HAS_RETURN, quoting.ONE_LINE_END, path=path, row=row)
    reading = reading if prepared else with_usual_columns(names, reading, path, note)
    # With labels, a column is read by the name `label`, so that the first row is a header.
    by_name = {*reading.by_name} | ({LABEL} & {*names} if reading.label_column is None else set())
    if reading.may_lack_weights and reading.weight_column not in names:
        by_name.discard(reading.weight_column or "")
    if not by_name and not is_header(fields for _, fields in records()):
        note(f"{path}: row {row} is read as data, because it does not look like a header")
        numbers = [str(number) for number in range(1, len(names) + 1)]
        return find_columns(numbers, reading, path, prepared), 0
    if not prepared and all(len(name) > 1 and name[0] == name[-1] == '"' for name in names):
        what = "the column names are in double quotes, but the fields below are not quoted alike"
        remedy = "save the file as CSV, or remove the quotes that are no part of a text"
        raise InputError(what, remedy, path=path, row=row)
    indices = find_columns(names, reading, path, prepared)
    if not reading.by_name:
        said = ", ".join(names)[:80]
        note(f"{path}: row {row} ({said}) is the header and is not read as data")
    return indices, 1


def _has_marks(records: Callable[[], Records]) -> bool:
    """Return whether a column has the marks of CoLA, or one value in their place."""

    def cells() -> Iterator[str]:
        rows = (fields for _, fields in records())
        return (fields[_COLA_MARK].strip() for fields in rows if len(fields) == _COLA_WIDTH)

    first = next(cells())
    return all(map(_MARK.fullmatch, cells())) or all(cell == first for cell in cells())
