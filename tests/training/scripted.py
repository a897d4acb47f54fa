"""Tasks with scripted behavior, to pass to `train` and `resume`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.tasks.classification import Classification


class ScriptedScores(Classification):
    """A task with some scores taken from lists, one value per evaluation."""

    def __init__(self, **values: list[float]) -> None:
        self._values: dict[str, Iterator[float]] = {k: iter(v) for k, v in values.items()}

    def scores(self, logits: np.ndarray, labels: np.ndarray, names: list[str]) -> dict[str, Any]:
        scripted = {name: next(values) for name, values in self._values.items()}
        return super().scores(logits, labels, names) | scripted


class ChangedLogits(Classification):
    """A task with logits computed by a function of the true logits, the tokens and `training`."""

    def __init__(self, change: Callable[[tf.Tensor, tf.RaggedTensor, bool], tf.Tensor]) -> None:
        self._change = change

    def logits(self, model: Any, tokens: tf.RaggedTensor, training: bool) -> tf.Tensor:
        return self._change(super().logits(model, tokens, training), tokens, training)


class CountedPasses(Classification):
    """A task that calls a function before each forward pass, of training or of evaluation."""

    def __init__(self, called: Callable[[], Any], training: bool = True) -> None:
        self._called, self._training = called, training

    def logits(self, model: Any, tokens: tf.RaggedTensor, training: bool) -> tf.Tensor:
        if training != self._training:
            return super().logits(model, tokens, training)

        def call() -> np.ndarray:
            self._called()
            return np.zeros((), np.float32)

        with tf.control_dependencies([tf.numpy_function(call, [], tf.float32)]):
            return tf.identity(super().logits(model, tokens, training))
