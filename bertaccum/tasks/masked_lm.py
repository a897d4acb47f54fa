"""Masked language modelling: the original tokens of masked ones, for further pretraining.

The loss of an update is the mean over all masked tokens of its window. As in RoBERTa, no loss asks
whether two texts follow each other, because leaving it out gives better encoders (Liu et al. 2019,
https://arxiv.org/abs/1907.11692). Source of the masks: Devlin et al. 2019.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertaccum.tasks.labels import Labels
from bertaccum.tasks.scoring import mean_of
from bertaccum.tasks.task import PLAIN, Decoding

if TYPE_CHECKING:
    import pandas as pd
    import tensorflow as tf

# exp of a greater number is no 64-bit float.
_LARGEST_LOSS = 700.0


@dataclass(frozen=True)
class MaskedLM:
    """A `Task` that predicts masked tokens.

    The label of an example is an array [masked, 2] int32: the place of each masked token, and its
    vocabulary ID. Place 0, that of [CLS], fills up the array. Instead of logits, the methods take
    the results of `MaskedLanguageModel.evaluated`, [examples, masked, 2].
    """

    metrics: ClassVar[tuple[str, ...]] = ("perplexity", "loss", "accuracy")
    options: ClassVar[frozenset[str]] = frozenset()
    label_shape: ClassVar[tuple[int | None, ...]] = (None, 2)
    label_dtype: ClassVar[type[np.generic]] = np.int32

    labels: Labels
    decoding: Decoding = PLAIN
    smoothing: float = 0.0

    def parts(self, cells: Collection[str], separator: str | None = None) -> dict[str, list[str]]:
        return {cell: [] for cell in cells}

    def encode(
        self, tsv: Path, table: pd.DataFrame, separator: str | None = None, by_name: bool = False
    ) -> np.ndarray:
        raise NotImplementedError("masks are drawn for each update")

    def losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError("see `MaskedLanguageModel.masked_losses`")

    def scores(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """Return the mean over masked tokens of the loss and of the correct predictions.

        `perplexity` is e to the power of `loss`.
        """
        losses, correct = logits[labels[..., 0] > 0].T
        loss = mean_of(losses)
        return {
            "examples": len(labels),
            "masked_tokens": len(losses),
            "loss": loss,
            "perplexity": math.exp(min(loss, _LARGEST_LOSS)),
            "accuracy": mean_of(correct),
        }

    def report(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        return self.scores(logits, labels)

    def fit_decoding(
        self, logits: np.ndarray, labels: np.ndarray, calibrate: bool, thresholds: bool
    ) -> Decoding:
        return self.decoding

    def predictions(self, logits: np.ndarray) -> Iterable[dict[str, Any]]:
        raise NotImplementedError("see `MaskFiller`")

    def mistakes(self, logits: np.ndarray, labels: np.ndarray, count: int) -> list[dict[str, Any]]:
        return []

    def support(self, logits: tf.Tensor, of_passages: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError("each sequence is read in one passage")

    def head_transform(self) -> tuple[float, float]:
        return 1.0, 0.0

    def serve(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        raise NotImplementedError("only classifiers are served")
