"""Finds the labels in cells of a label column: `joy`, `joy|anger` or `['joy', 'anger']`.

A cell contains a list if it looks like one of JSON, Python, NumPy or PostgreSQL: items in brackets
that are quoted, are numbers, or are words separated by commas. Real lists of JSON Lines and Parquet
reach this module as JSON. If all lists have the same number of items, all 0 or 1, each item says
whether one label applies, and the labels are named by their positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from data_prep.labels.tag_schemes import find_scheme
from data_prep.tables.cell_lists import items_in, switch
from data_prep.tables.spellings import Finder, visible

_DEFAULT = "|"
# Separators that a column may have instead of the default.
_OTHERS = (",", ";", "/", "&", "+", " ")
# Items in place of a missing label, if they are not quoted.
_MISSING = frozenset({"None", "null", "nan", "NaN"})
_EMPTY_SET = "set()"
_FLAGS = frozenset({0, 1})
# Values of the fields of a `LabelFormat` that are not recorded.
_USUAL = (None, False, 0, _DEFAULT)


@dataclass(frozen=True)
class LabelFormat:
    """How the cells of a label column contain labels."""

    # Separates the labels of a cell that is not a list. None if it is one label.
    separator: str | None = None
    # Whether cells contain lists. None if some cells of a column decide this for all.
    lists: bool | None = None
    flags: int = 0  # The number of labels if cells contain 0 or 1 for each of them, else 0.
    scheme: str | None = None  # Scheme of the tags of words, as in `tag_schemes`.

    def record(self) -> dict[str, Any]:
        """Return the fields that differ from the plain format, for files that are read later."""
        return {name: value for name, value in asdict(self).items() if value not in _USUAL}

    def labels_in(self, cells: Iterable[str]) -> dict[str, list[str]]:
        """Return the labels in each of the different cells of a column."""
        cells = list(cells)
        lists = _has_lists(cells) if self.lists is None else self.lists
        return {cell: self._labels(cell, lists) for cell in cells}

    def _labels(self, cell: str, lists: bool) -> list[str]:
        items = list_in(cell) if lists and (cell.startswith(("[", "{")) or is_list(cell)) else None
        plain = [cell] if self.separator is None else split(cell, self.separator)
        if not self.flags or (lists and items is None):
            return plain if items is None else items
        flags = list(map(switch, plain if items is None else items))
        if len(flags) != self.flags or not _FLAGS.issuperset(flags):
            return [cell]
        return [str(position) for position, flag in enumerate(flags) if flag]


_PLAIN = LabelFormat()


def class_format(
    cells: Collection[str], classes: int = 0, known: LabelFormat = _PLAIN
) -> LabelFormat:
    """Return how a column with one label in each row contains it."""
    result = LabelFormat(lists=known.lists or _has_lists(cells) or None)
    return replace(result, flags=known.flags or _flags(result, cells, classes))


def set_format(
    cells: Collection[str],
    separator: str | None = None,
    classes: int | None = 0,
    find: Finder | None = None,
    known: LabelFormat = _PLAIN,
) -> LabelFormat:
    """Return how a column with any number of labels in each row contains them.

    Args:
      separator: Separates labels. If it is None, that of the training rows is used if it occurs,
        else the default. If neither occurs, another one is used if most labels that it separates
        are known or, without `find`, also occur elsewhere.
      classes: The number of known classes; 0 if it is unknown, and None if a list such as [0, 1]
        consists of class numbers.
      find: Returns the known class that a label means, or None.
    """
    lists = known.lists or _has_lists(cells) or None
    result = LabelFormat(separator or _DEFAULT, lists)
    plain = [cell for cell in cells if not result.lists or list_in(cell) is None]
    if separator is None:
        usual = [by for by in (known.separator, _DEFAULT) if by and any(by in c for c in plain)]
        fits = usual or [by for by in _OTHERS if _separates(by, plain, find)]
        result = replace(result, separator=(fits or [_DEFAULT])[0])
    same = result.lists or result.separator == (known.separator or _DEFAULT)
    return replace(result, flags=(same and known.flags) or _flags(result, cells, classes))


def tag_format(cells: Iterable[str]) -> LabelFormat:
    """Return how a column with the tags of words, separated by spaces, contains them."""
    scheme = find_scheme([cell.split() for cell in cells])
    return LabelFormat(" ", lists=False, scheme=scheme)


def has_separated_flags(cells: Collection[str]) -> bool:
    """Return whether cells that are no lists look like 0 or 1 for each label, such as `0|1|1`."""
    return any(_flags(LabelFormat(by, lists=False), cells, 0) for by in (_DEFAULT, *_OTHERS))


def joined_labels(cells: Collection[str]) -> str | None:
    """Return a cell that looks like several labels, because most of its parts also occur alone.

    More precisely, more than half of all parts of such cells do. None if there is no such cell.
    """
    alone = set(map(_folded, cells))
    found = (_joined(by, cells, lambda one: _folded(one) in alone) for by in (_DEFAULT, *_OTHERS))
    return next((cell for joined in found for cell in joined), None)


def split(cell: str, separator: str) -> list[str]:
    """Return the labels that a separator separates in a cell."""
    return [label for part in cell.split(separator) if visible(label := part.strip())]


def list_in(cell: str) -> list[str] | None:
    """Return the items of the list that a cell contains, or None if it is not in brackets."""
    if cell == _EMPTY_SET:
        return []
    if (items := items_in(cell)) is None:
        return None
    kept = (item for item, quoted in items if quoted or item not in _MISSING)
    return [label for item in kept if visible(label := item.strip())]


def is_list(cell: str) -> bool:
    """Return whether a cell is a list beyond doubt, unlike `[other]` or `(sports, news)`."""
    items = list_in(cell)
    if items is None:
        return False
    if cell == _EMPTY_SET:
        return True
    is_quoted = "'" in cell or '"' in cell
    are_numbers = all(map(_is_number, items)) and (cell[0] == "[" or "," in cell)
    return is_quoted or are_numbers or (cell[0] in "[{" and "," in cell)


def _has_lists(cells: Collection[str]) -> bool:
    """Return whether some cells of a column are lists beyond doubt, or all are as in PostgreSQL."""
    in_braces = bool(cells) and all(cell[:1] == "{" and list_in(cell) is not None for cell in cells)
    return in_braces or any(map(is_list, cells))


def _is_number(item: str) -> bool:
    return switch(item) is not None


def _flags(label_format: LabelFormat, cells: Collection[str], classes: int | None) -> int:
    """Return the number of labels if each list contains 0 or 1 for each of them, else 0."""
    # Without lists, this applies to each cell. A list such as [0, 1] may also consist of two class
    # numbers. These are not repeated, and do not occur in two orders, so either settles it, and so
    # does a length that is the number of classes if there are only lists.
    labels = label_format.labels_in(cells)
    own = [tuple(map(switch, labels[c])) for c in cells if not label_format.lists or list_in(c)]
    sizes = Counter(map(len, own))
    if not all(map(_FLAGS.issuperset, own)):
        return 0
    if any(len({*flags}) < len(flags) for flags in own):
        # If lists have several lengths, `check_labels` refuses those that are not the usual one.
        return max(filter(lambda size: size > 1, sizes), key=sizes.__getitem__)
    if len(sizes) != 1 or min(sizes) < 2:
        return 0
    are_flags = len(set(own)) > 1 if len(own) < len(cells) else classes in (0, *sizes)
    return min(sizes) if label_format.lists and classes is not None and are_flags else 0


def _separates(separator: str, cells: Collection[str], find: Finder | None) -> bool:
    """Return whether most parts of the cells that contain a separator are labels."""
    places = Counter(one for cell in cells for one in set(map(_folded, split(cell, separator))))
    joined = _joined(separator, cells, find or (lambda one: places[_folded(one)] > 1))
    if separator == " " and not all(_is_number(one) for cell in joined for one in cell.split()):
        return False
    return bool(joined) and not (find and all(map(find, joined)))


def _joined(separator: str, cells: Collection[str], is_label: Callable[[str], object]) -> list[str]:
    """Return the cells that contain a separator if most of their parts are labels, else none."""
    joined = {cell: own for cell in cells if len(own := split(cell, separator)) > 1}
    parts = {one for own in joined.values() for one in own}
    # Names may contain spaces.
    least = len(parts) if separator == " " else len(parts) // 2 + 1
    return list(joined) if sum(bool(is_label(one)) for one in parts) >= least else []


def _folded(label: str) -> str:
    return visible(label).casefold()
