"""Detects the character that separates the columns of a file."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable
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
    lines: Iterable[tuple[int, str]], names: Collection[str], ending: str
) -> str | None:
    """Return the delimiter that best fits the first lines of a file, or None.

    A delimiter fits best if it splits the first row into columns that include all given names.
    Otherwise the best delimiter is the one for which the largest share of rows has as many columns
    as the first row. The file's extension breaks ties. At most 1,000 lines or about a million
    characters are read.

    Args:
      lines: The lines of the file with their row numbers.
      names: The names of the requested columns; empty if they were given as numbers.
    """
    sample = _sample(lines)

    def fit(delimiter: str) -> tuple[bool, float, bool]:
        rows = _rows(sample, delimiter)
        header = {cell.strip() for cell in rows[0]} if rows else set()
        is_named = bool(names) and header.issuperset(names)
        return is_named, _even_share(rows), delimiter == _BY_ENDING.get(ending)

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
