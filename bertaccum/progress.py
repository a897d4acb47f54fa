"""How long work says how far it is. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

# Called with what is being done, how much of it is done, and the total if that is known.
Progress: TypeAlias = Callable[[str, int, int | None], None]
# Called with a sentence for a person.
Note: TypeAlias = Callable[[str], None]


def silent(what: str, done: int, total: int | None) -> None:
    """A `Progress` that says nothing."""


def unheard(line: str) -> None:
    """A `Note` that nobody reads."""
