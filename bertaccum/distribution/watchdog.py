"""Finding the worker that the others wait for.

When a reduction fails, TensorFlow reports a timeout or a broken connection. It cannot name the
worker that caused it if a hanging process still answers its peers. Each worker therefore reports on
a port of its own what it is doing.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.distribution.collectives import all_gather
from bertaccum.distribution.topology import MARGIN_SECONDS, Topology
from bertaccum.errors import BertAccumError, LostWorkerError

_ANSWER_SECONDS = 3.0
# Pause between two rounds in which a worker asks all others for an answer.
_GUARD_SECONDS = 1.0
# A worker that gives up still answers for this long, so that others do not blame it.
_LINGER_SECONDS = 2 * _ANSWER_SECONDS
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)
# Other workers may still be receiving this worker's part of the last reduction.
_SETTLE_SECONDS = 2.0
WAITING = "waiting for the others"


class Watch:
    """A server that tells other workers what this one is doing, and a client that asks them.

    All workers must create theirs at the same time.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology, self._doing, self._since = topology, "starting", time.monotonic()
        self._peers: list[tuple[str, int]] = []
        if topology.workers > 1:
            self._server = _Server(("", 0), self._answer)
            threading.Thread(target=self._server.serve_forever, daemon=True).start()
            ports = all_gather(topology, self._server.server_address[1])
            hosts = [address.rsplit(":", 1)[0].strip("[]") for address in topology.addresses]
            self._peers = list(zip(hosts, ports, strict=True))

    def doing(self, what: str) -> None:
        """Set what this worker reports that it is doing."""
        self._doing, self._since = what, time.monotonic()

    def is_waiting(self) -> bool:
        """Return whether this worker waits for others, no longer than it may.

        It may also be stuck after it has waited, until it says that it does something else.
        """
        waited = time.monotonic() - self._since
        is_late = waited > self._topology.timeout_seconds + MARGIN_SECONDS
        return bool(self._peers) and self._doing == WAITING and not is_late

    def faulty_workers(self) -> list[str]:
        """Return a description of each worker that does not answer or keeps the others waiting."""
        workers: list[str] = []
        for worker, (host, port) in enumerate(self._peers):
            if worker == self._topology.worker:
                continue
            name = f"worker {worker} ({self._topology.addresses[worker]})"
            try:
                said = _ask(host, port)
            except ConnectionRefusedError:
                workers.append(f"{name} has exited")
            except (OSError, ValueError):
                workers.append(f"{name} does not answer")
            else:
                if said["doing"] != WAITING:
                    workers.append(f"{name} has been {said['doing']} for {said['seconds']:.0f} s")
        return workers

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Raise a LostWorkerError that names the worker at fault if a reduction fails."""
        if not self._peers:
            yield
            return
        over = threading.Event()
        threading.Thread(target=self._guard, args=(over,), daemon=True).start()
        try:
            yield
            self.doing(WAITING)
            all_gather(self._topology, None)
            time.sleep(_SETTLE_SECONDS)
        except BertAccumError:
            time.sleep(_SETTLE_SECONDS)
            raise
        except _LOST as error:
            self.doing(WAITING)
            who = "; ".join(self.faulty_workers()) or "the workers lost their connections"
            reason = next((line for line in str(error).splitlines() if "aborted by" in line), "")
            # This worker must keep answering while the others look for the one at fault.
            time.sleep(_LINGER_SECONDS)
            raise LostWorkerError(
                f"{who} ({type(error).__name__}{': ' if reason else ''}{reason[:200]})",
                "stop all workers and start the same command again to resume the run",
            ) from None
        finally:
            over.set()

    def _guard(self, over: threading.Event) -> None:
        """End the reductions of this process if another worker does not answer for too long."""
        answered = dict.fromkeys(self._peers, time.monotonic())
        while not over.wait(_GUARD_SECONDS):
            for host, port in self._peers:
                with contextlib.suppress(OSError, ValueError):
                    _ask(host, port)
                    answered[host, port] = time.monotonic()
            if time.monotonic() - min(answered.values()) > self._topology.timeout_seconds:
                _tf_compat.abort_collectives("a worker that does not answer")
                return

    def _answer(self, connection: socket.socket, *_: object) -> Any:
        """Say what this worker is doing; the server calls this method for each question."""
        said = {"doing": self._doing, "seconds": time.monotonic() - self._since}
        connection.sendall(json.dumps(said).encode())


class _Server(socketserver.ThreadingTCPServer):
    """A server that listens at the IPv4 and IPv6 addresses of this machine."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    daemon_threads = True

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def _ask(host: str, port: int) -> dict[str, Any]:
    with socket.create_connection((host, port), timeout=_ANSWER_SECONDS) as connection:
        return dict(json.load(connection.makefile(encoding="utf-8")))
