"""Phrases of messages: a number of things, and the first items of a list."""

from __future__ import annotations

from collections.abc import Sequence

# Longest item of a list in a message, in characters.
_LONGEST = 200


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """Return a number and its noun, such as `1 row` or `2,000 rows`.

    Args:
      plural: The noun for other numbers than 1. None adds an s to `singular`.
    """
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def percent(part: float) -> str:
    """Return a fraction in percent, such as `37%`; 0% and 100% mean none and all."""
    if part in (0, 1):
        return f"{part:.0%}"
    return "less than 1%" if part < 0.01 else "more than 99%" if part > 0.99 else f"{part:.0%}"


def listed(items: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """Return the first items of a sequence, and how many more there are, for a message.

    Items that are too long to be read are cut.
    """
    more = len(items) - most
    shown = (item if len(item) <= _LONGEST else f"{item[:_LONGEST]}…" for item in items[:most])
    return separator.join(shown) + (f" and {more:,} more" if more > 0 else "")
