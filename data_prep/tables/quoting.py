"""Decides whether double quotes enclose the fields of a file or are ordinary characters.

With a comma, semicolon or other delimiter, quotes enclose fields. In a tab-separated file they are
ordinary characters, unless the whole file is quoted consistently, which means:

- every record is valid CSV, all records have the same number of columns, and every field that
  contains a double quote is enclosed in double quotes; and
- either lines that are split without quoting have different numbers of columns, or the program that
  wrote the file followed one of three conventions: it enclosed the fields that contain a tab, a
  line break or a double quote; these fields and those that contain a comma (as Excel does); or all
  fields of certain columns, perhaps except missing values and numbers. Empty fields may be enclosed
  or not.

A quoted field that spans several lines may be the result of a stray quote:

- If lines of a tab-separated file, split without quoting, all have the same number of columns,
  quotes are ordinary characters. Otherwise the file is refused if such a field contains a tab.
- If lines of a file with another delimiter, split without quoting, all have the same number of
  columns, the file is refused if a line inside such a field looks like a row: the field contains
  the delimiter, and one of the line's values also occurs in the same column of another row. Columns
  with more than 1,000 distinct values do not count.

Some programs, such as MySQL, R and Spark, write a backslash before a double quote, a delimiter or a
line break inside a field. A file is read in this way only if all records then have the same number
of columns, and if it would otherwise be refused. A tab-separated file whose lines, split without
quoting, all have the same number of columns is read in this way only if it is valid CSV with these
escapes but not without them, and follows one of the three conventions.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bertaccum.errors import InputError
from data_prep.tables.rows import Records
from data_prep.tables.spellings import finite_number, is_missing
from data_prep.tables.text_files import HAS_RETURN, LONGEST

TAB = "\t"
Lines = Iterable[tuple[int, str]]
_STRAY = "a quoted field spans several lines and contains the delimiter"
_BACKSLASH = re.compile(r"\\(.)", re.DOTALL)
_CLOSE = "close or remove the quote"
_ESCAPE = 'close every quoted field, and write a double quote inside a field as ""'
ONE_LINE_END = "end every line with a line feed, or enclose the field in double quotes"
# A column with more distinct values than this does not contain classes.
_MAX_CLASSES = 1000


def quoted_records(lines: Lines, delimiter: str, path: Path, escaped: bool = False) -> Records:
    """Yield the number of the first line and the fields of each record of a quoted file.

    Blank lines are skipped. If `escaped`, a backslash escapes a double quote, delimiter, line break
    or backslash.
    """
    texts, escape = (line for _, line in lines), None
    if escaped:
        texts, escape = (_only_escapes(line, delimiter) for line in texts), "\\"
    reader = csv.reader(texts, delimiter=delimiter, escapechar=escape, strict=True)
    while True:
        row = reader.line_num + 1
        # By default, Python limits fields to 131,072 characters. The limit applies to the whole
        # process, so raise it only while one record is read.
        limit = csv.field_size_limit(LONGEST)
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            what, remedy = f"is not valid CSV ({error})", _ESCAPE
            if "new-line" in str(error):  # Python's message is about the arguments of open().
                what, remedy = HAS_RETURN, ONE_LINE_END
            raise InputError(what, remedy, path=path, row=row) from error
        finally:
            csv.field_size_limit(limit)
        if fields:
            yield row, fields


def _only_escapes(line: str, delimiter: str) -> str:
    r"""Double each backslash that escapes nothing, as in `\n`, because the reader would drop it."""
    kept = f'\\"\r\n{delimiter}'
    return _BACKSLASH.sub(lambda pair: pair[0] if pair[1] in kept else f"\\{pair[0]}", line)


def _without_escapes(raw: str, delimiter: str) -> str:
    r"""Replace `\"` by `""`, and each other escape by the character that it escapes."""
    plain = {character: character for character in f"\\\r\n{delimiter}"} | {'"': '""'}
    return _BACKSLASH.sub(lambda pair: plain.get(pair[1], pair[0]), raw)


def is_escaped(lines: Callable[[], Lines], delimiter: str, path: Path) -> bool:
    """Return whether backslashes escape characters, by the rules in the module's docstring."""
    if not any(f"\\{end}" in line for _, line in lines() for end in ('"', delimiter)):
        return False
    if delimiter == TAB and _are_even(plain_records(lines(), delimiter)):
        if _survey(lines, delimiter, path):
            return False
        survey = _survey(lines, delimiter, path, escaped=True)
        return survey is not None and survey.follows_a_convention and not survey.spans
    if delimiter != TAB and _are_even(quoted_records(lines(), delimiter, path)):
        return False
    return _are_even(quoted_records(lines(), delimiter, path, escaped=True))


def is_blank_line(fields: list[str]) -> bool:
    """Return whether a record is a line of spaces, which belongs to no column."""
    return len(fields) == 1 and not fields[0].strip()


def _are_even(records: Records) -> bool:
    try:
        return len({len(fields) for _, fields in records if not is_blank_line(fields)}) <= 1
    except InputError:
        return False


def plain_records(lines: Lines, delimiter: str) -> Records:
    """Yield the number and the fields of each line of a file without quoting; skip blank lines."""
    for row, line in lines:
        if fields := line.removesuffix("\n").removesuffix("\r"):
            yield row, fields.split(delimiter)


