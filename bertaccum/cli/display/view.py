"""How progress is shown: live on a terminal, as lines or records where a log is kept.

A view is a context manager, the `Progress` that the library gets, and told a run's events.
While it is entered, nothing but the view writes to stderr: what TensorFlow and Python's warnings
write there is held back. It is shown as it comes with `--verbose`; otherwise only if the run fails,
before the error.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO

from bertaccum.cli.display import sentences
from bertaccum.cli.display.stderr_capture import Capture
from bertaccum.training.events import Event


class View:
    """What all views do; this one shows nothing but errors, for `--quiet`.

    Args:
      verbose: Show what others write on stderr.
    """

    def __init__(self, verbose: bool = False) -> None:
        self._verbose = verbose
        self._capture: Capture | None = None

    @property
    def stderr(self) -> TextIO:
        """The stream to write to, also while stderr is captured."""
        return self._capture.stderr if self._capture else sys.stderr

    def __enter__(self) -> View:
        with contextlib.suppress(OSError):  # Without a stderr there is nothing to capture.
            self._capture = Capture(self.log if self._verbose else None)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        held = self.stop()
        failed = isinstance(error, Exception) and getattr(error, "exit_code", 1) == 1
        if failed or self._verbose:
            for line in held.splitlines():
                self.log(line)

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Says that `done` of `total` (if that is known) of `what` is through."""

    def note(self, line: str) -> None:
        """A line for a person."""

    def event(self, event: Event) -> None:
        """What a run says."""

    def log(self, line: str) -> None:
        """Show a line that TensorFlow or another library wrote on stderr."""
        sentences.note(line, self.stderr)

    def error(self, message: str, exit_code: int) -> None:
        """Why the program ends."""
        sentences.note(f"error: {message}", self.stderr)

    def stop(self) -> str:
        """Give the terminal back, and return what was held back and not shown yet."""
        capture, self._capture = self._capture, None
        return capture.close() if capture else ""
