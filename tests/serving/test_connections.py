"""Hosts that the service answers to, and clients that keep connections without using them."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from contextlib import ExitStack, closing
from unittest import mock

import pytest
from local_service import LONG, Model, Service, running, send

from bertaccum.errors import ConfigError
from bertaccum.options.commands import ServeConfig
from bertaccum.serving import http_server
from bertaccum.serving.request_checks import is_allowed

HALF_HEADERS = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-"
HALF_BODY = HALF_HEADERS + b"Type: application/json\r\nContent-Length: 16\r\n\r\n{"


def connected(service: Service, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", service.port), LONG)
    connection.sendall(sent)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Wait until the service closes a connection, and return whether it does without an answer."""
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def was_closed(connection: socket.socket) -> bool:
    """Return whether the service has closed a connection to which it has sent nothing."""
    try:
        connection.setblocking(False)
        return is_closed(connection)
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(LONG)


LOOPBACK = ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:80", "127.9.9.9", "[::1]:8000"]
ADDRESSES = ["10.0.0.7:8000", "[fd00::7]", "0.0.0.0:8000"]
OTHERS = ["evil.example", "localhost.evil.example:8000", "127.0.0.1.evil.example", "", "a@b"]


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({}, LOOPBACK),
        ({"host": "localhost"}, LOOPBACK),
        ({"host": "::1"}, LOOPBACK),
        ({"host": "0.0.0.0"}, LOOPBACK + ADDRESSES),
        ({"host": "::"}, LOOPBACK + ADDRESSES),
        ({"host": "evil.example"}, [*LOOPBACK, *ADDRESSES, "evil.example"]),
        ({"allowed_host": "a.example, Evil.Example"}, [*LOOPBACK, "evil.example"]),
        ({"allowed_host": "evil.example., a.example."}, [*LOOPBACK, "evil.example"]),
    ],
)
def test_hosts_that_the_service_answers_to(options: dict[str, str], allowed: list[str]) -> None:
    config = ServeConfig(**options)
    found = [host for host in LOOPBACK + ADDRESSES + OTHERS if is_allowed(host, config)]
    assert found == allowed
    assert is_allowed(None, config)  # HTTP/1.0, as in simple health checks.


@pytest.mark.parametrize(
    "value", ["http://a.example", "a.example:8000", "a.example,", "*", "é.example", "."]
)
def test_allowed_host_must_be_a_name(value: str) -> None:
    with pytest.raises(ConfigError, match=r"`allowed_host` '.*' is not a host name; write names"):
        ServeConfig(allowed_host=value)


def test_request_for_another_host_is_refused_on_every_path() -> None:
    model = Model()
    with running(model, allowed_host="reviews.example") as service:

        def status(host: str, method: str, path: str) -> tuple[int, str]:
            with closing(service.connect()) as connection:
                kinds = {"Host": host, "Content-Type": "application/json"}
                connection.request(method, path, b'{"texts": ["a"]}', kinds)
                answer = connection.getresponse()
                assert "Location" not in answer.headers
                return answer.status, answer.read().decode()

        for path in ("/", "/healthz", "/metrics", "/docs", "/openapi.json", "/predict/", "/x"):
            code, text = status("evil.example", "GET", path)
            assert code == 400, path
            assert json.loads(text) == {
                "detail": "the service does not answer to the host evil.example;"
                " allowed_host can add names"
            }
        assert status("evil.example", "POST", "/predict")[0] == 400
        assert model.seen == [""]  # The text with which the service starts.
        assert status("reviews.example:80", "POST", "/predict")[0] == 200
        # There is no redirect, whose address would come from the header Host.
        assert status("localhost", "POST", "/predict/")[0] == 404


@pytest.mark.parametrize(("files", "most"), [(1024, 512), (256, 128), (65_536, 512), (-1, 512)])
def test_connections_leave_half_of_the_files_free(files: int, most: int) -> None:
    with mock.patch("resource.getrlimit", return_value=(files, files)):
        assert http_server.max_connections() == most


def test_half_sent_requests_block_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    with running(model) as service, ExitStack() as stack, closing(service.connect()) as waiting:
        # The service has started, so this does not change the limit for complete requests.
        monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 50)
        model.free.clear()
        model.started.clear()
        send(waiting, {"texts": ["first"]})
        assert model.started.wait(LONG)
        half = [
            stack.enter_context(closing(connected(service, sent)))
            for _ in range(100)
            for sent in (HALF_HEADERS, HALF_BODY)
        ]
        assert service.get("/healthz")[0] == 200
        # One was closed for each of the 202 connections that were too many.
        assert sum(was_closed(connection) for connection in half) == 202 - 50
        model.free.set()
        assert waiting.getresponse().status == 200  # A complete request keeps its connection.
        half[-1].sendall(b'"texts": ["a"]}')
        assert half[-1].recv(12) == b"HTTP/1.1 200"


def test_connections_beyond_those_with_requests_get_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 1)
    model = Model()
    with running(model) as service, closing(service.connect()) as client:
        model.free.clear()
        model.started.clear()
        send(client, {"texts": ["a"]})
        assert model.started.wait(LONG)
        assert service.get("/healthz")[0] == 503
        model.free.set()
        assert client.getresponse().status == 200


@pytest.mark.parametrize("sent", [b"", HALF_HEADERS, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_connection_without_a_request_is_closed(sent: bytes) -> None:
    with running(Model(), timeout_seconds=0.2) as service:
        with closing(connected(service, sent)) as connection:
            if b"healthz" in sent:  # Then it is idle after an answer.
                answer = http.client.HTTPResponse(connection)
                answer.begin()
                assert answer.status == 400 and answer.read()
            assert is_closed(connection)
        assert service.get("/healthz")[0] == 200


def test_client_that_sends_on_after_408_is_disconnected() -> None:
    with running(Model(), timeout_seconds=0.2) as service:
        sent = HALF_BODY.replace(b"16", b"99999")
        with closing(connected(service, sent)) as connection:
            assert connection.recv(12) == b"HTTP/1.1 408"
            with pytest.raises(OSError, match=r"reset|pipe|abort"):
                for _ in range(100):  # uvicorn would wait longer after each byte.
                    connection.sendall(b" ")
                    time.sleep(0.05)
