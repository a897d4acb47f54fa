"""Signals that ask a run to stop, heard while TensorFlow computes. Standard library only."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# From the signal to the end, the saving of the state not counted.
GRACE_SECONDS = 8.0


class Terminated(BaseException):
    """SIGTERM, where nothing is to be saved first; what KeyboardInterrupt is to SIGINT."""


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """Inside, SIGTERM is an error like SIGINT's, so that what is half-written is removed."""

    def terminate(*_: Any) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class StoppedEarlyError(Exception):
    """Somebody asked to stop, and nothing of what was under way is kept."""


class Stopping:
    """Hears SIGINT and SIGTERM; a context manager for the main thread.

    At first a signal ends what is being done, as Python's own handler does. After `heed` the
    first signal is a request, and the second, or the end of the grace period, an order.
    Python runs its handlers between its own instructions, and a call of TensorFlow can take
    minutes: so a thread listens, to whom the C handler writes.

    Args:
      leave: called with a signal's number, in that thread, when the process is to end at
        once; it must not return.
      grace_seconds: between the request and the order.
    """

    def __init__(
        self, leave: Callable[[int], Any] | None = None, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        self.requested: int | None = None
        self._leave, self._grace = leave, grace_seconds
        self._request: Callable[[], Any] | None = None
        self._saving = False
        self._handlers: dict[int, Any] = {}

    def heed(self, request: Callable[[], Any]) -> None:
        """From now on a signal calls `request`, in another thread, and changes `requested`."""
        self._request = request

    def hear_again(self) -> None:
        """Takes the signals back, from whoever has taken them since this context began."""
        for number in self._handlers:
            signal.signal(number, self._handle)

    @contextlib.contextmanager
    def saving(self) -> Any:
        """Inside, the grace period does not end."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            # A process that was asked to stop is about to end, and says so itself.
            signal.signal(number, handler if self.requested is None else signal.SIG_IGN)
        os.close(self._writer)  # The thread reads the end.
        self._thread.join()
        os.close(self._reader)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._request is None:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    def _listen(self) -> None:
        while heard := self._next_signal():
            if self._request is None:
                continue
            if self.requested is not None and self._leave is not None:
                self._leave(heard)
            self.requested = heard
            self._request()

    def _next_signal(self) -> int | None:
        """The next one; that which was heard, when its grace period is over; None at the end."""
        wait = self._grace if self.requested is not None else None
        while True:
            ready, _, _ = select.select([self._reader], [], [], wait)
            if not ready and not self._saving:
                return self.requested
            if ready:
                read = os.read(self._reader, 1)
                if not read or read[0] in SIGNALS:
                    return read[0] if read else None
