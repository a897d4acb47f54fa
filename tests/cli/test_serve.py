"""`bertaccum serve` as a process: its address, its end, and errors before it starts."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bertaccum import api
from bertaccum.cli.program import main
from bertaccum.errors import RunError
from bertaccum.options.commands import ServeConfig
from bertaccum.serving.http_server import address_of, bound

ROOT = Path(__file__).resolve().parents[2]
# Seconds after which a test fails. No test waits that long if it passes.
LONG = 60.0


@pytest.fixture
def run(trained: Path) -> Path:
    """Return the folder of a run, which no test changes."""
    return trained / "runs/one"


@contextmanager
def served(run: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """Yield the process of a service, and its host and port, when it is ready."""
    command = [sys.executable, "-m", "bertaccum", "serve", "--run", str(run), "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*command, *options], stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.fullmatch(r"serving at http://(.+):(\d+) \(stop with Ctrl-C\)\n", line):
                yield process, found[1], int(found[2])
                break
    finally:
        process.kill()
        process.wait()
    assert found, "the service did not start"


def stop_during_a_request(run: Path, number: signal.Signals) -> tuple[bytes, str, int]:
    """Send a signal while a request arrives; return the answer, stderr and the exit code."""
    body = json.dumps({"texts": ["the food was good"]}).encode()
    head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    with served(run) as (process, host, port):
        with socket.create_connection((host, port), LONG) as connection:
            connection.sendall(head.encode())
            # The service asks for the body when it has started to process the request.
            assert connection.recv(4096).startswith(b"HTTP/1.1 100 ")
            process.send_signal(number)
            assert process.stderr is not None
            assert process.stderr.readline().startswith("stopping; ")
            time.sleep(0.5)  # A server that does not wait for requests cancels them after 0.1 s.
            connection.sendall(body)
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        rest = process.stderr.read()
        return answer, rest.strip(), process.wait(LONG)


def test_sigterm_stops_the_service_after_requests_in_progress(run: Path) -> None:
    answer, rest, code = stop_during_a_request(run, signal.SIGTERM)
    assert answer.startswith(b"HTTP/1.1 200 ")
    (found,) = json.loads(answer.split(b"\r\n\r\n")[1])["predictions"]
    (wanted,) = api.predict(["the food was good"], run=str(run))
    assert found["label"] == wanted.label
    assert found["probabilities"] == pytest.approx(wanted.probabilities, abs=1e-6)
    assert (rest, code) == ("stopped", 143)


@pytest.mark.slow
def test_ctrl_c_stops_the_service_after_requests_in_progress(run: Path) -> None:
    answer, rest, code = stop_during_a_request(run, signal.SIGINT)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert (rest, code) == ("stopped", 130)


@pytest.mark.slow
def test_second_ctrl_c_does_not_wait_for_requests(run: Path) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    with (
        served(run, "--timeout-seconds", "600") as (process, host, port),
        socket.create_connection((host, port), LONG) as connection,
    ):
        connection.sendall(head + b"{")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("stopping; ")
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == 130


def failed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code and the last line of stderr of a command that fails."""
    with pytest.raises(SystemExit) as end:
        main(["serve", *arguments])
    captured = capsys.readouterr()
    assert captured.out == ""
    *_, last = captured.err.splitlines()
    return int(end.value.code or 0), last


def test_port_in_use_is_an_error(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert failed(["--run", str(run), "--port", str(port)], capsys) == (
            2,
            f"error: --host 127.0.0.1 and --port {port} cannot be used (Address already in use);"
            " stop the program that uses the port, or choose another --host or --port",
        )


def test_socket_has_the_protocol_for_which_asyncio_disables_delays() -> None:
    """Without it, each answer takes 40 ms longer, until the client acknowledges its first part."""
    with bound(ServeConfig(port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP
        assert address_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_unknown_host_is_an_error(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for host in ("203.0.113.1", "a" * 300):  # The first belongs to no machine (RFC 5737).
        code, line = failed(["--run", str(run), "--host", host, "--port", "0"], capsys)
        assert code == 2 and "cannot be used (" in line


def test_error_names_the_extra_of_a_missing_package(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "uvicorn" else known(name)
    )
    assert failed(["--run", str(run)], capsys) == (
        2,
        "error: the service needs the package uvicorn; run pip install 'bertaccum[serve]'",
    )


def test_service_in_an_event_loop_is_an_error_before_the_model_is_loaded(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cell_of_a_notebook() -> None:
        api.serve(run=str(run), port=0)

    monkeypatch.setattr("bertaccum.inference.predict.TextClassifier", lambda *_: 1 / 0)
    with pytest.raises(RunError, match="notebook; run `bertaccum serve` in a terminal"):
        asyncio.run(cell_of_a_notebook())


def test_limits_that_contradict_each_other_are_an_error(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failed(["--run", str(run), "--max-texts", "9", "--max-queue", "5"], capsys) == (
        2,
        "error: --max-texts 9 is above --max-queue 5; lower --max-texts or raise --max-queue",
    )
    assert failed(["--run", str(run.parent / "absent")], capsys)[0] == 2
