"""Scores and calibration that several tasks share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Number of equally wide bins of the expected calibration error, as in Guo et al. 2017.
BINS = 15
# Range of the temperatures that are tried. Outside of it, probabilities are 0 or 1, or all equal.
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.05, 20.0
# The 95th percentile of the chi-squared distribution with one degree of freedom.
_LIKELIHOOD_RATIO = 3.841


@dataclass(frozen=True)
class ClassScores:
    """The scores of one class or label.

    Args:
      precision: Fraction of the predictions of this class that are right.
      recall: Fraction of the examples with this label that are predicted as this class.
      examples: Number of examples with this label.
    """

    name: str
    precision: float
    recall: float
    f1: float
    examples: int


def class_scores(
    names: list[str], labels: np.ndarray, predictions: np.ndarray
) -> list[ClassScores]:
    """Return the scores of each class.

    Args:
      labels, predictions: Class numbers [examples], or for several labels 0 or 1 [examples,
        classes].
    """
    from sklearn import metrics

    columns = metrics.precision_recall_fscore_support(
        labels, predictions, labels=list(range(len(names))), zero_division=0.0
    )
    return [
        ClassScores(name, float(precision), float(recall), float(f1), int(examples))
        for name, precision, recall, f1, examples in zip(names, *columns, strict=True)
    ]


def mean_of(losses: Any) -> float:
    """Return the mean of a tensor of losses [examples], summed in float64."""
    return float(np.mean(losses, dtype=np.float64))


def reliability(confidences: np.ndarray, correct: np.ndarray) -> dict[str, Any]:
    """Return how well confidences agree with the fraction of predictions that are correct.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks".

    Args:
      confidences: Probability of each prediction, [predictions] from 0 to 1.
      correct: Whether each prediction is correct, [predictions].

    Returns:
      `expected_calibration_error`, and `reliability`: the mean `confidence`, the `accuracy` and the
      number of `examples` of each bin that is not empty.
    """
    bins = np.clip(np.ceil(confidences * BINS).astype(int) - 1, 0, BINS - 1)
    rows, error = [], 0.0
    for number in np.unique(bins):
        own = bins == number
        confidence, accuracy = float(np.mean(confidences[own])), float(np.mean(correct[own]))
        rows.append({"confidence": confidence, "accuracy": accuracy, "examples": int(own.sum())})
        error += abs(confidence - accuracy) * float(np.mean(own))
    return {"expected_calibration_error": error, "reliability": rows}


def fitted_temperature(fit_at: Callable[[float], tuple[float, float]], predictions: int) -> float:
    """Return the temperature with the lowest loss, or 1 if the evidence for it is too weak.

    A few hundred examples can favor a temperature by chance, and it would make other predictions
    worse. The temperature must pass a likelihood-ratio test (Wilks 1938) against 1, and the
    calibration error must be lower than with 1.

    Args:
      fit_at: Returns the mean loss and the calibration error of the logits divided by a
        temperature.
    """
    from scipy import optimize

    bounds = math.log(_MIN_TEMPERATURE), math.log(_MAX_TEMPERATURE)
    found = optimize.minimize_scalar(lambda log: fit_at(math.exp(log))[0], bounds=bounds)
    temperature = math.exp(found.x)
    (loss, error), (loss_at_1, error_at_1) = fit_at(temperature), fit_at(1.0)
    evident = 2 * predictions * (loss_at_1 - loss) > _LIKELIHOOD_RATIO
    return temperature if evident and error < error_at_1 else 1.0
