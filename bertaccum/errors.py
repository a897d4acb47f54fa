"""Errors that the library raises and the command line reports.

Every error is one line for a person: what was wrong, where, and what to do
about it. `bertaccum.cli.program` prints that line and leaves with the error's exit
code: 2 for usage, configuration and input, 1 for a run that failed.
"""

from __future__ import annotations

import re
from pathlib import Path

# What TensorFlow puts around the message of an operation that failed.
_OPERATION = re.compile(r"\{\{\w+ .*?\}\} ?| \[Op:\w+\].*")


class BertAccumError(Exception):
    """Something failed in a way that we can explain.

    Args:
      message: what is wrong, without a final full stop.
      hint: what the user can do about it.
      path: the file or folder it is about.
      row: the 1-based line of that file.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        path: str | Path | None = None,
        row: int | None = None,
    ) -> None:
        self.message, self.hint, self.path, self.row = message, hint, path, row
        super().__init__(str(self))

    def __str__(self) -> str:
        where = ""
        if self.path is not None:
            where = f"{self.path}: " if self.row is None else f"{self.path}, row {self.row}: "
        line = f"{where}{self.message}" + (f"; {self.hint}" if self.hint else "")
        return " ".join(line.split())


class ConfigError(BertAccumError):
    """An option or configuration value is wrong, or two contradict each other."""

    exit_code = 2


class InputError(BertAccumError):
    """A file, folder or download that the user named cannot be used."""

    exit_code = 2


class RunError(BertAccumError):
    """The run itself failed (out of memory, non-finite loss, disk full)."""


class LostWorkerError(RunError):
    """Workers of a distributed run have lost each other.

    The process must end with `os._exit` while the traceback is alive: TensorFlow may abort when it
    frees what it shares with a lost worker.
    """


def reason(error: BaseException) -> str:
    """Return why an operation failed, in one line.

    Args:
      error: of the system, whose own words are returned, or of another library, whose message is
        cut to its first line without TensorFlow's operation names.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = _OPERATION.sub("", str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
