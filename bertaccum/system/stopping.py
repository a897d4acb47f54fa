"""Signals that stop a run, received even while TensorFlow computes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Time from a signal to the end of the process, excluding the time to save a checkpoint and to wait
# for other workers.
GRACE_SECONDS = 8.0


class Terminated(BaseException):
    """Raised for SIGTERM if nothing must be saved, as KeyboardInterrupt is raised for SIGINT."""


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """Make SIGTERM raise `Terminated`, so that incomplete files are removed."""

    def terminate(*_: Any) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class StoppedEarlyError(Exception):
    """Raised after a request to stop; the unfinished work is discarded."""


class Stopping:
    """A context manager for the main thread that turns SIGINT and SIGTERM into stop requests.

    Before `call_on_signal` is called, a signal raises an exception, as Python's handlers do. After
    the call, the first signal only requests a stop; the second signal, or the end of the grace
    period, ends the process. Python runs signal handlers only between its own instructions, and a
    TensorFlow call can take minutes. Therefore Python's low-level handler wakes a thread through a
    pipe.

    Args:
      leave: Called in that thread with the number of the signal, to end the process immediately.
        It must not return.
      grace_seconds: The time between the request and the end of the process.
    """

    def __init__(
        self, leave: Callable[[int], Any] | None = None, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        self.requested: int | None = None
        self._leave, self._grace = leave, grace_seconds
        self._request: Callable[[], Any] | None = None
        self._saving = False
        self._is_waiting: Callable[[], bool] = lambda: False
        self._handlers: dict[int, Any] = {}

    def call_on_signal(self, request: Callable[[], Any]) -> None:
        """Make later signals set `requested` and call `request`, in another thread."""
        self._request = request

    def reinstall(self) -> None:
        """Reinstall the signal handlers in case other code has replaced them."""
        for number in self._handlers:
            signal.signal(number, self._handle)

    def extend_while(self, is_waiting: Callable[[], bool]) -> None:
        """Extend the grace period while a function returns True; another thread calls it."""
        self._is_waiting = is_waiting

    @contextlib.contextmanager
    def saving(self) -> Any:
        """Extend the grace period while a checkpoint is saved."""
        self._saving = True
        try:
            yield
        finally:
            self._saving = False

    def __enter__(self) -> Stopping:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._handlers = {number: signal.signal(number, self._handle) for number in SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            # After a request, the process is about to end and ignores further signals.
            signal.signal(number, handler if self.requested is None else signal.SIG_IGN)
        os.close(self._writer)  # The thread then reads end-of-file and returns.
        self._thread.join()
        os.close(self._reader)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._request is None:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    def _listen(self) -> None:
        while number := self._next_signal():
            if self._request is None:
                continue
            if self.requested is not None and self._leave is not None:
                self._leave(number)
            self.requested = number
            self._request()

    def _next_signal(self) -> int | None:
        """Return the next signal, or None if the context ends."""
        # When the grace period is over, return the signal that requested the stop.
        wait = self._grace if self.requested is not None else None
        while True:
            ready, _, _ = select.select([self._reader], [], [], wait)
            if not ready and not self._saving and not self._is_waiting():
                return self.requested
            if ready:
                read = os.read(self._reader, 1)
                if not read or read[0] in SIGNALS:
                    return read[0] if read else None
