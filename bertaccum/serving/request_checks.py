"""The requests that the service refuses, and why.

`RequestGate` is its outermost layer: it reads requests within limits, and counts all requests.
`texts_of` checks the body of a prediction request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertaccum.errors import reason
from bertaccum.inference.results import TextAndPair
from bertaccum.options.commands import ServeConfig
from bertaccum.options.fields import host_names
from bertaccum.serving.service_metrics import ServiceMetrics
from bertaccum.system.phrases import counted
from bertaccum.system.progress import Note
from data_prep.tables.columns import PAIR, TEXT

TEXTS = "texts"
PATHS = frozenset({"/", "/predict", "/healthz", "/metrics", "/docs", "/openapi.json"})
_LOCALHOST = "localhost"
# A name or IPv4 address, or an IPv6 address in brackets; then, optionally, a port.
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@]+))(?::\d*)?")
_OTHER_PATH = "other"
# A client may not read the answer before it has sent its whole request. This many more bytes of a
# request that is too large are read and dropped, so that such a client sees why it was refused.
_DROPPED_BYTES = 2**24
# HTTP status codes of refused requests.
_MALFORMED, _TIMED_OUT, _TOO_LARGE, _UNSUPPORTED, _UNPROCESSABLE = 400, 408, 413, 415, 422
_FAILED = 500
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
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # The HTTP server omits the body of the answer.
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
            raise HTTPException(_MALFORMED, message)
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
            raise HTTPException(_TOO_LARGE, f"the request is larger than {self._most:,} bytes")
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


def texts_of(body: bytes, pairs: bool, most: int) -> list[TextAndPair]:
    """Return up to `most` texts of a request such as `{"texts": ["a text"]}`, JSON in UTF-8.

    With `pairs`, each is an object with `text` and `text_pair`. Raises HTTPException.
    """
    values = _parsed(body)
    if not isinstance(values, dict) or values.keys() != {TEXTS}:
        raise _wrong(f"the body must be an object with the key {TEXTS} only")
    texts = values[TEXTS]
    if not isinstance(texts, list) or not texts:
        raise _wrong(f"{TEXTS} must be a list with at least one text")
    if len(texts) > most:
        what = f"{TEXTS} has {counted(len(texts), 'text')}; send at most {most:,} in a request"
        raise HTTPException(_TOO_LARGE, what)
    return [_checked(f"{TEXTS}[{number}]", text, pairs) for number, text in enumerate(texts)]


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise HTTPException(_MALFORMED, "the body is not in UTF-8") from None
    except RecursionError:
        raise HTTPException(_MALFORMED, "the body is nested too deeply") from None
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at character {error.pos}"
        raise HTTPException(_MALFORMED, f"the body is not JSON ({problem})") from None
    except ValueError:  # Python refuses to convert numbers with thousands of digits.
        raise HTTPException(_MALFORMED, "the body contains a number with too many digits") from None


def _checked(where: str, text: Any, pairs: bool) -> TextAndPair:
    """Return a text, or raise an HTTPException that names the place of the text."""
    if not pairs and isinstance(text, dict):
        raise _wrong(f"{where} is an object; the model takes single texts, as strings")
    if not pairs:
        return _string(where, text), None
    if isinstance(text, str):
        wanted = f"the model takes pairs, as objects with {TEXT} and {PAIR}"
        raise _wrong(f"{where} is a single text; {wanted}")
    if not isinstance(text, dict) or text.keys() != {TEXT, PAIR}:
        raise _wrong(f"{where} must be an object with the keys {TEXT} and {PAIR} only")
    return _string(f"{where}.{TEXT}", text[TEXT]), _string(f"{where}.{PAIR}", text[PAIR])


def _string(where: str, text: Any) -> str:
    if not isinstance(text, str):
        raise _wrong(f"{where} must be a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = "contains half of a surrogate pair, which is not a character"
        raise _wrong(f"{where} {problem}") from None
    return text


def _wrong(problem: str) -> HTTPException:
    return HTTPException(_UNPROCESSABLE, problem)


def schema(pairs: bool, most: int) -> dict[str, Any]:
    """Return the JSON schema of the bodies that `texts_of` accepts."""
    string = {"type": "string"}
    single = string | {"title": "Text", "examples": ["The food was great."]}
    example = {TEXT: "Is it open?", PAIR: "When does it open?"}
    pair = _object("Pair", {TEXT: string, PAIR: string}) | {"examples": [example]}
    items = pair if pairs else single
    listed = {"type": "array", "minItems": 1, "maxItems": most, "items": items}
    return _object("Texts", {TEXTS: listed}) | {"example": {TEXTS: items["examples"]}}


def _object(title: str, properties: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object with all of these properties and no others."""
    only = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "title": title, **only, "properties": properties}
