"""Errors that the library raises and the command line reports.

The message of an error is one line: where the problem is, what is wrong, and what to do about it.
`bertaccum.cli.program` prints that line and exits with the error's exit code: 2 for wrong usage,
configuration or input, 1 for a failed run.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

# TensorFlow adds these parts to the error message of an operation.
_OPERATION = re.compile(r"\{\{\w+ .*?\}\} ?| \[Op:\w+\].*")
# Codes of the operating system's errors when a disk, a quota or a file is full.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BertAccumError(Exception):
    """The base class of errors that bertaccum can explain to the user.

    Args:
      message: What is wrong, without a final period.
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
        line = self.message + (f"; {self.hint}" if self.hint else "")
        # The path stays exact; the command line escapes line breaks in it.
        return where + " ".join(line.split())


class ConfigError(BertAccumError):
    """An invalid option or configuration value, or a contradiction between two of them."""

    exit_code = 2


class InputError(BertAccumError):
    """A file, folder or download that the user asked for and that cannot be used."""

    exit_code = 2


class RunError(BertAccumError):
    """A failure of the run itself, such as too little memory, a full disk or a non-finite loss."""


class DivergedError(RunError):
    """The loss or the gradient of a run is not finite, which would happen again."""


class LostWorkerError(RunError):
    """Workers of a distributed run have lost each other.

    The process must end with `os._exit` while the traceback is alive: TensorFlow may abort when it
    frees what it shares with a lost worker.
    """


def cannot_create(message: str, error: OSError) -> BertAccumError:
    """Return the error to raise if a folder that the user chose cannot be created.

    A full disk is a failure of the run, and any other reason is a wrong option.
    """
    kind = RunError if error.errno in NO_SPACE else ConfigError
    return kind(f"{message} ({reason(error)})", "choose another folder")


def explained(error: Exception) -> BertAccumError:
    """Return the error to report for any error: itself, or one line about it.

    With BERTACCUM_TRACEBACK=1, raise an unexpected one, which shows its traceback.
    """
    if isinstance(error, BertAccumError):
        return error
    if isinstance(error, OSError):
        path = error.filename or None
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return ConfigError(reason(error), "check the path", path=path)
        return RunError(reason(error), "check permissions and free space", path=path)
    if os.environ.get("BERTACCUM_TRACEBACK"):
        raise error
    return RunError(
        f"unexpected {type(error).__name__}: {error}",
        "set BERTACCUM_TRACEBACK=1 to see the traceback, and report this error with the output"
        " of `bertaccum doctor`",
    )


def reason(error: BaseException) -> str:
    """Return the reason for an error in one line.

    This is the operating system's message for an OSError. For any other error it is the first line
    of the error's message, without the names of TensorFlow operations.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = _OPERATION.sub("", str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
