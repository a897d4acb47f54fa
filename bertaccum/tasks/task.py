"""The interface that a fine-tuning task, such as classification, implements."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import tensorflow as tf
import tf_keras


class Task(Protocol):
    """A task, which defines how logits, losses and scores are computed."""

    def logits(self, model: tf_keras.Model, tokens: tf.RaggedTensor, training: bool) -> tf.Tensor:
        """Return the logits [batch, classes] float32 of `tokens` [batch, (length)]."""

    def losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return the loss [batch] of each example, given `labels` [batch] int32."""

    def scores(self, logits: np.ndarray, labels: np.ndarray, names: list[str]) -> dict[str, Any]:
        """Return the fields of `Evaluated` except `update` and `best`, keyed by name."""
