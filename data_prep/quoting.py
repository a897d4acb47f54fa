"""Whether double quotes enclose the fields of a file, or are characters like any other.

In a tab-separated file quotes are plain characters, unless the whole file is quoted
consistently:

- every record parses strictly as CSV, all have the same number of columns, and every field
  that holds a double quote is enclosed in double quotes;
- and either some line has another number of columns without quoting, or the file is what a
  program writes that quotes: the fields enclosed are those that hold a tab or a double quote;
  those, and the ones with a comma (as Excel does it); or those of whole columns.

If a quoted field runs over several lines that have the right number of columns without quoting,
it is a stray quote. With other delimiters quotes always enclose fields; such a file is refused if
one of these lines looks like a row: it has a value that other rows have in the same column.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bertaccum.errors import InputError
from data_prep.text_files import LONGEST

TAB = "\t"
Lines = Iterable[tuple[int, str]]
_STRAY = "a quoted field runs over several lines and holds the delimiter"
_CLOSE = "close or remove the quote"
# A column of more different values is no column of classes.
_MOST_CLASSES = 1000


def quoted_records(lines: Lines, delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield every record of a quoted file that is not a blank line, and the row it starts on.

    Raises:
      InputError: the file is not valid CSV.
    """
    reader = csv.reader((line for _, line in lines), delimiter=delimiter, strict=True)
    while True:
        row = reader.line_num + 1
        # Python's process-wide limit is 131,072 characters; raised while one record is read.
        limit = csv.field_size_limit(LONGEST)
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(
                f"is not valid CSV ({error})",
                'close every quoted field, and write a double quote inside one as ""',
                path=path,
                row=row,
            ) from error
        finally:
            csv.field_size_limit(limit)
        if fields:
            yield row, fields


def plain_records(lines: Lines, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield every record of a file without quoting, and its row; blank lines are skipped."""
    for row, line in lines:
        if fields := line.removesuffix("\n").removesuffix("\r"):
            yield row, fields.split(delimiter)


def is_quoted(lines: Callable[[], Lines], delimiter: str, path: Path) -> bool:
    """Decide whether double quotes enclose fields, as this module's first lines say.

    Args:
      lines: opens the file's lines; called more than once.
      delimiter: what separates its columns.
      path: the file, for the message.

    Raises:
      InputError: a quoted field holds what may be whole rows.
    """
    if not any('"' in line for _, line in lines()):
        return delimiter != TAB
    even = len({len(fields) for _, fields in plain_records(lines(), delimiter)}) <= 1
    if delimiter != TAB and not even:
        return True
    found = _survey(lines, delimiter, path)
    if delimiter != TAB:
        rows = found.swallowed if found else {}
        _refuse(_first_that_looks_like_a_row(rows, plain_records(lines(), delimiter)), path)
        return True
    if found is None:
        return False
    # Whether a program that quotes could have written all of it.
    is_written_so = found.as_needed or found.with_commas or found.whole_columns
    if even and (found.spans or not is_written_so):
        return False
    _refuse(next(iter(found.swallowed.values()), None), path)
    return True


def _first_that_looks_like_a_row(
    swallowed: dict[int, int], records: Iterable[tuple[int, list[str]]]
) -> int | None:
    """Return where the first field begins that has swallowed what looks like a row."""
    cells: dict[int, set[str]] = {}
    suspects = []
    for row, fields in records:
        if row in swallowed:
            suspects.append((row, fields))
            continue
        for column, cell in enumerate(fields):
            known = cells.setdefault(column, set())
            if len(known) <= _MOST_CLASSES:
                known.add(cell)
    classes = {column: known for column, known in cells.items() if len(known) <= _MOST_CLASSES}
    for row, fields in suspects:
        if any(fields[column] in known for column, known in classes.items()):
            return swallowed[row]
    return None


def _refuse(row: int | None, path: Path) -> None:
    if row is not None:
        remedy = f"{_CLOSE}, or put spaces for the line ends and delimiters in that text"
        raise InputError(_STRAY, remedy, path=path, row=row)


@dataclass
class _Survey:
    """What a quoted file looks like, after all of its records.

    Args:
      spans: a field runs over several lines.
      swallowed: the further rows of such fields that also hold the delimiter, and where each
        field begins.
      as_needed: exactly the fields that hold a tab, a line end or a double quote are enclosed.
      with_commas: those, and the ones with a comma.
      whole_columns: the same columns in every row.
    """

    delimiter: str
    spans: bool = False
    swallowed: dict[int, int] = field(default_factory=dict)
    as_needed: bool = True
    with_commas: bool = True
    whole_columns: bool = True
    _columns: list[bool] | None = None

    def add(self, row: int, fields: list[str], enclosed: list[bool], is_first: bool) -> None:
        for value in fields:
            self.spans |= "\n" in value
            if "\n" in value and self.delimiter in value:
                self.swallowed |= dict.fromkeys(range(row + 1, row + 1 + value.count("\n")), row)
        needed = [any(c in value for c in f'{self.delimiter}\n\r"') for value in fields]
        commas = [need or "," in value for need, value in zip(needed, fields, strict=True)]
        self.as_needed &= enclosed == needed
        self.with_commas &= enclosed == commas
        if not is_first:  # The header may be enclosed where numbers below it are not.
            self._columns = self._columns or enclosed
            self.whole_columns &= enclosed == self._columns


def _survey(lines: Callable[[], Lines], delimiter: str, path: Path) -> _Survey | None:
    """None if the file is not strict CSV throughout."""
    found, kept, width = _Survey(delimiter), list[str](), 0
    try:
        for row, fields in quoted_records(_kept(lines(), kept), delimiter, path):
            enclosed = _enclosed("".join(kept).lstrip("\r\n"), fields)
            kept.clear()
            if enclosed is None or len(fields) != (width or len(fields)):
                return None
            found.add(row, fields, enclosed, is_first=not width)
            width = len(fields)
    except InputError:
        return None
    return found


def _kept(lines: Lines, kept: list[str]) -> Iterator[tuple[int, str]]:
    for row, line in lines:
        kept.append(line)
        yield row, line


def _enclosed(raw: str, fields: list[str]) -> list[bool] | None:
    """Which fields of a record are enclosed; None if one holds a quote and is not."""
    found, at = [], 0
    for value in fields:
        found.append(raw.startswith('"', at))
        written = '"' + value.replace('"', '""') + '"' if found[-1] else value
        if not raw.startswith(written, at) or ('"' in value and not found[-1]):
            return None
        at += len(written) + 1
    return found
