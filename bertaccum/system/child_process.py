"""Processes that this one starts and asks; requests and answers are lines of JSON.

If such a process crashes or runs out of memory, this one continues, and the memory of its device is
free again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

from bertaccum.errors import BertAccumError, RunError, explained
from bertaccum.system.progress import Progress, tell

_END_SECONDS = 10
# Sends the values that are passed by name.
Answer: TypeAlias = Callable[..., None]


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module in a new process, which imports what this one imports.

    `python -m` would search the current folder first, where a file of the user may have the name of
    a module that the process imports, and no folder that was added to `sys.path`.
    """
    path = [folder for folder in sys.path if isinstance(folder, str)]
    code = (
        f"import sys; sys.path[:] = {path!a}; import runpy;"
        f" runpy.run_module({module!a}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code, *arguments]


class ChildProcess(AbstractContextManager["ChildProcess"]):
    """A process that runs a module of this package, which calls `answering`.

    Args:
      module: Name of the module.
      name: Name of the process in errors.
      progress: Reports the progress and the messages of the process.
      environment: Variables to set besides those of this process.
    """

    def __init__(
        self, module: str, name: str, progress: Progress, environment: dict[str, str] | None = None
    ) -> None:
        self._module, self._name, self._progress = module, name, progress
        self._environment = os.environ | (environment or {})
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def has_ended(self) -> bool:
        """Whether the process was ended, or has crashed."""
        return self._process is None

    def start(self) -> None:
        """Start the process."""
        # The file must stay open until the process ends.
        self._errors = tempfile.TemporaryFile(  # noqa: SIM115
            "w+", encoding="utf-8", errors="replace"
        )
        self._process = subprocess.Popen(
            module_command(self._module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=self._environment,
        )

    def end(self) -> None:
        """Kill the process, even if it is working."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=_END_SECONDS)  # Closes its streams as well.
            self._process = None
            self._errors.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer: `out_of_memory` if the process was killed.

        Raises:
          BertAccumError: The process raised this error.
          RunError: The process crashed.
        """
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
        raise RunError(f"the {self._name} process failed ({reason})")


@contextmanager
def answering() -> Iterator[tuple[Answer, Progress]]:
    """Yield a function that sends an answer, and one that sends progress, to `ChildProcess.ask`.

    Errors are sent as well.
    """
    # The output of TensorFlow and other libraries goes to stderr, so that it does not mix with the
    # answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")

    def progress(what: str, done: int, total: int | None) -> None:
        answer(progress=[what, done, total])

    # `tell` shows messages with this method of a view.
    progress.note = lambda line: answer(note=line)  # type: ignore[attr-defined]
    try:
        yield answer, progress
    except Exception as error:
        known = explained(error)
        answer(error=str(known), exit_code=known.exit_code)
