"""Classification: one class for each example, trained with softmax cross-entropy."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertaccum.tasks.labels import Labels, class_numbers
from bertaccum.tasks.scoring import class_scores, fitted_temperature, mean_of, reliability
from bertaccum.tasks.task import PLAIN, Decoding
from data_prep.labels.formats import LabelFormat, class_format

if TYPE_CHECKING:
    import pandas as pd
    import tensorflow as tf


@dataclass(frozen=True)
class Classification:
    """A `Task` that assigns one class to each example."""

    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "macro_f1", "matthews_correlation", "loss")
    options: ClassVar[frozenset[str]] = frozenset(
        {"class_weight", "label_smoothing", "calibrate", "label_form"}
    )
    label_shape: ClassVar[tuple[int | None, ...]] = ()
    label_dtype: ClassVar[type[np.generic]] = np.int32

    labels: Labels
    decoding: Decoding = PLAIN
    smoothing: float = 0.0

    def parts(self, cells: Collection[str], separator: str | None = None) -> dict[str, list[str]]:
        found = class_format(cells, len(self.labels.values), LabelFormat(**self.labels.format))
        find, labels = self.labels.finder(), found.labels_in(cells).items()
        return {cell: own if len(own) == 1 and not find(cell) else [cell] for cell, own in labels}

    def encode(
        self, tsv: Path, table: pd.DataFrame, separator: str | None = None, by_name: bool = False
    ) -> np.ndarray:
        numbers = class_numbers(tsv, table, self.labels, self.parts, by_name)
        return np.array([number for (number,) in numbers], np.int32)

    def losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return the cross-entropy [batch] of `logits` [batch, classes] and `labels` [batch].

        With label smoothing s, the target is 1 - s for the label plus s / classes for every class.
        Source: Szegedy et al. 2016.
        """
        import tensorflow as tf

        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        if not self.smoothing:
            return losses
        uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        return (1 - self.smoothing) * losses + self.smoothing * uniform

    def scores(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """Return the scores that every evaluation contains, during training and afterwards.

        Besides the `metrics`: `majority_class` and `majority_accuracy`, of always predicting the
        most frequent label; and `only_prediction`, the class predicted for every example, or None
        if there are several.
        """
        from sklearn import metrics

        names = self.labels.names
        counts, predicted = np.bincount(labels, minlength=len(names)), np.argmax(logits, axis=1)
        different = np.unique(predicted)
        # The mean over the classes that occur in the labels or are predicted.
        macro_f1 = metrics.f1_score(labels, predicted, average="macro", zero_division=0.0)
        return {
            "examples": len(labels),
            "accuracy": float(np.mean(predicted == labels)),
            "loss": self.mean_loss(logits, labels),
            "matthews_correlation": _matthews(labels, predicted),
            "macro_f1": float(macro_f1),
            "majority_class": names[counts.argmax()],
            "majority_accuracy": float(counts.max() / len(labels)),
            "only_prediction": names[different[0]] if len(different) == 1 else None,
        }

    def report(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """Return `scores`, `reliability`, `temperature`, `classes` and the confusion matrix.

        The rows of `confusion_matrix` are labels, its columns predictions.
        """
        from sklearn import metrics

        predicted, numbers = np.argmax(logits, axis=1), list(range(self.labels.outputs))
        matrix = metrics.confusion_matrix(labels, predicted, labels=numbers)
        return {
            **self.scores(logits, labels),
            "temperature": self.decoding.temperature,
            **self._reliability(logits, labels),
            "classes": class_scores(self.labels.names, labels, predicted),
            "confusion_matrix": matrix.tolist(),
        }

    def fit_decoding(
        self, logits: np.ndarray, labels: np.ndarray, calibrate: bool, thresholds: bool
    ) -> Decoding:
        """Return `decoding` with a fitted temperature; thresholds do not apply."""
        if not calibrate:
            return self.decoding

        def fit_at(temperature: float) -> tuple[float, float]:
            task = dataclasses.replace(self, decoding=Decoding(temperature))
            error = task._reliability(logits, labels)["expected_calibration_error"]
            return task.mean_loss(logits, labels), error

        return Decoding(fitted_temperature(fit_at, labels.size))

    def predictions(self, logits: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yield the `label` with the highest probability, and all `probabilities` by name."""
        names = self.labels.names
        for row in self._probabilities(logits):
            probabilities = dict(zip(names, row.tolist(), strict=True))
            yield {"label": names[np.argmax(row)], "probabilities": probabilities}

    def mistakes(self, logits: np.ndarray, labels: np.ndarray, count: int) -> list[dict[str, Any]]:
        """Return the misclassified examples whose labels have the lowest probabilities."""
        probabilities, guesses = self._probabilities(logits), np.argmax(logits, axis=1)
        own = probabilities[np.arange(len(labels)), labels]
        wrong = np.flatnonzero(guesses != labels)
        names = self.labels.names
        return [
            {
                "index": int(i),
                "label": names[labels[i]],
                "label_probability": float(own[i]),
                "prediction": names[guesses[i]],
                "probability": float(probabilities[i, guesses[i]]),
            }
            for i in wrong[np.argsort(own[wrong], kind="stable")][:count]
        ]

    def support(self, logits: tf.Tensor, of_passages: tf.Tensor) -> tf.Tensor:
        """Return the log-probability of the predicted class in each passage; see `Task.support`."""
        import tensorflow as tf

        predicted = tf.argmax(logits, axis=-1)
        return tf.gather(tf.nn.log_softmax(of_passages), predicted, axis=2, batch_dims=1)

    def head_transform(self) -> tuple[float, float]:
        return 1 / self.decoding.temperature, 0.0

    def serve(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return `logits` and `probabilities` [batch, classes], and `label` [batch] as strings."""
        import tensorflow as tf

        return {
            "logits": logits,
            "probabilities": tf.nn.softmax(logits / self.decoding.temperature),
            "label": tf.gather(tf.constant(self.labels.names), tf.argmax(logits, axis=-1)),
        }

    def mean_loss(self, logits: np.ndarray, labels: np.ndarray) -> float:
        """Return the mean loss of the examples without label smoothing."""
        plain = dataclasses.replace(self, smoothing=0.0)
        return mean_of(plain.losses(logits / np.float32(self.decoding.temperature), labels))

    def _reliability(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """Return `reliability` of the predicted classes."""
        confidences = self._probabilities(logits).max(axis=1)
        return reliability(confidences, np.argmax(logits, axis=1) == labels)

    def _probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities [examples, classes] float32."""
        import tensorflow as tf

        return tf.nn.softmax(logits / np.float32(self.decoding.temperature)).numpy()


def _matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the Matthews correlation; 0 if all predictions or all labels are the same class."""
    # Sources: Matthews 1975; Gorodkin 2004 for more than two classes.
    from sklearn import metrics

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # sklearn warns if only one class occurs.
        return float(metrics.matthews_corrcoef(labels, predictions))
