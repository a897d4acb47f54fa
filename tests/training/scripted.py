"""Runs under context managers that change how models behave, and runs that are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from bertaccum.tasks import forward
from bertaccum.tasks.classification import Classification
from bertaccum.training.events import Updated


class _Patched:
    """Replaces an attribute while the context is active; the context can be entered repeatedly."""

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self._made_of = owner, name, value

    def __enter__(self) -> None:
        self._patch = mock.patch.object(*self._made_of)
        self._patch.start()

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


class ScriptedScores(_Patched):
    """Takes some scores of classifications from lists, one value per evaluation."""

    def __init__(self, **values: list[float]) -> None:
        scripted: dict[str, Iterator[float]] = {k: iter(v) for k, v in values.items()}
        true = Classification.scores

        def scores(task: Any, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
            own = {name: next(these) for name, these in scripted.items()}
            return true(task, logits, labels) | own

        super().__init__(Classification, "scores", scores)


class ChangedLogits(_Patched):
    """Computes logits from the true logits and the texts, in training or in evaluations."""

    def __init__(
        self, change: Callable[[tf.Tensor, Any], tf.Tensor], training: bool = True
    ) -> None:
        name = "logits_in_training" if training else "logits_of"
        true = getattr(forward, name)

        def changed(model: Any, texts: Any) -> tf.Tensor:
            return change(true(model, texts), texts)

        super().__init__(forward, name, changed)


class CountedPasses(_Patched):
    """Calls a function during each forward pass, of training or of evaluation."""

    def __init__(self, called: Callable[[], Any], training: bool = True) -> None:
        name = "losses_in_training" if training else "logits_of"
        true = getattr(forward, name)

        def call() -> np.ndarray:
            called()
            return np.zeros((), np.float32)

        def counted(*given: Any) -> tf.Tensor:
            with tf.control_dependencies([tf.numpy_function(call, [], tf.float32)]):
                return tf.identity(true(*given))

        super().__init__(forward, name, counted)


class Failing(CountedPasses):
    """Makes the forward passes with some numbers, counted from 1, raise an error."""

    def __init__(
        self, numbers: set[int] | range, training: bool, error: type[Exception] = MemoryError
    ) -> None:
        self.seen = 0
        self._numbers, self._error = numbers, error
        super().__init__(self._check, training)

    def _check(self) -> None:
        self.seen += 1
        if self.seen in self._numbers:
            raise self._error


def run_until(events: Any, update: int) -> None:
    """Consume events up to those of an update, then close the run as a kill would."""
    for event in events:
        if isinstance(event, Updated) and event.update == update:
            break
    events.close()


def under(change: AbstractContextManager[Any], events: Iterable[Any]) -> list[Any]:
    """Return all events of a run, which happen while a change is active."""
    with change:
        return list(events)
