"""The watchdog names the worker that the others wait for."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest
import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.distribution import watchdog
from bertaccum.distribution.topology import Topology
from bertaccum.distribution.watchdog import WAITING, Watch
from bertaccum.errors import LostWorkerError

ADDRESSES = ("127.0.0.1:1", "127.0.0.1:2")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_worker_that_keeps_others_waiting_is_named(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6")
    addresses = tuple(address.replace("127.0.0.1", host) for address in ADDRESSES)
    ports: list[int] = []

    def all_gather(_: Topology, port: int) -> list[int]:
        ports.append(port)
        return ports + [0] * (2 - len(ports))

    monkeypatch.setattr(watchdog, "all_gather", all_gather)
    # The second worker knows both ports and asks the first.
    slow, other = (Watch(Topology(worker=n, addresses=addresses)) for n in (0, 1))
    slow.doing("planning")
    assert other.faulty_workers() == [f"worker 0 ({host}:1) has been planning for 0 s"]
    assert not slow.is_waiting()
    slow.doing(WAITING)
    assert other.faulty_workers() == [] and slow.is_waiting()
    slow._topology = Topology(worker=0, addresses=addresses, timeout_seconds=-31)
    assert not slow.is_waiting()  # It has waited longer than it may.
    alone = Watch(Topology())
    alone.doing(WAITING)
    assert not alone.is_waiting()
    slow._server.shutdown()
    slow._server.server_close()
    assert other.faulty_workers() == [f"worker 0 ({host}:1) has exited"]


def test_lost_workers_end_the_program_without_teardown() -> None:
    """TensorFlow may abort when it frees objects that it shares with a lost worker."""
    code = """
import atexit, os
from bertaccum.cli import program
from bertaccum.errors import LostWorkerError

class Shared:
    def __del__(self):
        os.abort()

@program.cli.command("lose")
def lose():
    shared = Shared()
    raise LostWorkerError("worker 1 has exited", "start again")

atexit.register(os.abort)
program.main(["lose"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: worker 1 has exited; start again\n")


def test_reductions_end_when_a_worker_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted = threading.Event()
    monkeypatch.setattr(_tf_compat, "abort_collectives", lambda _: aborted.set())
    for name in ("_ANSWER_SECONDS", "_LINGER_SECONDS", "_GUARD_SECONDS"):
        monkeypatch.setattr(watchdog, name, 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = [0, silent.getsockname()[1]]
        monkeypatch.setattr(watchdog, "all_gather", lambda _, port: [port, *ports[1:]])
        watch = Watch(Topology(addresses=ADDRESSES, timeout_seconds=0.5))
        lost = r"worker 1 \(127.0.0.1:2\) does not answer"
        with pytest.raises(LostWorkerError, match=lost), watch.watched():
            assert aborted.wait(60)
            raise tf.errors.UnavailableError(None, None, "aborted")
