"""Views, which show progress: live on a terminal, as lines or JSON records elsewhere.

A view is a context manager, a `Progress` callback for the library, and a receiver of a run's
events. Inside the context, only the view writes to stderr; the output of TensorFlow and Python's
warnings are captured. With `--verbose` the captured text is shown immediately; otherwise it is
shown only if the run fails, before the error.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO

from bertaccum.cli.display import sentences
from bertaccum.cli.display.stderr_capture import Capture
from bertaccum.training.events import Event


class View:
    """The base class of all views. It shows only errors, and is the view for `--quiet`."""

    def __init__(self, verbose: bool = False) -> None:
        self._verbose = verbose
        self._capture: Capture | None = None

    @property
    def stderr(self) -> TextIO:
        """The stream that reaches the user, even while stderr is captured."""
        return self._capture.stderr if self._capture else sys.stderr

    def __enter__(self) -> View:
        with contextlib.suppress(OSError):  # The process may have no stderr.
            self._capture = Capture(self.log if self._verbose else None)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        held = self.stop()
        failed = isinstance(error, Exception) and getattr(error, "exit_code", 1) == 1
        if failed or self._verbose:
            for line in held.splitlines():
                self.log(line)

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show the progress of a phase."""

    def note(self, line: str) -> None:
        """Show a message in one line, with options in backticks spelled as flags."""

    def event(self, event: Event) -> None:
        """Show an event of a run."""

    def log(self, line: str) -> None:
        """Show a line that TensorFlow or another library wrote to stderr."""
        sentences.note(line, self.stderr)

    def error(self, message: str, exit_code: int) -> None:
        """Show the error that ends the program."""
        sentences.note(f"error: {message}", self.stderr)

    def stop(self) -> str:
        """Release the terminal and stderr, and return captured text that has not been shown yet."""
        capture, self._capture = self._capture, None
        return capture.close() if capture else ""
