"""Detects the character that separates the columns of a file, and whether it has a header."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

_SAMPLE_LINES, _SAMPLE_CHARACTERS = 1000, 1 << 20
_DECLARED = re.compile(r'"?sep=([^"\r\n\0]|\\t)"?', re.IGNORECASE)
_BY_ENDING = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
# Ordered from the rarest in ordinary text to the most common. In a tie, the first one wins.
_CANDIDATES = ("\t", "|", ";", ",")


def declared_delimiter(first_line: str) -> str | None:
    """Return the delimiter of a first line such as `sep=;`, which Excel reads but does not show."""
    match = _DECLARED.fullmatch(first_line.rstrip("\r\n"))
    return match and match[1].replace("\\t", "\t")


def find_delimiter(
    lines: Iterable[tuple[int, str]], names: Sequence[str], ending: str
) -> str | None:
    """Return the delimiter that best fits the first lines of a file, or None.

    A delimiter fits best if it splits the first row into columns that include all given names, or
    at least the first name. Otherwise the best delimiter is the one for which the largest share of
    rows has as many columns as the first row. The file's extension breaks ties. At most 1,000 lines
    or about a million characters are read.

    Args:
      lines: The lines of the file with their row numbers.
      names: The names of the columns, that of the texts first; empty if all are numbers.
    """
    sample = _sample(lines)

    def fit(delimiter: str) -> tuple[bool, bool, float, bool]:
        rows = _rows(sample, delimiter)
        header = {cell.strip() for cell in rows[0]} if rows else set()
        all_named, first_named = (bool(n) and header.issuperset(n) for n in (names, names[:1]))
        return all_named, first_named, _even_share(rows), delimiter == _BY_ENDING.get(ending)

    best = max(_CANDIDATES, key=fit)
    return best if any(fit(best)) else None


def _sample(lines: Iterable[tuple[int, str]]) -> list[str]:
    sample, characters = [], 0
    for _, line in islice(lines, _SAMPLE_LINES):
        sample.append(line)
        characters += len(line)
        if characters > _SAMPLE_CHARACTERS:
            break
    return sample


def _rows(sample: list[str], delimiter: str) -> list[list[str]]:
    try:
        rows = [row for row in csv.reader(sample, delimiter=delimiter) if row]
    except csv.Error:
        rows = []
    # A stray quote can join many rows into one field, so also try to split lines without quoting.
    plain = [line.rstrip("\r\n").split(delimiter) for line in sample if line.strip("\r\n")]
    return max(rows, plain, key=_even_share)


def _even_share(rows: list[list[str]]) -> float:
    """Return the share of rows with as many columns as the first row, or 0 for a single column."""
    if not rows or len(rows[0]) == 1:
        return 0.0
    return sum(len(row) == len(rows[0]) for row in rows) / len(rows)


# Usual names of columns with texts and with labels.
USUAL_TEXTS = {
    *("text", "texts", "sentence", "sentences", "review", "reviews", "comment", "comments", "body"),
    *("content", "message", "tweet", "question", "answer", "title", "headline", "subject"),
    *("summary", "document", "description", "utterance"),
}
USUAL_LABELS = {
    *("label", "labels", "class", "classes", "category", "categories", "target", "targets"),
    *("sentiment", "polarity", "rating", "ratings", "star", "stars", "score", "emotion", "intent"),
    *("topic", "gold"),
}
IDENTIFIERS = {"id", "idx", "index", "guid", "uuid"}
_USUAL = USUAL_TEXTS | USUAL_LABELS | IDENTIFIERS | {"y"}
_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?")
# A cell that exceeds these lengths (characters, words) or ends like a sentence is not a name.
_LONGEST_NAME, _MAX_WORDS, _ENDS_OF_TEXTS = 40, 4, tuple(".!?…。！？")  # noqa: RUF001
_MAX_CLASSES, _ENOUGH_ROWS = 1000, 20
FASTTEXT_PREFIX = "__label__"  # It precedes classes, so it is not a column named label.


class _Column:
    """Statistics of one column that tell whether its first cell is a name."""

    def __init__(self, first: str) -> None:
        self.first, self.recurs, self.is_numeric = first, False, True
        self._counts: Counter[str] | None = Counter()

    def add(self, cell: str) -> None:
        self.recurs |= cell == self.first != ""
        self.is_numeric = self.is_numeric and bool(_NUMBER.fullmatch(cell))
        if self._counts is not None:
            self._counts[cell] += 1
            if len(self._counts) > _MAX_CLASSES:
                self._counts = None

    def holds_classes(self) -> bool:
        """Return whether every value below the first cell occurs more than once."""
        return self._counts is not None and min(self._counts.values(), default=0) > 1


def has_only_words(name: str, usual: set[str]) -> bool:
    """Return whether a name such as `Review Text` consists of the given words."""
    words = re.findall(r"[^\W\d_]+", name.casefold())
    return bool(words) and usual.issuperset(words)


def is_header(records: Iterable[list[str]], certain: bool = False) -> bool:
    """Return whether the first record is a header.

    The numbers 0, 1, ... are, perhaps after an empty cell: pandas writes them for columns without
    names. Otherwise, all of its cells must look like names, and none may occur again in its column,
    except in records that repeat the first one as a whole, as in files that were concatenated. In
    addition, one of three conditions must hold:

    - a cell is a common column name, such as label, text or stars;
    - all cells below a cell are numbers;
    - there are at least 20 rows below the record, and in one column each value below the first
      cell occurs more than once.

    Args:
      certain: Whether to ignore the last condition, which also holds if the first row has a class
        that occurs in no other row.
    """
    rest = iter(records)
    first = [cell.strip() for cell in next(rest, [])]
    names = [cell for cell in first if cell]
    numbers = [str(number) for number in range(len(names))]
    if len(names) > 1 and first in (numbers, ["", *numbers]):
        return True
    if not names or not all(map(_is_name, names)):
        return False
    columns, rows = [_Column(cell) for cell in first], 0
    words = (word for cell in first for word in re.split(r"[_\-.\d]+", cell.casefold()))
    # A text may consist of such words, but hardly two cells of a row.
    are_usual = sum(has_only_words(cell, _USUAL) for cell in names) > 1
    is_usual = are_usual or not _USUAL.isdisjoint(words)
    for record in rest:
        if [cell.strip() for cell in record] == first:
            continue
        rows += 1
        for column, cell in zip(columns, record, strict=False):
            column.add(cell.strip())
    if any(column.recurs for column in columns):
        return False
    filled = [column for column in columns if column.first]
    is_numeric = rows > 0 and any(column.is_numeric for column in filled)
    has_classes = rows >= _ENOUGH_ROWS and any(column.holds_classes() for column in filled)
    differ = len(set(names)) == len(names)
    return is_numeric or (differ and (is_usual or (has_classes and not certain)))


def _is_name(cell: str) -> bool:
    short = len(cell) <= _LONGEST_NAME and len(cell.split()) <= _MAX_WORDS
    is_value = cell.endswith(_ENDS_OF_TEXTS) or cell.startswith(FASTTEXT_PREFIX)
    return short and not is_value and not _NUMBER.fullmatch(cell)
