"""Who is it that the others wait for? Each worker says on a port of its own what it is doing.

TensorFlow tells that a reduction failed, after a time-out or because a connection broke; not
which worker is to blame, when a process hangs that still answers its peers.
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
from bertaccum.distribution.exchange import exchange
from bertaccum.distribution.topology import Topology
from bertaccum.errors import BertAccumError, LostWorkerError

_ANSWER_SECONDS = 3.0
# Between two rounds of questions.
_GUARD_SECONDS = 1.0
# So long a worker that gives up still answers those that look for the culprit.
_LINGER_SECONDS = 2 * _ANSWER_SECONDS
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)
# Others may still be fetching what this worker has of the last reduction.
_SETTLE_SECONDS = 2.0
WAITING = "waiting for the others"


class Watch:
    """Tells the other workers what this one is doing, and asks them; for all to make at once."""

    def __init__(self, topology: Topology) -> None:
        self._topology, self._doing, self._since = topology, "starting", time.monotonic()
        self._peers: list[tuple[str, int]] = []
        if topology.workers > 1:
            self._server = socketserver.ThreadingTCPServer(("", 0), self._handler())
            self._server.daemon_threads = True
            threading.Thread(target=self._server.serve_forever, daemon=True).start()
            ports = exchange(topology, self._server.server_address[1])
            hosts = [address.rsplit(":", 1)[0].strip("[]") for address in topology.addresses]
            self._peers = list(zip(hosts, ports, strict=True))

    def doing(self, what: str) -> None:
        """From now on this is what this worker says."""
        self._doing, self._since = what, time.monotonic()

    def culprits(self) -> list[str]:
        """The workers that do not answer, or are not waiting themselves: who, and what of them."""
        found: list[str] = []
        for worker, (host, port) in enumerate(self._peers):
            if worker == self._topology.worker:
                continue
            name = f"worker {worker} ({self._topology.addresses[worker]})"
            try:
                said = _ask(host, port)
            except ConnectionRefusedError:
                found.append(f"{name} has ended")
            except (OSError, ValueError):
                found.append(f"{name} does not answer")
            else:
                if said["doing"] != WAITING:
                    found.append(f"{name} is {said['doing']}, for {said['seconds']:.0f} s")
        return found

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, a reduction that failed is an error that names whoever is to blame.

        Raises:
          LostWorkerError: a worker has ended, does not answer, or keeps the others waiting.
        """
        if not self._peers:
            yield
            return
        over = threading.Event()
        threading.Thread(target=self._guard, args=(over,), daemon=True).start()
        try:
            yield
            self.doing(WAITING)
            exchange(self._topology, None)
            time.sleep(_SETTLE_SECONDS)
        except BertAccumError:
            time.sleep(_SETTLE_SECONDS)
            raise
        except _LOST as error:
            self.doing(WAITING)
            who = "; ".join(self.culprits()) or "the workers lost each other"
            reason = next((line for line in str(error).splitlines() if "aborted by" in line), "")
            # Answers a while longer, so that nobody takes this worker for the culprit.
            time.sleep(_LINGER_SECONDS)
            raise LostWorkerError(
                f"{who} ({type(error).__name__}{': ' if reason else ''}{reason[:200]})",
                "end all workers and start the same command again: it goes on from the last state",
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

    def _handler(self) -> Any:
        watch = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                seconds = time.monotonic() - watch._since
                said = {"doing": watch._doing, "seconds": seconds}
                self.request.sendall(json.dumps(said).encode())

        return Handler


def _ask(host: str, port: int) -> dict[str, Any]:
    with socket.create_connection((host, port), timeout=_ANSWER_SECONDS) as connection:
        parts = list(iter(lambda: connection.recv(1024), b""))
    return dict(json.loads(b"".join(parts)))
