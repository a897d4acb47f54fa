"""Results of prediction, evaluation and export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for a text.

    Args:
      text: The text, unchanged.
      label: Name of the most probable class.
      probabilities: Probability of each class, keyed by name, in the order of the class numbers.
    """

    text: str
    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class ClassScores:
    """The scores of one class.

    Args:
      name: Name of the class.
      precision: Fraction of the predictions of this class that are right.
      recall: Fraction of the examples with this label that are predicted as this class.
      f1: Harmonic mean of precision and recall.
      examples: Number of examples with this label.
    """

    name: str
    precision: float
    recall: float
    f1: float
    examples: int


@dataclass(frozen=True)
class EvalResult:
    """The scores of a run's best model on a table.

    Args:
      run: Name of the run.
      update: Update at which the best checkpoint was saved, or None if unknown.
      data: Path of the table.
      examples: Number of rows.
      accuracy: Fraction of the rows that are predicted correctly.
      loss: Mean cross-entropy.
      matthews_correlation: Matthews correlation of predictions and labels.
      macro_f1: Mean F1 of the classes that occur or are predicted.
      majority_class: Most frequent label.
      majority_accuracy: Accuracy of always predicting the most frequent label.
      only_prediction: Class predicted for every row, or None if there are several.
      classes: Scores of each class, in the order of the class numbers.
      confusion_matrix: Counts, with labels as rows and predictions as columns.
    """

    run: str
    update: int | None
    data: str
    examples: int
    accuracy: float
    loss: float
    matthews_correlation: float
    macro_f1: float
    majority_class: str
    majority_accuracy: float
    only_prediction: str | None
    classes: list[ClassScores]
    confusion_matrix: list[list[int]]


@dataclass(frozen=True)
class ExportResult:
    """An exported model.

    Args:
      run: Name of the run.
      format: "savedmodel" or "huggingface".
      folder: Folder of the model.
      bytes: Total size of the files.
    """

    run: str
    format: str
    folder: Path
    bytes: int
