"""Which character separates the columns of a file."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable
from itertools import islice

from bertaccum.settings import DELIMITERS

_SAMPLE_LINES, _SAMPLE_CHARACTERS = 1000, 1 << 20
_BY_ENDING = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
# Rarer characters in texts first, for files whose ending says nothing.
_CANDIDATES = ("\t", "|", ";", ",")


def find_delimiter(
    lines: Iterable[tuple[int, str]], names: Collection[str], ending: str
) -> str | None:
    """Find the delimiter from the first lines of a file.

    Args:
      lines: the file's lines, of which the first 1,000 are read, or fewer long ones.
      names: of the columns that its first row must name.
      ending: of the file's name. It decides between delimiters that fit equally well.

    Returns:
      The delimiter under which the first row has these names, or else the one under which most
      rows have as many columns as the first; None if neither that nor the ending tells.
    """
    sample = _sample(lines)

    def fit(delimiter: str) -> tuple[bool, float, bool]:
        rows = _rows(sample, delimiter)
        header = {cell.strip() for cell in rows[0]} if rows else set()
        is_named = bool(names) and header.issuperset(names)
        return is_named, _even_share(rows), delimiter == _BY_ENDING.get(ending)

    best = max(_CANDIDATES, key=fit)
    return best if any(fit(best)) else None


def name_of(delimiter: str) -> str:
    """Return what people call a delimiter: semicolon."""
    return next((n for n, character in DELIMITERS.items() if character == delimiter), delimiter)


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
    # Stray quotes swallow rows; then quotes are no help.
    plain = [line.rstrip("\r\n").split(delimiter) for line in sample if line.strip("\r\n")]
    return max(rows, plain, key=_even_share)


def _even_share(rows: list[list[str]]) -> float:
    """The share of rows as wide as the first; 0 if that is one column wide."""
    if not rows or len(rows[0]) == 1:
        return 0.0
    return sum(len(row) == len(rows[0]) for row in rows) / len(rows)
