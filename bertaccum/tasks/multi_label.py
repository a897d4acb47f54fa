"""Multi-label classification: any number of labels for each example, sigmoid cross-entropy."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertaccum.tasks.labels import SEPARATOR, Labels, class_numbers
from bertaccum.tasks.scoring import class_scores, fitted_temperature, mean_of, reliability
from bertaccum.tasks.task import PLAIN, Decoding
from data_prep.labels.formats import LabelFormat, set_format
from data_prep.tables.spellings import class_finder

if TYPE_CHECKING:
    import pandas as pd
    import tensorflow as tf


@dataclass(frozen=True)
class MultiLabel:
    """A `Task` that decides for each label whether it applies to an example."""

    metrics: ClassVar[tuple[str, ...]] = ("micro_f1", "macro_f1", "average_precision", "loss")
    options: ClassVar[frozenset[str]] = frozenset(
        {"calibrate", "thresholds", "label_form", "label_separator"}
    )
    label_shape: ClassVar[tuple[int | None, ...]] = (None,)
    label_dtype: ClassVar[type[np.generic]] = np.float32

    labels: Labels
    decoding: Decoding = PLAIN
    smoothing: float = 0.0

    def parts(self, cells: Collection[str], separator: str | None = None) -> dict[str, list[str]]:
        """Return the labels in each cell, such as `a|b`; a lone separator means no label."""
        find, classes = self.labels.finder(), len(self.labels.values)
        # If classes are named by numbers, a list of numbers contains names.
        are_numbered = all(map(class_finder(self.labels.names), "01"))
        known = LabelFormat(**self.labels.format)
        numbered = None if are_numbered else classes
        found = set_format(cells, separator, numbered, find if classes else None, known)
        return {cell: [cell] if find(cell) else own for cell, own in found.labels_in(cells).items()}

    def encode(
        self, tsv: Path, table: pd.DataFrame, separator: str | None = None, by_name: bool = False
    ) -> np.ndarray:
        """Return 1 for each label of an example and 0 for others, [examples, labels] float32."""
        parts = partial(self.parts, separator=separator)
        encoded = np.zeros((len(table), self.labels.outputs), np.float32)
        for row, numbers in enumerate(class_numbers(tsv, table, self.labels, parts, by_name)):
            encoded[row, numbers] = 1
        return encoded

    def losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return the mean sigmoid cross-entropy [batch] over the labels, [batch, labels]."""
        import tensorflow as tf

        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(losses, axis=-1)

    def scores(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """Return the scores that every evaluation contains, during training and afterwards.

        Besides the `metrics`: `exact_match`, the fraction of the examples whose labels are all
        predicted correctly; and `constant_micro_f1`, the highest `micro_f1` of always predicting
        the same labels.
        """
        from sklearn import metrics

        predicted, wanted = self._predicted(logits), labels > 0
        f1 = partial(metrics.f1_score, wanted, predicted, zero_division=0.0)
        return {
            "examples": len(labels),
            "micro_f1": float(f1(average="micro")),
            "macro_f1": float(f1(average="macro")),
            "average_precision": self._average_precision(logits, wanted),
            "loss": self._loss(logits, labels),
            "exact_match": float(np.mean((predicted == wanted).all(axis=1))),
            "constant_micro_f1": _constant_micro_f1(wanted),
        }

    def report(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """Return `scores`, `reliability`, `temperature`, and each label's scores and threshold."""
        predicted = self._predicted(logits)
        return {
            **self.scores(logits, labels),
            "temperature": self.decoding.temperature,
            **self._reliability(logits, labels),
            "classes": class_scores(self.labels.names, labels > 0, predicted),
            "thresholds": self._thresholds().tolist(),
        }

    def fit_decoding(
        self, logits: np.ndarray, labels: np.ndarray, calibrate: bool, thresholds: bool
    ) -> Decoding:
        """Return `decoding` with a fitted temperature and, for each label, the best threshold.

        The best threshold has the highest F1. It lies halfway between two probabilities. A label
        that does not occur keeps 0.5.
        """

        def fit_at(temperature: float) -> tuple[float, float]:
            task = self._with(temperature)
            error = task._reliability(logits, labels)["expected_calibration_error"]
            return task._loss(logits, labels), error

        fitted = self._with(fitted_temperature(fit_at, labels.size)) if calibrate else self
        # Another temperature gives other probabilities, for which earlier thresholds mean nothing.
        if not thresholds and not (calibrate and self.decoding.thresholds):
            return fitted.decoding
        columns = zip(fitted._probabilities(logits).T, labels.T, strict=True)
        best = [_best_threshold(probabilities, own > 0) for probabilities, own in columns]
        return dataclasses.replace(fitted.decoding, thresholds=best)

    def predictions(self, logits: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yield the predicted `labels`, and all `probabilities` by name."""
        names = self.labels.names
        rows = zip(self._predicted(logits), self._probabilities(logits), strict=True)
        for predicted, row in rows:
            probabilities = dict(zip(names, row.tolist(), strict=True))
            yield {"labels": self._names(predicted), "probabilities": probabilities}

    def mistakes(self, logits: np.ndarray, labels: np.ndarray, count: int) -> list[dict[str, Any]]:
        """Return the examples with a wrong label whose labels have the lowest probability."""
        predicted, probabilities = self._predicted(logits), self._probabilities(logits)
        likelihood = np.where(labels > 0, probabilities, 1 - probabilities).prod(axis=1)
        own = np.where(predicted, probabilities, 1 - probabilities)
        wrong = np.flatnonzero((predicted != (labels > 0)).any(axis=1))
        return [
            {
                "index": int(i),
                "label": SEPARATOR.join(self._names(labels[i] > 0)),
                "label_probability": float(likelihood[i]),
                "prediction": SEPARATOR.join(self._names(predicted[i])),
                "probability": float(own[i].prod()),
            }
            for i in wrong[np.argsort(likelihood[wrong], kind="stable")][:count]
        ]

    def support(self, logits: tf.Tensor, of_passages: tf.Tensor) -> tf.Tensor:
        """Return the logit of the most probable label in each passage; see `Task.support`."""
        import tensorflow as tf

        return tf.gather(of_passages, tf.argmax(logits, axis=-1), axis=2, batch_dims=1)

    def head_transform(self) -> tuple[float, float]:
        return 1 / self.decoding.temperature, 0.0

    def serve(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return `logits`, `probabilities` and `predicted` (Boolean), all [batch, labels]."""
        import tensorflow as tf

        probabilities = tf.sigmoid(logits / self.decoding.temperature)
        predicted = probabilities >= tf.constant(_rounded_up(self._thresholds()))
        return {"logits": logits, "probabilities": probabilities, "predicted": predicted}

    def _names(self, applies: np.ndarray) -> list[str]:
        return [name for name, own in zip(self.labels.names, applies, strict=True) if own]

    def _thresholds(self) -> np.ndarray:
        """Return the thresholds [labels] float64."""
        return np.array(self.decoding.thresholds or [0.5] * self.labels.outputs)

    def _predicted(self, logits: np.ndarray) -> np.ndarray:
        """Return whether each label is predicted, [examples, labels] bool."""
        return self._probabilities(logits) >= self._thresholds()

    def _probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities [examples, labels] float32."""
        import tensorflow as tf

        return tf.sigmoid(logits / np.float32(self.decoding.temperature)).numpy()

    def _with(self, temperature: float) -> MultiLabel:
        """Return this task with another temperature."""
        decoding = dataclasses.replace(self.decoding, temperature=temperature)
        return dataclasses.replace(self, decoding=decoding)

    def _loss(self, logits: np.ndarray, labels: np.ndarray) -> float:
        return mean_of(self.losses(logits / np.float32(self.decoding.temperature), labels))

    def _reliability(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """Return `reliability` of all decisions."""
        probabilities = self._probabilities(logits)
        confidences = np.where(probabilities >= 0.5, probabilities, 1 - probabilities)
        correct = (probabilities >= 0.5) == (labels > 0)
        return reliability(confidences.ravel(), correct.ravel())

    def _average_precision(self, logits: np.ndarray, wanted: np.ndarray) -> float:
        """Return the mean average precision of the labels that occur; NaN if logits are."""
        from sklearn import metrics

        occurring = wanted.any(axis=0)
        if not np.isfinite(logits).all() or not occurring.any():
            return float("nan")
        return float(metrics.average_precision_score(wanted[:, occurring], logits[:, occurring]))


def _rounded_up(thresholds: np.ndarray) -> np.ndarray:
    """Return the lowest float32 numbers that reach float64 thresholds."""
    # A threshold lies between two float32 probabilities, which may be neighbors. The same
    # probabilities reach the result, without float64, which TensorFlow Lite cannot compare.
    nearest = thresholds.astype(np.float32)
    return np.where(nearest < thresholds, np.nextafter(nearest, np.float32(np.inf)), nearest)


def _constant_micro_f1(wanted: np.ndarray) -> float:
    """Return the highest micro-F1 of the same prediction for all examples."""
    # Such a prediction consists of the most frequent labels.
    counts = np.sort(wanted.sum(axis=0))[::-1]
    if not counts.any():
        return 0.0
    predicted = len(wanted) * np.arange(1, len(counts) + 1)
    return float((2 * np.cumsum(counts) / (predicted + counts.sum())).max())


def _best_threshold(probabilities: np.ndarray, wanted: np.ndarray) -> float:
    """Return the threshold with the highest F1 of one label."""
    if not wanted.any():
        return 0.5
    order = np.argsort(-probabilities, kind="stable")
    ordered = probabilities[order].astype(np.float64)
    hits = np.cumsum(wanted[order])
    f1 = 2 * hits / (np.arange(1, len(order) + 1) + wanted.sum())
    # Examples with the same probability are predicted together.
    f1[:-1][ordered[:-1] == ordered[1:]] = 0
    last = int(np.argmax(f1))
    following = ordered[last + 1] if last + 1 < len(ordered) else 0.0
    return float((ordered[last] + following) / 2)
