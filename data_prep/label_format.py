"""Finds the labels in cells of a label column: `joy`, `joy|anger` or `['joy', 'anger']`.

A cell contains a list if it looks like one of JSON, Python or NumPy: items in brackets that are
quoted, are numbers, or are words separated by commas. Real lists of JSON Lines and Parquet reach
this module as JSON. If all cells have the same number of items, all 0 or 1, each item says whether
one label applies, and the labels are named by their positions.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from data_prep.spellings import finite_number, visible

_DEFAULT = "|"
# Separators that a column may have instead of the default.
_OTHERS = (",", ";", "/", " ")
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_ITEM = re.compile(
    r"""\s*(?:[uUbB]?(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote))[^\\])*)(?P=quote)"""
    r"""|(?P<bare>[^\s,"'\[\](){}:][^,"'\[\](){}]*))\s*(?P<comma>,?)""",
    re.DOTALL,
)
_NUMPY_SCALAR = re.compile(r"np\.\w+\(([^()]*)\)")
# Items in place of a missing label, if they are not quoted.
_MISSING = frozenset({"None", "null", "nan", "NaN"})
_EMPTY_SET = "set()"
_SWITCHES = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class LabelFormat:
    """How the cells of a label column contain labels.

    Args:
      separator: Separates the labels of a cell that is not a list. None if it is one label.
      lists: Whether cells contain lists. None if some cells of a column decide this for all.
      flags: The number of labels if cells contain 0 or 1 for each of them, else 0.
    """

    separator: str | None = None
    lists: bool | None = None
    flags: int = 0

    def labels_in(self, cells: Iterable[str]) -> dict[str, list[str]]:
        """Return the labels in each of the different cells of a column."""
        cells = list(cells)
        lists = any(map(is_list, cells)) if self.lists is None else self.lists
        labels = {cell: self._items(cell, lists) for cell in cells}
        return {cell: self._flagged(cell, own) for cell, own in labels.items()}

    def _items(self, cell: str, lists: bool) -> list[str]:
        items = list_in(cell) if lists else None
        if items is not None and (cell[0] == "[" or is_list(cell)):
            return items
        return [cell] if self.separator is None else split(cell, self.separator)

    def _flagged(self, cell: str, items: list[str]) -> list[str]:
        """Return the positions of the items that are 1; the cell if the items are not flags."""
        if not self.flags:
            return items
        if len(items) != self.flags or any(_switch(item) not in (0, 1) for item in items):
            return [cell]
        return [str(position) for position, item in enumerate(items) if _switch(item)]


def class_format(cells: Collection[str], classes: int = 0) -> LabelFormat:
    """Return how a column with one label in each row contains it.

    Args:
      cells: The different cells.
      classes: The number of known classes; 0 if it is unknown.
    """
    found = LabelFormat(lists=any(map(is_list, cells)) or None)
    return replace(found, flags=_flags(found, cells, classes))


def set_format(
    cells: Collection[str],
    separator: str = _DEFAULT,
    classes: int = 0,
    find: Callable[[str], str | None] | None = None,
) -> LabelFormat:
    """Return how a column with any number of labels in each row contains them.

    Args:
      cells: The different cells.
      separator: Separates labels. If it is the default and does not occur, another one is used if
        most labels that it separates are known or, without `find`, also occur elsewhere.
      classes: The number of known classes; 0 if it is unknown.
      find: Returns the known class that a label means, or None.
    """
    found = LabelFormat(separator, lists=any(map(is_list, cells)) or None)
    plain = [cell for cell in cells if not found.lists or list_in(cell) is None]
    if separator == _DEFAULT and not any(separator in cell for cell in plain):
        fits = [by for by in _OTHERS if _separates(by, plain, find)]
        found = replace(found, separator=(fits or [separator])[0])
    return replace(found, flags=_flags(found, cells, classes))


def has_separated_flags(cells: Collection[str]) -> bool:
    """Return whether cells that are no lists look like 0 or 1 for each label, such as `0|1|1`."""
    return any(_flags(LabelFormat(by, lists=False), cells, 0) for by in (_DEFAULT, *_OTHERS))


def joined_labels(cells: Collection[str]) -> str | None:
    """Return a cell that looks like several labels, because most of its parts also occur alone.

    More precisely, more than half of all parts of such cells do. None if there is no such cell.
    """
    alone = {visible(cell).casefold() for cell in cells}
    for separator in (_DEFAULT, *_OTHERS[:-1]):
        joined = [cell for cell in cells if len(split(cell, separator)) > 1]
        parts = {visible(one).casefold() for cell in joined for one in split(cell, separator)}
        if joined and 2 * len(parts & alone) > len(parts):
            return joined[0]
    return None


def split(cell: str, separator: str) -> list[str]:
    """Return the labels that a separator separates in a cell."""
    return [label for part in cell.split(separator) if visible(label := part.strip())]


def list_in(cell: str) -> list[str] | None:
    """Return the items of the list that a cell contains, or None if it is not in brackets."""
    if cell == _EMPTY_SET:
        return []
    if len(cell) < 2 or _BRACKETS.get(cell[0]) != cell[-1]:
        return None
    inner, items, at = _NUMPY_SCALAR.sub(r"\1", cell[1:-1]).strip(), list[str](), 0
    if not re.search("[,\"'(]", inner) and all(map(_is_number, inner.split())):
        return inner.split()  # NumPy separates numbers with spaces.
    while at < len(inner):
        found = _ITEM.match(inner, at)
        if found is None or (found["bare"] and not found["comma"] and found.end() < len(inner)):
            return None
        bare = (found["bare"] or "").strip()
        items += [] if bare in _MISSING else [bare or _unescaped(found["text"])]
        at = found.end()
    return [label for item in items if visible(label := item.strip())]


def is_list(cell: str) -> bool:
    """Return whether a cell is a list beyond doubt, unlike `[other]` or `(sports, news)`."""
    items = list_in(cell)
    if items is None:
        return False
    if cell == _EMPTY_SET:
        return True
    is_quoted = "'" in cell or '"' in cell
    are_numbers = all(map(_is_number, items)) and (cell[0] == "[" or "," in cell)
    return is_quoted or are_numbers or (cell[0] == "[" and "," in cell)


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    try:
        found = str(json.loads(f'"{text}"', strict=False))
    except ValueError:  # Python has other escapes than JSON.
        try:
            found = text.encode("latin-1", "backslashreplace").decode("unicode_escape")
        except UnicodeDecodeError:
            return text
    # A character above U+FFFF may be written as two surrogates.
    return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_number(item: str) -> bool:
    return _switch(item) is not None


def _switch(item: str) -> float | None:
    return _SWITCHES.get(item.lower(), finite_number(item))


def _flags(found: LabelFormat, cells: Collection[str], classes: int) -> int:
    """Return the number of labels if each cell contains 0 or 1 for each of them, else 0.

    A list such as [0, 1] may also consist of two class numbers. Class numbers are not repeated, so
    a repeated one settles it, and so does a list of a length that is the number of classes.
    """
    labels = found.labels_in(cells)
    sizes = {len(items) for items in labels.values()}
    if len(sizes) != 1 or min(sizes) < 2:
        return 0
    if any(_switch(item) not in (0, 1) for items in labels.values() for item in items):
        return 0
    repeated = any(len({*map(_switch, items)}) < len(items) for items in labels.values())
    all_lists = bool(found.lists) and all(list_in(cell) is not None for cell in cells)
    return min(sizes) if repeated or (all_lists and classes in (0, *sizes)) else 0


def _separates(
    separator: str, cells: Sequence[str], find: Callable[[str], str | None] | None
) -> bool:
    """Return whether most parts of the cells that contain a separator are labels."""
    joined = [cell for cell in cells if len(split(cell, separator)) > 1]
    if not joined or (find and all(map(find, joined))):
        return False
    parts = {one for cell in joined for one in split(cell, separator)}
    if separator == " " and not all(map(_is_number, parts)):
        return False
    if find:
        return 2 * sum(find(one) is not None for one in parts) > len(parts)
    folded = ({visible(one).casefold() for one in split(cell, separator)} for cell in cells)
    places = Counter(one for own in folded for one in own)
    return 2 * sum(places[visible(one).casefold()] > 1 for one in parts) > len(parts)
