"""Evaluation of a run's best model on a labeled TSV."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertaccum.atomic import write_text
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.config import EvalConfig
from bertaccum.data.token_store import TokenStore
from bertaccum.data.tokenizing import open_store, store_of_table
from bertaccum.files import json_text, read_mapping
from bertaccum.inference.predictor import Predictor
from bertaccum.inference.results import ClassScores, EvalResult
from bertaccum.planning.device_memory import limit_memory
from bertaccum.progress import Note, Progress, unheard
from bertaccum.reporting.model_card import write_card
from bertaccum.reporting.run_paths import RunPaths
from bertaccum.reporting.run_record import read_run_config
from bertaccum.settings import delimiter_character, size_in_bytes
from bertaccum.tasks.classification import CLASSIFICATION, classification_report
from bertaccum.tasks.model_files import EVALUATION
from bertaccum.tasks.saved_classifier import load_best
from data_prep.table import Reading
from data_prep.tsv import read_tsv


@dataclass(frozen=True)
class Predictions:
    """The predictions of a run's best model for a labeled TSV.

    Args:
      run: Name of the run.
      update: Update at which the best checkpoint was saved, or None if unknown.
      tsv: Path of the TSV.
      store: Token store of the TSV.
      names: Names of the classes.
      logits: Logits [examples, classes], in the order of the TSV.
    """

    run: str
    update: int | None
    tsv: Path
    store: TokenStore
    names: list[str]
    logits: np.ndarray


def predictions(
    config: EvalConfig, tsv: Path, progress: Progress, note: Note = unheard
) -> Predictions:
    """Return the predictions of a run's best model for a labeled TSV.

    Args:
      config: Options, including the run.
      tsv: Path that `evaluated_table` returned.
      progress: Called with the current activity, the number of examples done and the total.
      note: Called with a sentence about how `config.file` is read.

    Raises:
      InputError: The run does not exist, or the TSV is unusable or has missing or unknown labels.
    """
    limit_memory(size_in_bytes("memory_limit", config.memory_limit))
    folder = RunPaths(Path(config.run))
    trained = read_run_config(folder.path)
    best = folder.best_checkpoint()
    model, files = load_best(best)
    if config.file:
        tokenizer = Tokenizer(files.vocabulary, trained.max_seq_length)
        delimiter = delimiter_character(config.delimiter)
        reading = Reading(config.text_column, config.label_column, delimiter, config.encoding)
        table = read_tsv(tsv, reading, note)
        store = store_of_table(table, tsv, files.labels, tokenizer, note)
    else:
        store = open_store(tsv, files.labels, files.vocabulary, trained.max_seq_length, progress)
    logits = Predictor(CLASSIFICATION, model, config.batch)(store, progress)
    update = (read_mapping(best / EVALUATION) or {}).get("update")
    name = folder.path.resolve().name
    return Predictions(name, update, tsv, store, files.labels.names, logits)


def evaluation(found: Predictions) -> EvalResult:
    """Return the scores of predictions."""
    report = classification_report(found.logits, found.store.labels, found.names)
    classes = [ClassScores(**scores) for scores in report.pop("classes")]
    return EvalResult(found.run, found.update, str(found.tsv), classes=classes, **report)


def most_wrong(found: Predictions, count: int) -> list[dict[str, Any]]:
    """Return the misclassified examples whose labels have the lowest probabilities.

    Returns:
      At most `count` examples, worst first, each with its `row` in the TSV, `text`, `label`,
      `prediction`, and the `probability` of the prediction.
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


def write_evaluation(config: EvalConfig, result: EvalResult) -> None:
    """Write the result to `eval-<split>.json` or `eval-file-<name>.json`, and update the card."""
    name = f"file-{Path(config.file).stem}" if config.file else Path(result.data).stem
    folder = RunPaths(Path(config.run))
    write_text(folder.path / f"eval-{name}.json", json_text(dataclasses.asdict(result)))
    write_card(folder.path)
