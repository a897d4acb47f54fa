"""What several commands do."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bertaccum.display import text

if TYPE_CHECKING:
    from bertaccum.display.view import View


def tables() -> Any:
    """What needs rich is imported when there is something to show."""
    from bertaccum.display import tables

    return tables


def quiet_tensorflow() -> None:
    """Keeps TensorFlow's chatter off the screen, unless the user asked for it."""
    if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        logging.getLogger("tensorflow").setLevel(logging.ERROR)


def name_run(view: View, named: str) -> None:
    """Says which run is taken: `runs/latest` may be another one than the user thinks.

    Raises:
      InputError: there is none.
    """
    from bertaccum.records.record import read_run_config

    read_run_config(Path(named))
    view.note(f"run: {text.from_here(Path(named).resolve())}")


def fail(message: str, code: int, view: View | None = None) -> NoReturn:
    """Says on stderr, in one line, why the program ends, and ends it."""
    line = " ".join(message.split())
    with contextlib.suppress(OSError):  # Nobody may be there to read it.
        text.note(f"error: {line}") if view is None else view.error(line, code)
    sys.exit(code)
