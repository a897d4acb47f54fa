"""Capture of stderr, so that other output of the process cannot break the display of a view.

TensorFlow's C++ runtime writes directly to file descriptor 2, bypassing `sys.stderr`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import TextIO

_STDERR = 2
_POLL_SECONDS = 0.2
# This program waits until the other end of a pipe closes, and then copies the unread rest of a
# file to stderr.
_HEIR = """
import os, sys
pipe, log = map(int, sys.argv[1:])
os.read(pipe, 1)
while text := os.read(log, 65536):
    os.write(2, text)
"""


class Capture:
    """A capture of everything that Python or C++ code writes to file descriptor 2 until `close`.

    The text goes to a temporary file. If a check in C++ code fails, the process aborts before
    Python can show the text. A small second process therefore waits for the end of this process,
    and then shows the unread text. Both processes share one read position, so no line is shown
    twice. (If this process is the first one of a container, the operating system ends the second
    process with it.)
    """

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        _flush_stderr()
        encoding = sys.stderr.encoding if sys.stderr is not None else None
        self._terminal = os.fdopen(os.dup(_STDERR), "w", 1, encoding, "backslashreplace")
        captured = sys.stderr is None or _is_captured(sys.stderr)
        self.stderr: TextIO = self._terminal if captured else sys.stderr
        with tempfile.NamedTemporaryFile() as file:
            log = os.open(file.name, os.O_WRONLY | os.O_APPEND)
            self._log = os.open(file.name, os.O_RDONLY)
        pipe, self._alive = os.pipe()
        self._heir = _start_reporter(pipe, self._log)
        os.dup2(log, _STDERR)
        os.close(log)
        os.close(pipe)
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._follow, args=(show,), daemon=True)
        if show is not None:
            self._reader.start()

    def close(self) -> str:
        """Restore stderr, and return the text that has not been shown yet."""
        _flush_stderr()
        os.dup2(self._terminal.fileno(), _STDERR)
        self._closing.set()
        if self._reader.is_alive():
            self._reader.join()
        text = self._read().decode(errors="replace")
        os.close(self._alive)
        os.close(self._log)
        self._terminal.close()
        self._heir.wait()
        return text

    def _follow(self, show: Callable[[str], None]) -> None:
        while not self._closing.wait(_POLL_SECONDS):
            text = self._read()
            whole = text.rfind(b"\n") + 1
            os.lseek(self._log, whole - len(text), os.SEEK_CUR)
            for line in text[:whole].decode(errors="replace").splitlines():
                show(line)

    def _read(self) -> bytes:
        return b"".join(iter(lambda: os.read(self._log, 1 << 16), b""))


def _start_reporter(pipe: int, log: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-IS", "-c", _HEIR, str(pipe), str(log)]
    # In a session of its own, the second process does not receive Ctrl-C.
    return subprocess.Popen(command, pass_fds=(pipe, log), start_new_session=True)


def _is_captured(stream: TextIO) -> bool:
    try:
        return stream.fileno() == _STDERR
    except (OSError, ValueError):  # In a test or a notebook, the stream has no file descriptor.
        return False


def _flush_stderr() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()
