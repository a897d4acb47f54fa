"""Measurements of training steps, and the process that makes them, which may crash.

The process runs `step_measurement`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from bertaccum.errors import BertAccumError, RunError
from bertaccum.system.progress import Progress, tell

_END_SECONDS = 10
# The number of passages of an example, and the number of tokens of the longest one.
Shape: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Measurement:
    """The duration of an update in seconds, and memory in bytes: its peak, and before it began."""

    seconds: float
    peak_bytes: float
    resting_bytes: float = 0.0


@dataclass(frozen=True)
class MeasurementRequest:
    """One update to run and measure.

    Args:
      micro_batches: For each micro-batch, the shapes of its examples.
      recompute, offload: Fields of `Saving`. Tensors in host memory stay there.
      accumulate: Whether to use accumulators.
      thorough: Whether to also evaluate and save a checkpoint, as a run does between updates.
      padded: Rows and length to which each micro-batch is padded; the step is then compiled. None
        for a step that is not compiled.
    """

    micro_batches: Sequence[Sequence[Shape]]
    recompute: str
    offload: str = "none"
    accumulate: bool = True
    thorough: bool = False
    padded: Sequence[Shape] | None = None


class StepMeasurer(Protocol):
    """An object that runs training steps and measures them."""

    def run(self, request: MeasurementRequest) -> Measurement | None:
        """Run one update and return its measurement; None if it ran out of memory."""


class MeasurementProcess(AbstractContextManager["MeasurementProcess"]):
    """A process that runs updates and measures them; it restarts after a crash.

    Args:
      progress: Called with the activity of the process.
      environment: Environment variables to set for the process.
    """

    def __init__(self, progress: Progress, environment: dict[str, str]) -> None:
        self._progress = progress
        self._job: dict[str, Any] = {}
        self._environment = os.environ | environment
        self._process: subprocess.Popen[str] | None = None
        self._windows = 0
        self._start()

    def __exit__(self, *_: object) -> None:
        self.end()

    def build(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """Build the model and its optimizer, and return a description; None if they do not fit.

        Args:
          job: Job returned by `measurement_job`.

        Raises:
          BertAccumError: The data or the model cannot be used.
        """
        self._job = job
        answer = self._ask(job)
        if "out_of_memory" in answer:
            self.end()
            return None
        return answer

    def run(self, request: MeasurementRequest) -> Measurement | None:
        """Run one update and return its measurement; None if it ran out of memory."""
        if self._process is None:
            self._start()
            if self.build(self._job) is None:
                return None
        self._windows += 1
        self._progress("measurements of memory and speed", self._windows, None)
        answer = self._ask(dataclasses.asdict(request))
        return None if "out_of_memory" in answer else Measurement(**answer)

    def end(self) -> None:
        """Kill the process, even if it is working."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=_END_SECONDS)  # Closes its streams as well.
            self._process = None
            self._errors.close()

    def _start(self) -> None:
        # The file must stay open until the process ends.
        self._errors = tempfile.TemporaryFile(  # noqa: SIM115
            "w+", encoding="utf-8", errors="replace"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bertaccum.training.step_measurement"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=self._environment,
        )

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer: `out_of_memory` if the process was killed."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer: dict[str, Any] = json.loads(line)
                if "error" in answer:
                    error = BertAccumError(answer["error"])
                    error.exit_code = answer["exit_code"]
                    raise error
                if "note" in answer:
                    tell(self._progress, answer["note"])
                elif "progress" in answer:
                    self._progress(*answer["progress"])
                else:
                    return answer
        except BrokenPipeError:
            pass
        code = process.wait()
        self._errors.seek(0)
        written = self._errors.read()
        self.end()
        if code == -signal.SIGKILL:  # The system kills a process when memory runs out.
            return {"out_of_memory": True}
        sys.stderr.write(written)
        reason = (written.strip() or f"exit code {code}").splitlines()[-1]
        raise RunError(f"the measurement process failed ({reason})")
