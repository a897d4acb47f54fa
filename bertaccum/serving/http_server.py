"""The process of the service: its socket, its model, its queue and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertaccum.errors import ConfigError, reason
from bertaccum.inference.results import TextAndPair
from bertaccum.options.commands import ServeConfig
from bertaccum.serving.request_batching import Batcher, BatchLimits
from bertaccum.serving.service import Classifier, make_service
from bertaccum.serving.service_metrics import ServiceMetrics
from bertaccum.system.progress import Note

# Tokens that the tokenizer adds to a text or pair.
_ADDED_TOKENS = 3


@contextlib.contextmanager
def bound(config: ServeConfig) -> Iterator[socket.socket]:
    """Yield a socket that is bound to the address, but refuses connections until it listens."""
    with contextlib.ExitStack() as stack:
        try:
            addresses = socket.getaddrinfo(
                config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            # With the protocol, asyncio sends the parts of an answer without delay (TCP_NODELAY).
            family, kind, protocol, _, address = addresses[0]
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            # The port of a service that has just ended can be used again.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except (OSError, UnicodeError) as error:
            what = f"`host` {config.host} and `port` {config.port} cannot be used ({reason(error)})"
            remedy = "stop the program that uses the port, or choose another `host` or `port`"
            raise ConfigError(what, remedy) from None
        yield listener


def address_of(listener: socket.socket) -> str:
    """Return the address of a socket, such as http://127.0.0.1:8000."""
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    classifier: Classifier, config: ServeConfig, listener: socket.socket, ready: Note, note: Note
) -> None:
    """Serve a classifier until a signal arrives, and call `ready` with the address before.

    Requests in progress then finish, and the signal takes its usual effect.
    """
    with prepared(classifier, config, note) as settings:
        _Server(settings, address_of(listener), ready, note).run(sockets=[listener])


@contextlib.contextmanager
def prepared(classifier: Classifier, config: ServeConfig, note: Note) -> Iterator[uvicorn.Config]:
    """Yield the settings of a server for a classifier, whose queue works inside the context."""
    # The first prediction traces the model.
    classifier([("", "" if classifier.labels.pairs else None)])
    metrics = ServiceMetrics()

    def tokens(text: TextAndPair) -> int:
        return min(len(text[0]) + len(text[1] or "") + _ADDED_TOKENS, classifier.longest_text)

    limits = BatchLimits(config.batch_tokens, config.batch_delay_ms / 1000, config.max_queue)
    connection: Any = partial(LimitedConnection, config.timeout_seconds)
    with Batcher(classifier, tokens, limits, metrics.batch) as batcher:
        metrics.watch_queue(lambda: batcher.queued)
        yield uvicorn.Config(
            make_service(classifier, batcher, config, metrics, note),
            http=connection,
            # Reached only if all connections have complete requests. The new one gets status 503.
            limit_concurrency=MAX_CONNECTIONS + 1,
            lifespan="off",
            ws="none",
            log_config=None,
            # Otherwise, each request that is not HTTP adds a line to stderr.
            log_level="critical",
            access_log=False,
            server_header=False,
            # A request may take `timeout_seconds` to arrive, and again to be answered.
            timeout_graceful_shutdown=math.ceil(2 * config.timeout_seconds),
        )


class _Server(uvicorn.Server):
    """A server that reports when it is ready and when it stops."""

    def __init__(self, config: uvicorn.Config, address: str, ready: Note, note: Note) -> None:
        super().__init__(config)
        self._address, self._ready, self._note = address, ready, note

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready(self._address)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._note("stopping; requests in progress finish first")
        await super().shutdown(sockets)


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
