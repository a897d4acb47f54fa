"""A limit on the time that a test waits for what could block for ever, such as a named pipe."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SECONDS = 60


@contextmanager
def in_a_minute() -> Iterator[None]:
    """Fail if the context takes more than a minute, as only waiting for ever does."""

    def late(*_: object) -> None:
        raise AssertionError("it waits for something that never comes")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
