"""The queue before the model, with functions in place of a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager

import pytest

from bertaccum.serving.request_batching import Batcher, BatchLimits, QueueFullError

# Seconds after which a test fails. No test waits that long if it passes.
LONG = 30.0
LIMITS = BatchLimits(tokens=10, delay_seconds=0.0, queue=100)


class Model:
    """A model that records its batches, and waits before each one if it is held."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self._free = threading.Event()
        self._free.set()
        self.started = threading.Event()

    def __call__(self, texts: list[str]) -> list[str]:
        self.batches.append(texts)
        self.started.set()
        assert self._free.wait(LONG)
        if "wrong" in texts:
            raise ValueError("a wrong text")
        return [text.upper() for text in texts]

    @contextmanager
    def held(self, batcher: Batcher[str, str]) -> Iterator[Future[list[str]]]:
        """Keep the model busy with the text `first`; yield its future."""
        self._free.clear()
        self.started.clear()
        first = batcher.submit(["first"])
        assert self.started.wait(LONG)
        try:
            yield first
        finally:
            self._free.set()


def batcher_of(model: Callable[[list[str]], list[str]], **limits: float) -> Batcher[str, str]:
    return Batcher(model, len, BatchLimits(**(vars(LIMITS) | limits)))


def test_results_are_in_the_order_of_the_texts() -> None:
    model = Model()
    with batcher_of(model) as batcher, model.held(batcher):
        futures = [batcher.submit([f"{n}a", f"{n}b", f"{n}c"]) for n in range(5)]
    assert [f.result(LONG) for f in futures] == [[f"{n}A", f"{n}B", f"{n}C"] for n in range(5)]


def test_waiting_texts_share_batches_that_respect_the_limit_of_tokens() -> None:
    model = Model()
    with batcher_of(model) as batcher, model.held(batcher):
        texts = [["aaaa", "bbbb"], ["cc", "d"], ["a long text of many tokens"], ["e"], ["f"]]
        futures = [batcher.submit(some) for some in texts]
        assert batcher.queued == 7
    assert [f.result(LONG) for f in futures] == [[t.upper() for t in some] for some in texts]
    assert model.batches == [
        ["first"],
        ["aaaa", "bbbb", "cc"],
        ["d"],
        ["a long text of many tokens"],
        ["e", "f"],
    ]


def test_request_that_does_not_fit_in_the_queue_is_refused() -> None:
    model = Model()
    with batcher_of(model, queue=3) as batcher, model.held(batcher):
        kept = [batcher.submit(["a", "b"])]
        with pytest.raises(QueueFullError):
            batcher.submit(["c", "d"])
        kept.append(batcher.submit(["e"]))
        assert batcher.queued == 3
    assert [f.result(LONG) for f in kept] == [["A", "B"], ["E"]]


def test_cancelled_texts_do_not_reach_the_model_and_leave_room() -> None:
    model = Model()
    with batcher_of(model, queue=4) as batcher, model.held(batcher) as first:
        kept = batcher.submit(["a"])
        gone = batcher.submit(["b", "c", "d"])
        gone.cancel()
        assert batcher.queued == 1
        later = batcher.submit(["e"])
        first.cancel()  # The model is processing it already.
    assert (kept.result(LONG), later.result(LONG)) == (["A"], ["E"])
    assert model.batches == [["first"], ["a", "e"]]
    with pytest.raises(CancelledError):
        gone.result()


def test_rest_of_a_request_is_dropped_if_it_is_cancelled_between_batches() -> None:
    model = Model()
    with batcher_of(model, tokens=5) as batcher:
        model._free.clear()
        gone = batcher.submit(["aaaaa", "bbbbb", "ccccc"])
        assert model.started.wait(LONG)
        gone.cancel()
        model._free.set()
        assert batcher.submit(["d"]).result(LONG) == ["D"]
    assert model.batches == [["aaaaa"], ["d"]]


def test_error_reaches_the_requests_of_its_batch_only() -> None:
    model = Model()
    with batcher_of(model, tokens=6) as batcher, model.held(batcher):
        failing = [batcher.submit(["a"]), batcher.submit(["wrong", "rest"])]
        other = batcher.submit(["b"])
    for future in failing:
        with pytest.raises(ValueError, match="a wrong text"):
            future.result(LONG)
    assert other.result(LONG) == ["B"]
    assert model.batches == [["first"], ["a", "wrong"], ["b"]]


def test_texts_in_the_queue_are_predicted_at_exit() -> None:
    model = Model()
    with batcher_of(model) as batcher:
        with model.held(batcher):
            pass
        future = batcher.submit(["a"])
    assert future.done() and future.result() == ["A"]


def test_one_client_never_waits_for_others() -> None:
    with batcher_of(Model(), delay_seconds=10 * LONG) as batcher:
        for text in ("a", "b", "c"):
            assert batcher.submit([text]).result(LONG) == [text.upper()]


def test_clients_that_alternate_meet_in_one_batch() -> None:
    model = Model()
    with batcher_of(model, delay_seconds=10 * LONG) as batcher:
        with model.held(batcher) as first:
            second = batcher.submit(["second"])  # It waits for the answer of `first`.
        assert first.result(LONG) == ["FIRST"]
        third = batcher.submit(["a"])
        assert (second.result(LONG), third.result(LONG)) == (["SECOND"], ["A"])
    assert model.batches == [["first"], ["second", "a"]]


def test_request_waits_only_so_long_for_others() -> None:
    model = Model()
    with batcher_of(model, delay_seconds=0.001) as batcher:
        with model.held(batcher):
            second = batcher.submit(["second"])
        assert second.result(LONG) == ["SECOND"]
        assert batcher.submit(["a"]).result(LONG) == ["A"]
    assert model.batches == [["first"], ["second"], ["a"]]


def test_batch_is_reported() -> None:
    heard: list[int] = []
    model = Model()
    with Batcher(model, len, LIMITS, heard.append) as batcher, model.held(batcher):
        batcher.submit(["a", "b"])
        batcher.submit(["c"])
    assert heard == [1, 3]
