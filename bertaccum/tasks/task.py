"""The interface that each kind of task implements, and the settings of its predictions.

The modules of this package that define a task do not import TensorFlow before a loss is computed,
so that options can be checked without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from bertaccum.tasks.labels import Labels

if TYPE_CHECKING:
    import pandas as pd
    import tensorflow as tf


@dataclass(frozen=True)
class Decoding:
    """How logits become predictions; fitted on dev.tsv and saved with a model."""

    temperature: float = 1.0  # Number by which the logits are divided.
    # For each label of a multi-label task, the probability from which the label is predicted; None
    # for 0.5 for every label.
    thresholds: list[float] | None = None

    def __post_init__(self) -> None:
        numbers = [self.temperature, *(self.thresholds or [])]
        if not all(isinstance(number, float) for number in numbers) or not self.temperature > 0:
            raise ValueError("a temperature or threshold is not a valid number")

    def uncalibrated(self) -> Decoding:
        """Return the decoding with temperature 1 that predicts the same labels."""
        from scipy.special import expit, logit

        moved = [float(expit(self.temperature * logit(t))) for t in self.thresholds or []]
        return Decoding(thresholds=moved or None)


PLAIN = Decoding()


class Objective(Protocol):
    """The form of the labels on which a model is trained, and the losses of examples."""

    @property
    def label_shape(self) -> tuple[int | None, ...]:
        """Shape of the label of one example; None for a dimension that varies."""

    @property
    def label_dtype(self) -> type[np.generic]:
        """Data type of labels."""

    def losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return the training loss [batch] float32 of examples, given `logits` [batch, outputs]."""


class Task(Objective, Protocol):
    """A kind of task, which defines how labels, losses, scores and predictions are computed.

    Attributes:
      options: Options that suit only some tasks, and that suit this one.
    """

    options: ClassVar[frozenset[str]]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that can select the best checkpoint; the first is the default."""

    @property
    def labels(self) -> Labels:
        """The labels of the dataset."""

    @property
    def decoding(self) -> Decoding:
        """How logits become predictions."""

    @property
    def smoothing(self) -> float:
        """The label smoothing of the training loss."""

    def parts(self, cells: Collection[str], separator: str | None = None) -> dict[str, list[str]]:
        """Return the class labels in each of the different cells of a label column."""

    def encode(
        self, tsv: Path, table: pd.DataFrame, separator: str | None = None, by_name: bool = False
    ) -> np.ndarray:
        """Return the labels of a table, [examples, *label_shape] of `label_dtype`.

        Args:
          by_name: Whether the table contains names of classes instead of their labels in the TSV.
        """

    def scores(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """Return the scores that every evaluation contains, keyed by name.

        They include `examples`, `loss` (without label smoothing) and the values of `metrics`.
        """

    def report(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """Return `scores` and the tables that `bertaccum eval` adds."""

    def fit_decoding(
        self, logits: np.ndarray, labels: np.ndarray, calibrate: bool, thresholds: bool
    ) -> Decoding:
        """Return `decoding` with the requested parts fitted to labeled examples."""

    def predictions(self, logits: np.ndarray) -> Iterable[dict[str, Any]]:
        """Yield fields of a `Prediction` for each example of `logits` [examples, outputs]."""

    def mistakes(self, logits: np.ndarray, labels: np.ndarray, count: int) -> list[dict[str, Any]]:
        """Return at most `count` of the wrong predictions, worst first.

        Returns:
          For each, its `index` in the examples, `label` and `prediction` as text, and the
          `probability` of the prediction or, for regression, its `error`.
        """

    def support(self, logits: tf.Tensor, of_passages: tf.Tensor) -> tf.Tensor:
        """Return how strongly each passage of a text, read alone, supports the prediction.

        Args:
          logits: Logits of the texts, [batch, outputs].
          of_passages: Logits of their passages, [batch, passages, outputs]; NaN after the last one.

        Returns:
          Numbers [batch, passages] that can be compared within a text; NaN after the last passage.
        """

    def head_transform(self) -> tuple[float, float]:
        """Return the factor and the offset that turn logits into those of an exported head.

        Formats without a place for `decoding` and `labels` get a head with other weights instead.
        """

    def serve(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the outputs of exported models for `logits` [batch, outputs]."""
