"""A queue that predicts the texts of many requests in common batches, in one thread.

The queue knows nothing of HTTP. The order of texts is that of their arrival.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Text = TypeVar("_Text")
_Result = TypeVar("_Result")


class QueueFullError(Exception):
    """Raised for a request whose texts do not fit in the queue."""


@dataclass(frozen=True)
class BatchLimits:
    """The limits of the queue and of its batches."""

    tokens: int  # Maximum number of tokens in a batch; a batch with one text may have more.
    delay_seconds: float  # Maximum time for which a request waits for others that are expected.
    queue: int  # Maximum number of texts in the queue.


@dataclass(eq=False)
class _Request(Generic[_Text, _Result]):
    """The texts of one request, and their results as far as they are known."""

    texts: Sequence[_Text]
    results: dict[int, _Result] = field(default_factory=dict)
    future: Future[list[_Result]] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)

    def finish(self) -> None:
        """Set the results of the future, if all are known and it is not cancelled."""
        if len(self.results) == len(self.texts):
            with contextlib.suppress(InvalidStateError):
                self.future.set_result([self.results[n] for n in range(len(self.texts))])


@dataclass(frozen=True)
class _Entry(Generic[_Text, _Result]):
    """One text in the queue: the number of a text in its request."""

    request: _Request[_Text, _Result]
    number: int
    tokens: int


class Batcher(Generic[_Text, _Result]):
    """A context manager with a thread that predicts the texts of requests in batches.

    At exit, the thread first predicts all texts in the queue.

    Args:
      predict: Returns the result of each text, in order. Only the thread calls it.
      tokens: Returns the number of tokens of a text, or an estimate.
      on_batch: Called in the thread with the number of texts of each batch.
    """

    def __init__(
        self,
        predict: Callable[[list[_Text]], Sequence[_Result]],
        tokens: Callable[[_Text], int],
        limits: BatchLimits,
        on_batch: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._predict, self._tokens = predict, tokens
        self._limits, self._on_batch = limits, on_batch
        self._queue: deque[_Entry[_Text, _Result]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        # The number of requests to wait for, briefly.
        self._expected = 1
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    @property
    def queued(self) -> int:
        """The number of texts in the queue, without those that the model is processing."""
        return len(self._queue)

    def submit(self, texts: Sequence[_Text]) -> Future[list[_Result]]:
        """Add at least one text of a request to the queue, or raise QueueFullError.

        Returns:
          A future of the results, in the order of the texts. If it is cancelled, the texts that are
          still in the queue are dropped.
        """
        request: _Request[_Text, _Result] = _Request(texts)
        entries = [_Entry(request, n, self._tokens(text)) for n, text in enumerate(texts)]
        with self._changed:
            if len(self._queue) + len(entries) > self._limits.queue:
                raise QueueFullError
            self._queue.extend(entries)
            self._changed.notify_all()
        request.future.add_done_callback(lambda _: self._forget(request))
        return request.future

    def __enter__(self) -> Batcher[_Text, _Result]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            self._on_batch(len(batch))
            try:
                results = self._predict([entry.request.texts[entry.number] for entry in batch])
            except Exception as error:
                self._expect(batch)
                for request in _requests(batch):
                    with contextlib.suppress(InvalidStateError):  # It was cancelled.
                        request.future.set_exception(error)
            else:
                self._expect(batch)
                for entry, result in zip(batch, results, strict=True):
                    entry.request.results[entry.number] = result
                for request in _requests(batch):
                    request.finish()

    def _expect(self, batch: list[_Entry[_Text, _Result]]) -> None:
        """Count the requests to expect, before their clients have answers and send new ones."""
        with self._changed:
            self._expected = len(_requests(batch) | _requests(self._queue))

    def _next_batch(self) -> list[_Entry[_Text, _Result]]:
        """Wait for texts, remove the first ones from the queue and return them; [] at the end."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return []
                end = self._queue[0].request.arrived + self._limits.delay_seconds
                self._changed.wait_for(self._is_complete, max(end - time.monotonic(), 0))
                if self._queue:  # Else, all texts were dropped.
                    return self._removed()

    def _is_complete(self) -> bool:
        """Return whether waiting longer would not make the next batch larger."""
        # As many requests are expected as were waiting or being processed during the last batch. A
        # single client therefore never waits, and the requests of clients that each wait for an
        # answer share a batch.
        waiting = _requests(self._queue)
        full = sum(entry.tokens for entry in self._queue) >= self._limits.tokens
        return self._closing or not waiting or full or len(waiting) >= self._expected

    def _removed(self) -> list[_Entry[_Text, _Result]]:
        batch = [self._queue.popleft()]
        room = self._limits.tokens - batch[0].tokens
        while self._queue and self._queue[0].tokens <= room:
            room -= self._queue[0].tokens
            batch.append(self._queue.popleft())
        return batch

    def _forget(self, request: _Request[_Text, _Result]) -> None:
        """Drop the texts of a request that are still in the queue: it was cancelled or failed."""
        with self._changed:
            if any(entry.request is request for entry in self._queue):
                self._queue = deque(e for e in self._queue if e.request is not request)
                self._changed.notify_all()


def _requests(entries: Iterable[_Entry[_Text, _Result]]) -> set[_Request[_Text, _Result]]:
    return {entry.request for entry in entries}
