"""A connection that slow clients cannot hold, among a bounded number of connections."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def max_connections() -> int:
    """Return 512, or half of the number of files that this process may open if that is less."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if files == resource.RLIM_INFINITY else min(512, files // 2)


# Only requests that have arrived completely can hold all connections.
MAX_CONNECTIONS = max_connections()


class LimitedConnection(H11Protocol):
    """A connection that is closed if it waits for its client too long.

    uvicorn limits only the time between two requests. If there are too many connections, the one
    that has waited longest for a request is closed.

    Args:
      seconds: Maximum time for a request to begin and its headers to arrive. The body, the answer
        and its transfer may take as long again, each.
    """

    def __init__(self, seconds: float, **settings: Any) -> None:
        super().__init__(**settings)
        self._seconds, self._since = seconds, self.loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit(self._seconds)
        if len(self.connections) > MAX_CONNECTIONS:
            self._close_another()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:  # The headers of a request have arrived.
            self._limit(3 * self._seconds)

    def on_response_complete(self) -> None:
        self._limit(self._seconds)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _limit(self, seconds: float) -> None:
        """Close the connection after a time, which replaces an earlier limit."""
        if self._timer is not None:
            self._timer.cancel()
        self._since = self.loop.time()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _close_another(self) -> None:
        others = [c for c in self.connections if isinstance(c, LimitedConnection) and c is not self]
        waiting = [c for c in others if c._waits()]
        if waiting:
            first = min(waiting, key=lambda c: c._since)
            self.connections.discard(first)
            first.transport.abort()

    def _waits(self) -> bool:
        """Return whether no complete request is being answered."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body