def is_quoted(lines: Callable[[], Lines], delimiter: str, path: Path) -> bool:
    """Return whether double quotes enclose fields, by the rules in the module's docstring."""
    if not any('"' in line for _, line in lines()):
        return delimiter != TAB
    even = _are_even(plain_records(lines(), delimiter))
    if delimiter != TAB:
        if even and (survey := _survey(lines, delimiter, path)):
            records = plain_records(lines(), delimiter)
            _refuse(_first_that_looks_like_a_row(survey.swallowed, records), path)
        return True
    if (survey := _survey(lines, delimiter, path)) is None:
        return False
    if even and (survey.spans or not survey.follows_a_convention):
        return False
    _refuse(next(iter(survey.swallowed.values()), None), path)
    return True


def _first_that_looks_like_a_row(swallowed: dict[int, int], records: Records) -> int | None:
    """Find the first quoted field that contains a line that looks like a row."""
    cells: dict[int, set[str]] = {}
    suspects = []
    for row, fields in records:
        if row in swallowed:
            suspects.append((row, fields))
            continue
        for column, cell in enumerate(fields):
            known = cells.setdefault(column, set())
            if len(known) <= _MAX_CLASSES:
                known.add(cell)
    classes = {column: known for column, known in cells.items() if len(known) <= _MAX_CLASSES}
    for row, fields in suspects:
        if any(fields[column] in known for column, known in classes.items()):
            return swallowed[row]
    return None


def _refuse(row: int | None, path: Path) -> None:
    if row is not None:
        remedy = f"{_CLOSE}, or replace the line breaks and delimiters in that text with spaces"
        raise InputError(_STRAY, remedy, path=path, row=row)


@dataclass
class _Survey:
    """Statistics of all records of a quoted file."""

    delimiter: str  # Character that separates the columns.
    spans: bool = False  # Whether a field spans several lines.
    # The numbers of the continuation lines of fields that contain the delimiter, each mapped to the
    # number of the line where its field starts.
    swallowed: dict[int, int] = field(default_factory=dict)
    # Whether the enclosed fields are exactly those that contain the delimiter, a line break or a
    # double quote. Empty fields do not count.
    as_needed: bool = True
    # Whether the enclosed fields are exactly those that contain the delimiter, a line break, a
    # double quote or a comma. Empty fields do not count.
    with_commas: bool = True
    # Whether the same columns are enclosed in every row below the first. Fields that are not
    # enclosed do not count if they are empty, missing values or numbers.
    whole_columns: bool = True
    _columns: list[bool | None] | None = None

    @property
    def follows_a_convention(self) -> bool:
        """Whether the file follows one of the three conventions in the module's docstring."""
        return self.as_needed or self.with_commas or self.whole_columns

    def add(self, row: int, fields: list[str], enclosed: list[bool], is_first: bool) -> None:
        start = row
        for value in fields:
            end = start + value.count("\n")
            self.spans |= end > start
            if self.delimiter in value:
                self.swallowed |= dict.fromkeys(range(start + 1, end + 1), start)
            start = end
        for value, is_enclosed in zip(fields, enclosed, strict=True):
            if value:
                needed = any(c in value for c in f'{self.delimiter}\n\r"')
                self.as_needed &= is_enclosed == needed
                self.with_commas &= is_enclosed == (needed or "," in value)
        if not is_first:  # A column whose values are not enclosed may have an enclosed header.
            own = [
                None if not is_enclosed and _may_be_bare(value) else is_enclosed
                for value, is_enclosed in zip(fields, enclosed, strict=True)
            ]
            known = self._columns or own
            both = list(zip(known, own, strict=True))
            self.whole_columns &= all(None in pair or pair[0] == pair[1] for pair in both)
            self._columns = [new if old is None else old for old, new in both]


def _may_be_bare(value: str) -> bool:
    """Return whether programs that enclose the texts of a column may not enclose a value."""
    return not value or is_missing(value) or finite_number(value) is not None


def _survey(
    lines: Callable[[], Lines], delimiter: str, path: Path, escaped: bool = False
) -> _Survey | None:
    """Return the statistics of a quoted file, or None if it is not consistently quoted.

    With a delimiter other than a tab, a field that is not enclosed may contain a quote.
    """
    survey, kept, width = _Survey(delimiter), list[str](), 0
    try:
        for row, fields in quoted_records(_kept(lines(), kept), delimiter, path, escaped):
            raw = "".join(kept).lstrip("\r\n")
            enclosed = _enclosed(_without_escapes(raw, delimiter) if escaped else raw, fields)
            kept.clear()
            if is_blank_line(fields):
                continue
            if len(fields) != (width or len(fields)) or (enclosed is None and delimiter == TAB):
                return None
            survey.add(row, fields, enclosed or [False] * len(fields), is_first=not width)
            width = len(fields)
    except InputError:
        return None
    return survey


def _kept(lines: Lines, kept: list[str]) -> Iterator[tuple[int, str]]:
    for row, line in lines:
        kept.append(line)
        yield row, line


def _enclosed(raw: str, fields: list[str]) -> list[bool] | None:
    """Return whether each field is enclosed, or None if a field with a quote is not enclosed."""
    enclosed, at = [], 0
    for value in fields:
        enclosed.append(raw.startswith('"', at))
        written = '"' + value.replace('"', '""') + '"' if enclosed[-1] else value
        if not raw.startswith(written, at) or ('"' in value and not enclosed[-1]):
            return None
        at += len(written) + 1
    return enclosed
