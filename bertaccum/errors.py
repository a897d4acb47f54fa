"""Errors that the library raises and the command line reports.

Every error is one line for the user: what is wrong, where, and what to do about it.
`bertaccum.cli.program` prints that line and exits with the error's exit code: 2 for usage,
configuration and input, 1 for a failed run.
"""

from __future__ import annotations

import re
from pathlib import Path

# TensorFlow adds these to the message of an operation that failed.
_OPERATION = re.compile(r"\{\{\w+ .*?\}\} ?| \[Op:\w+\].*")


class BertAccumError(Exception):
    """The base class of errors that bertaccum can explain to the user.

    Args:
      message: What is wrong, without a final full stop.
      hint: What the user can do about it.
      path: The file or folder with the problem.
      row: The 1-based line in that file.
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
    """An invalid option or configuration value, or a contradiction between two of them."""

    exit_code = 2


class InputError(BertAccumError):
    """A file, folder or download named by the user that cannot be used."""

    exit_code = 2


class RunError(BertAccumError):
    """A failure of the run itself: out of memory, non-finite loss or full disk."""


class LostWorkerError(RunError):
    """Workers of a distributed run have lost each other.

    The process must end with `os._exit` while the traceback is alive: TensorFlow may abort when it
    frees what it shares with a lost worker.
    """


def reason(error: BaseException) -> str:
    """Return why an operation failed, in one line.

    Args:
      error: An error of the operating system, whose own message is returned, or of a library,
        whose message is cut to its first line, without TensorFlow's operation names.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = _OPERATION.sub("", str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
