"""What several commands do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bertaccum.cli.display import sentences

if TYPE_CHECKING:
    from bertaccum.cli.display.view import View
    from bertaccum.reporting.run_record import Record


def give(as_json: bool, values: Any, show: Callable[[Any], None]) -> None:
    """Print what a command found, on stdout.

    Args:
      as_json: as a record.
      values: that record.
      show: else called with the module `tables`, which needs rich and is imported late.
    """
    if as_json:
        sentences.result_json(values)
    else:
        from bertaccum.cli.display import tables

        show(tables)


def name_run(view: View, named: str) -> Record:
    """Say which run is used, how far it is, and which update its best checkpoint is of.

    `runs/latest` may be another run than the user thinks, and may be under way.

    Raises:
      InputError: there is none.
    """
    from bertaccum.reporting.run_outline import outline
    from bertaccum.reporting.run_record import read_record

    record = read_record(Path(named))
    view.note(sentences.run_named(outline(record)))
    return record


def name_split(view: View, record: Record, split: str | None) -> str:
    """Say on which split the best model of a run is evaluated; return it."""
    from data_prep.tsv import default_split

    split = split or default_split(Path(record.config.data))
    view.note(f"evaluating on {split}.tsv")
    return split


def fail(
    message: str,
    code: int,
    view: View | None = None,
    leave: Callable[[int], NoReturn] = sys.exit,
) -> NoReturn:
    """Print one line to stderr that says why the program ends, and end it with `leave`."""
    line = " ".join(sentences.with_flags(message).split())
    with contextlib.suppress(OSError):  # Nobody may be there to read it.
        sentences.note(f"error: {line}") if view is None else view.error(line, code)
    leave(code)
