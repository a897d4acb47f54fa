"""Callbacks for the progress of long operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

# Called with the name of a phase, the amount of finished work, and the total amount of work (None
# if it is unknown).
Progress: TypeAlias = Callable[[str, int, int | None], None]
# Called with a message for the user.
Note: TypeAlias = Callable[[str], None]


def silent(what: str, done: int, total: int | None) -> None:
    """Ignore progress."""


def ignore_note(line: str) -> None:
    """Ignore a note."""


def tell(progress: Progress, line: str) -> None:
    """Show a message to the user.

    Args:
      progress: Shows the message with its method `note`, if it has one, as the views of the command
        line do. Otherwise, the message is reported as a phase.
    """
    note: Note | None = getattr(progress, "note", None)
    if note is None:
        progress(line, 0, None)
    else:
        note(line)
