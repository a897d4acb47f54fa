"""How good a model is on a TSV: accuracy, loss, per-class scores, confusion, Matthews."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tf_keras

from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.config import EvalConfig
from bertaccum.data.token_store import TokenStore, open_store, store_of_table
from bertaccum.inference.predictor import Predictor
from bertaccum.planning.device_memory import limit_memory
from bertaccum.progress import Note, Progress, unheard
from bertaccum.reporting.run_record import read_run_config
from bertaccum.settings import delimiter_character, size_in_bytes
from bertaccum.training.checkpoints import best_evaluation, load_best
from bertaccum.training.preflight import evaluated_table
from bertaccum.training.run_folder import RunFolder
from data_prep.table import Reading
from data_prep.tsv import read_tsv


@dataclass(frozen=True)
class Predictions:
    """What the best model of a run makes of a labelled TSV.

    Args:
      run: the run's name.
      update: after which its best model was as it is; None where that is not known any more.
      tsv: what was predicted.
      store: its examples.
      names: of the classes.
      logits: [examples, classes], in the order of the TSV.
    """

    run: str
    update: int | None
    tsv: Path
    store: TokenStore
    names: list[str]
    logits: np.ndarray


def evaluate(config: EvalConfig, progress: Progress, note: Note = unheard) -> dict[str, Any]:
    """Evaluates the best model of a run: `evaluation` of `predictions`."""
    return evaluation(predictions(config, progress, note))


def predictions(config: EvalConfig, progress: Progress, note: Note = unheard) -> Predictions:
    """Has the best model of a run predict a labelled TSV.

    Args:
      config: which run and which TSV.
      progress: called with what is being done, how much is done, and the total.
      note: is told how `config.file` is written.

    Raises:
      InputError: no such run, or a TSV that is unusable, unlabelled, or has unknown labels.
    """
    limit_memory(size_in_bytes("--memory-limit", config.memory_limit))
    folder = RunFolder(Path(config.run))
    trained = read_run_config(folder.path)
    tsv = evaluated_table(config)
    model, files = load_best(folder)
    if config.file:
        tokenizer = Tokenizer(files.vocabulary, trained.max_seq_length)
        store = store_of_table(_read(config, tsv, note), tsv, files.labels, tokenizer, note)
    else:
        store = open_store(tsv, files.labels, files.vocabulary, trained.max_seq_length, progress)
    logits = Predictor(model, config.batch)(store, progress)
    name, best = folder.path.resolve().name, best_evaluation(folder)
    update = None if best is None else best.update
    return Predictions(name, update, tsv, store, files.labels.names, logits)


def _read(config: EvalConfig, path: Path, note: Note) -> pd.DataFrame:
    delimiter = delimiter_character(config.delimiter)
    reading = Reading(config.text_column, config.label_column, delimiter, config.encoding)
    return read_tsv(path, reading, note)


def evaluation(found: Predictions) -> dict[str, Any]:
    """Return `classification_report`, with `run`, `update` and `data`."""
    return {
        "run": found.run,
        "update": found.update,
        "data": str(found.tsv),
        **classification_report(found.logits, found.store.labels, found.names),
    }


def most_wrong(found: Predictions, count: int) -> list[dict[str, Any]]:
    """The examples whose own label the model holds least likely, of those that it got wrong.

    Returns:
      `row` of the TSV, `text`, `label`, `prediction`, and `probability`, which the model gave
      its prediction; the worst first, at most `count`.
    """
    labels, guesses = found.store.labels, np.argmax(found.logits, axis=1)
    shifted = found.logits - found.logits.max(axis=1, keepdims=True)
    probabilities = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
    own = probabilities[np.arange(len(labels)), labels]
    wrong = np.flatnonzero(guesses != labels)
    worst = wrong[np.argsort(own[wrong], kind="stable")][:count]
    table = read_tsv(found.tsv)
    return [
        {
            "row": int(table["row"].iloc[i]),
            "text": str(table["text"].iloc[i]),
            "label": found.names[labels[i]],
            "prediction": found.names[guesses[i]],
            "probability": float(probabilities[i, guesses[i]]),
        }
        for i in worst
    ]


def write_evaluation(config: EvalConfig, result: dict[str, Any]) -> None:
    """Keeps the result as `eval-<split>.json`, or `eval-file-<name>.json`, and in the card."""
    name = f"file-{Path(config.file).stem}" if config.file else Path(result["data"]).stem
    folder = RunFolder(Path(config.run))
    folder.write_json(folder.path / f"eval-{name}.json", result)
    folder.write_card()


def mean_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean cross-entropy of `logits` [examples, classes] against `labels` [examples]."""
    losses = tf_keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return float(np.mean(losses, dtype=np.float64))


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Share of examples whose largest logit is their label's."""
    return float(np.mean(np.argmax(logits, axis=1) == labels))


def matthews(logits: np.ndarray, labels: np.ndarray) -> float:
    """Matthews correlation of predictions and `labels` [examples]; 0 if all are of one class.

    Source: Matthews 1975; for more than two classes, Gorodkin 2004.
    """
    from sklearn import metrics

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # That there is one class only.
        return float(metrics.matthews_corrcoef(labels, np.argmax(logits, axis=1)))


def macro_f1(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean F1 of the classes that occur in `labels` [examples] or are predicted."""
    from sklearn import metrics

    predictions = np.argmax(logits, axis=1)
    return float(metrics.f1_score(labels, predictions, average="macro", zero_division=0.0))


def scores(logits: np.ndarray, labels: np.ndarray, names: list[str]) -> dict[str, Any]:
    """Return what every evaluation holds, during training and after.

    Args:
      logits: [examples, classes].
      labels: [examples] class numbers.
      names: the classes' names.

    Returns:
      `examples`, `accuracy`, `loss`, `matthews_correlation`, `macro_f1`; `majority_class` and
      `majority_accuracy`, the most frequent label and the accuracy of always predicting it; and
      `only_prediction`, the class that is predicted for every example, None if there are several.
    """
    counts = np.bincount(labels, minlength=len(names))
    predicted = np.unique(np.argmax(logits, axis=1))
    return {
        "examples": len(labels),
        "accuracy": accuracy(logits, labels),
        "loss": mean_loss(logits, labels),
        "matthews_correlation": matthews(logits, labels),
        "macro_f1": macro_f1(logits, labels),
        "majority_class": names[counts.argmax()],
        "majority_accuracy": float(counts.max() / len(labels)),
        "only_prediction": names[predicted[0]] if len(predicted) == 1 else None,
    }


def classification_report(
    logits: np.ndarray, labels: np.ndarray, names: list[str]
) -> dict[str, Any]:
    """Return `scores`, and what they are made of, in plain numbers.

    Args:
      logits: [examples, classes].
      labels: [examples] class numbers.
      names: the classes' names.

    Returns:
      As `scores`, and `classes` (name, precision, recall, f1 and examples of each) and
      `confusion_matrix` (rows: label, columns: prediction).
    """
    from sklearn import metrics

    predictions, numbers = np.argmax(logits, axis=1), range(len(names))
    of_classes = metrics.precision_recall_fscore_support(
        labels, predictions, labels=list(numbers), zero_division=0.0
    )
    keys = ("precision", "recall", "f1")
    return {
        **scores(logits, labels, names),
        "classes": [
            {"name": names[i]}
            | {k: float(s[i]) for k, s in zip(keys, of_classes, strict=False)}
            | {"examples": int(of_classes[3][i])}
            for i in numbers
        ],
        "confusion_matrix": metrics.confusion_matrix(
            labels, predictions, labels=list(numbers)
        ).tolist(),
    }
