"""Views, which show progress: live on a terminal, as lines or JSON records elsewhere.

A view is a context manager, a `Progress` callback for the library, and a receiver of a run's
events. Inside the context, only the view writes to stderr; the output of TensorFlow and Python's
warnings are captured. With `--verbose` the captured text is shown immediately; otherwise it is
shown only if the run fails, before the error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import sys
import time
from typing import Any, TextIO

from bertaccum.cli.display import sentences
from bertaccum.cli.display.run_progress import RunStatistics, follow, progress_line
from bertaccum.cli.display.stderr_capture import Capture
from bertaccum.system.files import finite
from bertaccum.system.printable import printable_json
from bertaccum.training.events import Event, Started, Updated


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


class _Log(View):
    """A view that shows progress at intervals."""

    def __init__(self, seconds: float, verbose: bool = False) -> None:
        super().__init__(verbose)
        self._seconds, self._last = seconds, -math.inf

    def _is_due(self) -> bool:
        """Return whether to report progress now; if so, the next interval begins."""
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


class Lines(_Log):
    """A view that prints plain lines: progress at intervals, everything else immediately."""

    def __init__(self, seconds: float, verbose: bool = False) -> None:
        super().__init__(seconds, verbose)
        self._statistics: RunStatistics | None = None
        # For each phase: the time and the amount of its first report, and its latest amount.
        self._first: dict[str, tuple[float, int]] = {}
        self._done: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        # When a phase such as evaluation repeats, its amount drops back to the start.
        if done <= self._done.get(what, done):
            self._first[what] = now, done
        self._done[what] = done
        start, before = self._first[what]
        if not self._is_due():
            return
        parts = [f"{what}: {done:,}" + (f" of {total:,}" if total else "")]
        if total is not None and done > before:
            left = (now - start) / (done - before) * (total - done)
            parts.append(f"{sentences.duration(left)} left")
        self.note("  ".join(parts))

    def note(self, line: str) -> None:
        sentences.note(sentences.with_flags(line), self.stderr)

    def event(self, event: Event) -> None:
        self._statistics = follow(self._statistics, event, self.note)
        if isinstance(event, Started) and not event.over:
            self.note(sentences.TRACING)
        elif isinstance(event, Updated) and self._statistics and self._is_due():
            self.note(progress_line(self._statistics))


class Records(_Log):
    """A view that prints JSON lines: progress and updates at intervals, the rest immediately.

    Each record has the keys `time` and `event`. With `--quiet`, only the final error and the
    captured text before it become records.
    """

    def __init__(self, seconds: float, verbose: bool = False, quiet: bool = False) -> None:
        super().__init__(seconds, verbose)
        self._quiet = quiet

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if self._is_due():
            self._write("progress", {"what": what, "done": done, "total": total})

    def note(self, line: str) -> None:
        self._write("note", {"text": sentences.with_flags(line)})

    def event(self, event: Event) -> None:
        if not isinstance(event, Updated) or event.skipped or self._is_due():
            self._write(event.kind, dataclasses.asdict(event))

    def log(self, line: str) -> None:
        self._write("log", {"text": line})

    def error(self, message: str, exit_code: int) -> None:
        self._write("error", {"message": message, "exit_code": exit_code})

    def _write(self, event: str, values: dict[str, Any]) -> None:
        if self._quiet and event not in ("log", "error"):
            return
        now = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
        record = {"time": now, "event": event} | finite(values)
        line = printable_json(json.dumps(record, default=str))  # It must not wrap on a terminal.
        print(f"{line}\n", end="", file=self.stderr, flush=True)
