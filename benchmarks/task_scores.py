"""Scores of a peer's logits, computed with scikit-learn and SciPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import special, stats
from sklearn import metrics

from data_prep.labels.tag_schemes import BIO, entities

BINS = 15
# Suffix of the scores with one threshold per label, fitted on dev.tsv.
FITTED = " (fitted)"


def peer_scores(task: str, logits: Path, names: list[str]) -> dict[str, float]:
    """Return the test scores of a file that `peers/hf_tasks.py` has written.

    The file contains `dev_logits` and `test_logits` [examples, outputs], in the unit of the labels
    for a regression, and `dev_labels` and `test_labels`.

    Args:
      names: Names of the tags, for token classification.
    """
    if task == "token-classification":
        return tags(names, **np.load(logits))
    return {"classification": single, "regression": regression, "multi-label": multi_label}[task](
        **np.load(logits)
    )


def tags(
    names: list[str], test_logits: np.ndarray, test_labels: np.ndarray, **_: np.ndarray
) -> dict[str, float]:
    known, guessed = test_labels >= 0, test_logits.argmax(axis=-1)
    wanted, found = [
        [
            entities([names[n] for n in row[own]], BIO)
            for row, own in zip(numbers, known, strict=True)
        ]
        for numbers in (test_labels, guessed)
    ]
    right = sum(len({*a} & {*b}) for a, b in zip(wanted, found, strict=True))
    total = sum(map(len, wanted)) + sum(map(len, found))
    accuracy = (guessed == test_labels)[known].mean()
    return {"entity_f1": 2 * right / total, "accuracy": float(accuracy)}


def single(test_logits: np.ndarray, test_labels: np.ndarray, **_: np.ndarray) -> dict[str, float]:
    probabilities = special.softmax(test_logits.astype(np.float64), axis=1)
    predicted = probabilities.argmax(axis=1)
    correct = predicted == test_labels
    return {
        "accuracy": float(correct.mean()),
        "macro_f1": float(metrics.f1_score(test_labels, predicted, average="macro")),
        "expected_calibration_error": calibration_error(probabilities.max(axis=1), correct),
    }


def calibration_error(confidences: np.ndarray, correct: np.ndarray) -> float:
    """Return the expected calibration error over bins of equal width (Guo et al. 2017)."""
    bins = np.digitize(confidences, np.linspace(0, 1, BINS + 1)[1:-1], right=True)
    sums = [np.bincount(bins, values, BINS) for values in (confidences, correct)]
    return float(np.abs(sums[0] - sums[1]).sum() / len(correct))


def regression(
    test_logits: np.ndarray, test_labels: np.ndarray, **_: np.ndarray
) -> dict[str, float]:
    predicted = test_logits[:, 0].astype(np.float64)
    return {
        "pearson": float(stats.pearsonr(predicted, test_labels).statistic),
        "spearman": float(stats.spearmanr(predicted, test_labels).statistic),
        "mse": float(np.mean((predicted - test_labels) ** 2)),
    }


def multi_label(
    dev_logits: np.ndarray, dev_labels: np.ndarray, test_logits: np.ndarray, test_labels: np.ndarray
) -> dict[str, float]:
    cuts = [cut_of(own, wanted) for own, wanted in zip(dev_logits.T, dev_labels.T, strict=True)]
    present = test_labels.any(axis=0)
    precision = metrics.average_precision_score(test_labels[:, present], test_logits[:, present])
    return {
        **f1_scores(test_labels, test_logits >= 0),
        "average_precision": float(precision),
        **{k + FITTED: v for k, v in f1_scores(test_labels, test_logits >= cuts).items()},
    }


def cut_of(logits: np.ndarray, wanted: np.ndarray) -> float:
    """Return the logit from which predicting a label has the highest F1; 0 if it never applies."""
    if not wanted.any():
        return 0.0
    precision, recall, cuts = metrics.precision_recall_curve(wanted, logits)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return float(cuts[f1[:-1].argmax()])


def f1_scores(wanted: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    return {
        f"{average}_f1": float(
            metrics.f1_score(wanted, predicted, average=average, zero_division=0.0)
        )
        for average in ("micro", "macro")
    }
