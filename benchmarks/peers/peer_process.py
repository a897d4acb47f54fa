"""The process of a peer, which trains when it is told to. Imports only the standard library."""

from __future__ import annotations

import json
import re
import select
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b")


class PeerError(Exception):
    """A peer exited, or did not answer in time."""


class PeerProcess:
    """A running peer that follows the protocol of `turns.py`.

    Args:
      command: Command that starts the peer.
      log: File for everything that the peer prints.
      environment: Environment variables of the peer; None for those of this process.

    Attributes:
      started: Time at which the process was started, in seconds since the epoch.
    """

    def __init__(
        self, command: list[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log, self.started = log, time.time()
        pipe = subprocess.PIPE
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environment
            )

    def turn(self, updates: int, timeout: float | None = None) -> dict[str, Any]:
        """Let the peer run updates, or only get ready if there are none.

        Args:
          updates: Number of updates.
          timeout: Seconds to wait for the answer; None for no limit.

        Returns:
          The answer: `seconds` of the turn, the time `at` which it ended, and `peak_bytes`.

        Raises:
          PeerError: The peer exited or did not answer in time. The message contains the last line
            of its log that names an exception, else its last line.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"updates": updates}) + "\n")
            self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            raise PeerError(f"no answer within {timeout:.0f} s")
        answer = self._process.stdout.readline()
        if not answer:
            raise PeerError(self._reason())
        return json.loads(answer)

    def _reason(self) -> str:
        """Return the last line of the log that names an exception, else its last line."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        last = [line for line in lines if line] or ["the peer has exited"]
        return ([line for line in last if _EXCEPTION.match(line)] or last)[-1][:300]

    def close(self, timeout: float | None = None) -> None:
        """End the peer when its turn is finished, or kill it after `timeout` seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
