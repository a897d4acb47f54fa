"""How progress is shown: live on a terminal, as lines or records where a log is kept.

A view is a context manager, the `Progress` that the library gets, and told a run's events.
"""

from __future__ import annotations

import sys
from types import TracebackType

from bertaccum.display import text
from bertaccum.training.events import Event

JSON = "json"


class View:
    """What all views do; this one shows nothing but errors, for `--quiet`."""

    def __enter__(self) -> View:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Says that `done` of `total` (if that is known) of `what` is through."""

    def note(self, line: str) -> None:
        """A line for a person."""

    def event(self, event: Event) -> None:
        """What a run says."""

    def error(self, message: str, exit_code: int) -> None:
        """Why the program ends."""
        text.note(f"error: {message}")

    def stop(self) -> None:
        """Gives the terminal back."""


def make_view(quiet: bool, log_format: str, seconds: float) -> View:
    """The view that the options ask for, and stderr is fit for.

    Args:
      quiet: errors only.
      log_format: text or json.
      seconds: between lines of progress, where there is no terminal.
    """
    from bertaccum.display.lines import Lines, Records
    from bertaccum.display.live import Live

    if quiet:
        return View()
    if log_format == JSON:
        return Records(seconds)
    return Live() if sys.stderr.isatty() else Lines(seconds)
