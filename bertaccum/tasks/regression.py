"""Regression: one number for each example, trained with the mean squared error.

The model predicts standardized labels, whose mean over train.tsv is 0 and whose standard deviation
is 1. Scores and predictions are given in the unit of the labels, except for the loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertaccum.errors import InputError
from bertaccum.options.metrics import in_unit
from bertaccum.options.task_names import REGRESSION
from bertaccum.tasks.labels import Labels, label_column
from bertaccum.tasks.scoring import mean_of
from bertaccum.tasks.task import PLAIN, Decoding
from data_prep.labels.formats import LabelFormat
from data_prep.tables.spellings import finite_number, number_remedy

if TYPE_CHECKING:
    import pandas as pd
    import tensorflow as tf


@dataclass(frozen=True)
class Regression:
    """A `Task` that predicts one number for each example."""

    metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman", "mse", "loss")
    options: ClassVar[frozenset[str]] = frozenset()
    label_shape: ClassVar[tuple[int | None, ...]] = ()
    label_dtype: ClassVar[type[np.generic]] = np.float32

    labels: Labels
    decoding: Decoding = PLAIN
    smoothing: float = 0.0

    def parts(self, cells: Collection[str], separator: str | None = None) -> dict[str, list[str]]:
        """Return no labels, because a number is not a class."""
        return {cell: [] for cell in cells}

    def encode(
        self, tsv: Path, table: pd.DataFrame, separator: str | None = None, by_name: bool = False
    ) -> np.ndarray:
        values = np.array(scores_in(tsv, table))
        return ((values - self.labels.mean) / self.labels.std).astype(np.float32)

    def losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return the squared errors [batch] of `logits` [batch, 1] and `labels` [batch]."""
        import tensorflow as tf

        return tf.math.squared_difference(logits[:, 0], labels)

    def scores(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """Return the scores that every evaluation contains, during training and afterwards.

        Besides the `metrics`, in the unit of the labels: `mean_baseline_mse`, of always predicting
        the mean of train.tsv. The `loss` is that of the standardized labels.
        """
        from scipy.stats import rankdata

        predicted, unit = logits[:, 0].astype(np.float64), self.labels.std**2
        wanted = labels.astype(np.float64)
        loss = mean_of((predicted - wanted) ** 2)
        return {
            "examples": len(labels),
            "pearson": _pearson(predicted, wanted),
            "spearman": _pearson(rankdata(predicted), rankdata(wanted)),
            "mse": loss * unit,
            "loss": loss,
            "mean_baseline_mse": mean_of(wanted**2) * unit,
        }

    def report(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        return self.scores(logits, labels)

    def fit_decoding(
        self, logits: np.ndarray, labels: np.ndarray, calibrate: bool, thresholds: bool
    ) -> Decoding:
        """Return `decoding`, because a number has neither a probability nor a threshold."""
        return self.decoding

    def predictions(self, logits: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yield the predicted `score` in the unit of the labels."""
        for value in self._in_unit(logits[:, 0]):
            yield {"score": float(value)}

    def mistakes(self, logits: np.ndarray, labels: np.ndarray, count: int) -> list[dict[str, Any]]:
        """Return the predictions with the largest errors."""
        predicted, wanted = self._in_unit(logits[:, 0]), self._in_unit(labels)
        errors = np.abs(predicted - wanted)
        return [
            {
                "index": int(i),
                "label": in_unit(wanted[i]),
                "prediction": in_unit(predicted[i]),
                "error": float(errors[i]),
            }
            for i in np.argsort(-errors, kind="stable")[:count]
        ]

    def support(self, logits: tf.Tensor, of_passages: tf.Tensor) -> tf.Tensor:
        """Return how far each passage moves the prediction away from the mean of train.tsv."""
        import tensorflow as tf

        return of_passages[:, :, 0] * tf.sign(logits)

    def head_transform(self) -> tuple[float, float]:
        """Return the factor and the offset that give predictions the unit of the labels."""
        return self.labels.std, self.labels.mean

    def serve(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return `score` [batch], the prediction in the unit of the labels."""
        return {"score": logits[:, 0] * self.labels.std + self.labels.mean}

    def _in_unit(self, values: np.ndarray) -> np.ndarray:
        return values.astype(np.float64) * self.labels.std + self.labels.mean


def regression_labels(tsv: Path, table: pd.DataFrame, pairs: bool) -> Labels:
    """Return the `Labels` of a regression, with mean and standard deviation of a table's labels."""
    values = np.array(scores_in(tsv, table))
    mean, std = float(values.mean()), float(values.std())
    # The mean of equal numbers may differ from them by a rounding error.
    if np.ptp(values) == 0 or not std > 0:
        what = f"every row has the label {in_unit(values[0])}"
        raise InputError(what, "check the label column", path=tsv)
    return Labels([], [], pairs, REGRESSION, mean, std)


def scores_in(tsv: Path, table: pd.DataFrame) -> list[float]:
    """Return the labels of a table as numbers."""
    scores, column = [], label_column(tsv, table)
    labels = LabelFormat().labels_in(set(column))
    for cell, row in zip(column, table["row"], strict=True):
        label = ", ".join(labels[cell])
        number = finite_number(label)
        if number is None:
            remedy = number_remedy(label)
            what = f"label {label!r} is not a finite number"
            remedy = f"correct it: {remedy}" if remedy else "correct it or delete the row"
            raise InputError(what, remedy, path=tsv, row=int(row))
        scores.append(number)
    return scores


def _pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Return the Pearson correlation; 0 if one has equal values only, NaN if any is not finite."""
    # The mean of equal numbers may differ from them by a rounding error.
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])
