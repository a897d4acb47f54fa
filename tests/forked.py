"""Python processes that are forked with TensorFlow loaded, which saves four seconds for each.

They replace `subprocess` where a test needs processes of its own, but not a new interpreter.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

# Importing these modules starts no thread of TensorFlow's runtime, which would not survive a fork.
_LOADED = [
    "bertaccum.cli.program",
    "bertaccum.training.train",
    "bertaccum.inference.evaluate",
    "sklearn.metrics",
    "tensorboard.summary",
]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_LOADED)
# The code of `python -m bertaccum`.
PROGRAM = "from bertaccum.cli.program import main; main()"
# An environment in which XLA compiles in less time, and compiled steps run more slowly.
QUICK_XLA = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
# Trains several runs in one process; their options are a list in JSON.
SEVERAL_RUNS = """
import json, sys, bertaccum
for options in json.loads(sys.argv[1]):
    bertaccum.train(**options)
"""


class Forked:
    """A process that runs Python code, with the methods of `subprocess.Popen` that tests use.

    Args:
      code: The code to run.
      *arguments: Its `sys.argv[1:]`.
      cwd: Its working directory.
      env: Environment variables that differ from those of the tests.
    """

    def __init__(
        self,
        code: str,
        *arguments: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._written = tempfile.TemporaryDirectory()
        self._files = [Path(self._written.name, name) for name in ("stdout", "stderr")]
        for file in self._files:
            file.touch()
        environment = os.environ | (env or {})
        self._process = _CONTEXT.Process(
            target=_run,
            args=(code, [*map(str, arguments)], cwd or Path.cwd(), environment, self._files),
            daemon=True,
        )
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self._process.join(timeout)
        if self.poll() is None:
            raise TimeoutError
        out, errors = (file.read_text(errors="replace") for file in self._files)
        return out, errors


def run(
    code: str, *arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own to the end, as `subprocess.run` does."""
    process = Forked(code, *arguments, cwd=cwd, env=env)
    out, errors = process.communicate()
    return subprocess.CompletedProcess(code, process.returncode, out, errors)


def output(
    code: str, *arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Run Python code that must not fail in a process of its own, and return what it prints."""
    done = run(code, *arguments, cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _run(
    code: str, arguments: list[str], folder: Path, environment: dict[str, str], files: list[Path]
) -> None:
    for descriptor, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["bertaccum", *arguments]
    exec(compile(code, "<forked>", "exec"), {"__name__": "__main__"})
