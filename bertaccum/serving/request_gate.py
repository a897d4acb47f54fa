"""The outermost layer of the service: it reads requests within limits, and counts all requests."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertaccum.errors import reason
from bertaccum.options.commands import ServeConfig
from bertaccum.options.fields import host_names
from bertaccum.serving.request_body import MALFORMED, TOO_LARGE
from bertaccum.serving.service_metrics import ServiceMetrics
from bertaccum.system.progress import Note

PATHS = frozenset({"/", "/predict", "/healthz", "/metrics", "/docs", "/openapi.json"})
_LOCALHOST = "localhost"
# A name or IPv4 address, or an IPv6 address in brackets; then, optionally, a port.
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@]+))(?::\d*)?")
_OTHER_PATH = "other"
# A client may not read the answer before it has sent its whole request. This many more bytes of a
# request that is too large are read and dropped, so that such a client sees why it was refused.
_DROPPED_BYTES = 2**24
_TIMED_OUT, _UNSUPPORTED, _FAILED = 408, 415, 500
# The message of errors for which the client is not responsible.
FAILED = "the service failed; its log says why"
# As in nginx: the client closed the connection before it had an answer.
GONE = 499


class RequestGate:
    """An ASGI application that passes requests on to another one when they are complete."""

    def __init__(
        self, app: ASGIApp, config: ServeConfig, max_bytes: int, metrics: ServiceMetrics, note: Note
    ) -> None:
        self._app, self._config, self._most = app, config, max_bytes
        self._seconds = config.timeout_seconds
        self._metrics, self._note = metrics, note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status = time.perf_counter(), 0

        async def counted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            body = await self._arrived(Request(scope, receive))
            await self._app(scope, _replayed(body, receive), counted)
        except HTTPException as error:
            await JSONResponse({"detail": error.detail}, error.status_code)(scope, receive, counted)
        except ClientDisconnect:
            pass
        except Exception as error:
            self._note(f"a request failed: {type(error).__name__}: {reason(error)}")
            if not status:
                await JSONResponse({"detail": FAILED}, _FAILED)(scope, receive, counted)
        finally:
            path = scope["path"] if scope["path"] in PATHS else _OTHER_PATH
            self._metrics.request(path, status or GONE, time.perf_counter() - start)

    async def _arrived(self, request: Request) -> bytes:
        """Read the body of a request."""
        host = request.headers.get("host")
        if not is_allowed(host, self._config):
            message = f"the service does not answer to the host {host}; allowed_host can add names"
            raise HTTPException(MALFORMED, message)
        try:
            return await asyncio.wait_for(self._body(request), self._seconds)
        except asyncio.TimeoutError:
            message = f"the request did not arrive within {self._seconds:g} seconds"
            raise HTTPException(_TIMED_OUT, message) from None

    async def _body(self, request: Request) -> bytes:
        declared = request.headers.get("content-length", "")
        size = int(declared) if declared.isdecimal() and len(declared) < 20 else 0
        parts: list[bytes] = []
        if size <= self._most + _DROPPED_BYTES:
            size = 0
            async for part in request.stream():
                size += len(part)
                if size <= self._most:
                    parts.append(part)
                else:
                    parts.clear()
                if size > self._most + _DROPPED_BYTES:
                    break
        if size > self._most:
            raise HTTPException(TOO_LARGE, f"the request is larger than {self._most:,} bytes")
        media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if request.method == "POST" and media_type != "application/json":
            # Browsers send other types without asking, from any page.
            raise HTTPException(_UNSUPPORTED, "the content type must be application/json")
        return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a function that returns the body once, and then what `receive` returns."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


def is_allowed(header: str | None, config: ServeConfig) -> bool:
    """Return whether the service answers a request with this header `Host`, None for old clients.

    An attacker can let the name of a web site point to this machine (DNS rebinding), so that its
    pages may read the service's answers. `Host` then contains that name, and never an IP address.

    It answers requests for loopback names, for `host` itself and for `allowed_host`. If `host` is
    not a loopback address, it also answers requests for any IP address, as those of health checks
    are.
    """
    if header is None:
        return True
    match = _HOST.fullmatch(header.strip().lower())
    if match is None:
        return False
    name, host = (match[1] or match[2]).removesuffix("."), config.host.lower()
    address, own = _address(name), _address(host)
    is_local = host == _LOCALHOST or (own is not None and own.is_loopback)
    is_known = name in (_LOCALHOST, host, *host_names(config.allowed_host))
    return is_known or (address is not None and (address.is_loopback or not is_local))


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
