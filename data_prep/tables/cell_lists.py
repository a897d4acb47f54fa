"""Reads the lists in cells of a table, in the notation of JSON, Python, NumPy or PostgreSQL."""

from __future__ import annotations

import json
import re

from data_prep.tables.spellings import finite_number

_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_ITEM = re.compile(
    r"""\s*(?:[uUbB]?(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote))[^\\])*)(?P=quote)"""
    r"""|(?P<bare>[^\s,"'\[\](){}:][^,"'\[\](){}]*))\s*(?P<comma>,?)""",
    re.DOTALL,
)
_NUMPY_SCALAR = re.compile(r"np\.\w+\(([^()]*)\)")
_SWITCHES = {"true": 1.0, "false": 0.0}


def items_in(cell: str) -> list[tuple[str, bool]] | None:
    """Return the items of a list and whether each is quoted; None if a cell is not in brackets."""
    if len(cell) < 2 or _BRACKETS.get(cell[0]) != cell[-1]:
        return None
    # Quoted items may look like scalars of NumPy, so the cell is first read as it is written.
    for inner in (cell[1:-1].strip(), _NUMPY_SCALAR.sub(r"\1", cell[1:-1]).strip()):
        own = [] if re.search("[,\"'(]", inner) else inner.split()
        if own and None not in map(switch, own):
            return [(item, False) for item in own]  # NumPy separates numbers with spaces.
        if (items := _items(inner)) is not None:
            return items
    return None


def _items(inner: str) -> list[tuple[str, bool]] | None:
    items, at = list[tuple[str, bool]](), 0
    while at < len(inner):
        match = _ITEM.match(inner, at)
        if match is None or (match["bare"] and not match["comma"] and match.end() < len(inner)):
            return None
        bare = (match["bare"] or "").strip()
        items.append((bare or _unescaped(match["text"]), not bare))
        at = match.end()
    return items


def switch(item: str) -> float | None:
    """Return the number that an item is, 1 for true and 0 for false; None for other items."""
    return _SWITCHES.get(item.lower(), finite_number(item))


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
