"""A thread that runs updates, so that the device does not wait for the host between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bertaccum.data.windows import Window
from bertaccum.distribution.device_memory import peak_memory_bytes, reset_peak_memory

Update = Callable[[list[Window]], dict[str, Any]]


class UpdateThread:
    """A thread that runs one update at a time, while the caller logs and prepares others.

    TensorFlow releases Python's global lock while it computes. A single thread serves all updates,
    because TensorFlow keeps its options for calls of functions per thread.

    Attributes:
      seconds: Time that the last update ran, in seconds, including its failed attempts.
      peak_memory_bytes: Peak memory of the last update in bytes; None if unknown.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.peak_memory_bytes: int | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="updates")
        self._future: Future[dict[str, Any]] | None = None
        self._ident: int | None = None
        self._entered = threading.Semaphore(0)

    @property
    def is_running(self) -> bool:
        """Whether an update was started whose results were not yet returned."""
        return self._future is not None

    def start(self, update: Update, windows: list[Window], again: bool) -> None:
        """Start an update, and return once its thread has begun to run it.

        Args:
          update: Function that runs the update.
          windows: Its argument.
          again: Whether this is another attempt of the last update.
        """
        self._future = self._executor.submit(self._run, update, windows, again)
        # If the caller kept Python's global lock, the thread could wait for it for 5 ms.
        self._entered.acquire()

    def result(self) -> dict[str, Any]:
        """Wait for the update, and return its results or raise its error."""
        assert self._future is not None
        future, self._future = self._future, None
        return future.result()

    def close(self) -> None:
        """Wait until the update in progress has ended, and end the thread."""
        # Garbage collection may close an abandoned run in any thread, and no thread can wait for
        # itself.
        self._executor.shutdown(wait=threading.get_ident() != self._ident)

    def _run(self, update: Update, windows: list[Window], again: bool) -> dict[str, Any]:
        self._ident = threading.get_ident()
        self._entered.release()
        if not again:
            reset_peak_memory()
            self.seconds = 0.0
        start = time.perf_counter()
        try:
            return update(windows)
        finally:
            self.seconds += time.perf_counter() - start
            self.peak_memory_bytes = peak_memory_bytes()
