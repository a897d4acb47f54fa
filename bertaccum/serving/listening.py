"""The socket on which the service listens."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from bertaccum.config import ServeConfig
from bertaccum.errors import ConfigError, reason


@contextlib.contextmanager
def bound(config: ServeConfig) -> Iterator[socket.socket]:
    """Yield a socket that is bound to the address, but refuses connections until it listens.

    Raises:
      ConfigError: The address is in use, forbidden or unknown.
    """
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
            raise ConfigError(
                f"`host` {config.host} and `port` {config.port} cannot be used ({reason(error)})",
                "stop the program that uses the port, or choose another `host` or `port`",
            ) from None
        yield listener


def address_of(listener: socket.socket) -> str:
    """Return the address of a socket, such as http://127.0.0.1:8000."""
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
