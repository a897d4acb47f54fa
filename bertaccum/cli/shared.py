"""Helpers shared by several commands."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from bertaccum.cli.display import sentences
from bertaccum.cli.display.view import View
from bertaccum.runs.record import Record, read_record
from bertaccum.system.stopping import Stopping


def print_result(as_json: bool, values: Any, show: Callable[[Any], None]) -> None:
    """Print the result of a command on stdout, as JSON or with `show`."""
    if as_json:
        sentences.result_json(values)
    else:
        show(values)


def announce_run(view: View, named: str) -> Record:
    """Return the record of a run, and show its progress and the update of its best checkpoint.

    `runs/latest` may not be the run that the user expects, and may still be running.
    """
    from bertaccum.reporting.run_summaries import outline

    record = read_record(Path(named))
    view.note(sentences.run_line(outline(record)))
    return record


def announce_split(view: View, record: Record, split: str | None) -> str | None:
    """Show and return the split on which the best model of a run is evaluated.

    Texts to pretrain on have no splits, so that `split` is returned as it is.
    """
    if record.config.predicts_masked:
        return split
    from data_prep.tables.tsv import default_split

    split = split or default_split(Path(record.config.data))
    view.note(f"evaluating on {split}.tsv")
    return split


def fail(
    message: str, code: int, view: View | None = None, leave: Callable[[int], NoReturn] = sys.exit
) -> NoReturn:
    """Write one line to stderr that says why the program stops, and end it with `leave(code)`."""
    line = sentences.with_flags(message)
    with contextlib.suppress(OSError):  # stderr may be closed.
        sentences.note(f"error: {line}") if view is None else view.error(line, code)
    leave(code)


def stopping_with(view: View) -> Stopping:
    """Return a context that stops runs on a signal, and ends the process on a second one."""

    def leave(number: int) -> NoReturn:
        """End the process immediately: a running TensorFlow call cannot be interrupted."""
        code = 128 + number
        try:
            view.stop()
            view.error("stopped immediately; resume from the last checkpoint with --resume", code)
        finally:
            os._exit(code)

    return Stopping(leave)
