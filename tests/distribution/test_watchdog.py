"""The watchdog names the worker that the others wait for."""

from __future__ import annotations

import pytest

from bertaccum.distribution import watchdog
from bertaccum.distribution.topology import Topology
from bertaccum.distribution.watchdog import WAITING, Watch

ADDRESSES = ("127.0.0.1:1", "127.0.0.1:2")


def test_worker_that_keeps_others_waiting_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports: list[int] = []

    def exchange(_: Topology, port: int) -> list[int]:
        ports.append(port)
        return ports + [0] * (2 - len(ports))

    monkeypatch.setattr(watchdog, "exchange", exchange)
    # The second worker knows both ports and asks the first.
    slow, other = (Watch(Topology(worker=n, addresses=ADDRESSES)) for n in (0, 1))
    slow.doing("planning")
    assert other.culprits() == ["worker 0 (127.0.0.1:1) has been planning for 0 s"]
    slow.doing(WAITING)
    assert other.culprits() == []
    slow._server.shutdown()
    slow._server.server_close()
    assert other.culprits() == ["worker 0 (127.0.0.1:1) has exited"]
