"""What inference returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Prediction:
    """What a model says of a text.

    Args:
      text: as it was given.
      label: the name of the most probable class.
      probabilities: of each class, by name, in the order of the labels.
    """

    text: str
    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class ClassScores:
    """How well one class is recognised.

    Args:
      name: of the class.
      precision, recall, f1: between 0 and 1.
      examples: number of examples with this label.
    """

    name: str
    precision: float
    recall: float
    f1: float
    examples: int


@dataclass(frozen=True)
class EvalResult:
    """How good a run's best model is on a table.

    Args:
      run: name of the run.
      update: the update that the best checkpoint was saved after; None if unknown.
      data: the table.
      examples: number of rows.
      accuracy, loss, matthews_correlation, macro_f1: over all rows.
      majority_class: the most frequent label.
      majority_accuracy: accuracy of always predicting it.
      only_prediction: the class predicted for every row; None if several are predicted.
      classes: scores of each class, in the order of the labels.
      confusion_matrix: counts; rows are labels, columns are predictions.
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
      run: name of the run.
      format: savedmodel or huggingface.
      folder: where it was written.
      bytes: size of all files.
    """

    run: str
    format: str
    folder: Path
    bytes: int
