"""Evaluation of a run's best model on a labeled TSV."""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.data.run_inputs import note_reading, tsvs_to_train_on
from bertaccum.data.token_store import TokenStore
from bertaccum.data.tokenizing import open_store, store_of_table
from bertaccum.distribution.device_memory import limit_memory
from bertaccum.errors import ConfigError, RunError
from bertaccum.inference.predictor import Predictor, deciding_windows
from bertaccum.inference.results import EvalResult
from bertaccum.inference.tflite import Int8Predictor
from bertaccum.inference.trained_model import TrainedModel, load_trained
from bertaccum.options.commands import FITTED, HALF, INT8, EvalConfig
from bertaccum.options.fields import column_names, size_in_bytes
from bertaccum.options.task_names import MULTI_LABEL, TOKEN_CLASSIFICATION
from bertaccum.reporting.model_card import write_card
from bertaccum.runs.paths import RunPaths
from bertaccum.system.atomic import write_text
from bertaccum.system.files import json_digest, json_text, read_mapping, sha256
from bertaccum.system.phrases import listed
from bertaccum.system.progress import Note, Progress, ignore_note
from bertaccum.tasks.kinds import check_options, make_task
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.tasks.task import Task
from data_prep.tables.columns import PAIR, TEXT, read_options
from data_prep.tables.manifest import is_prepared, original_of
from data_prep.tables.spellings import class_finder
from data_prep.tables.tsv import read_tsv
from data_prep.tables.words import separated_words

# Number of texts whose predictions are timed, and of those before them.
_TIMED, _WARM = 50, 5


@dataclass(frozen=True)
class Predictions:
    """The predictions of a run's best model for a labeled TSV."""

    run: str
    update: int | None  # Update at which the best checkpoint was saved, or None if unknown.
    tsv: Path
    store: TokenStore
    task: Task  # Task of the model.
    logits: np.ndarray  # Logits [examples, outputs], in the order of the TSV.
    # Which window of each text decided, as `deciding_windows` returned it.
    windows: list[dict[str, int]]
    # Size and latency, if requested; and the quantization, if any.
    speed: dict[str, Any] = field(default_factory=dict)


def predictions(
    config: EvalConfig, tsv: Path, progress: Progress, note: Note = ignore_note
) -> Predictions:
    """Return the predictions of a run's best model for a labeled TSV."""
    limit_memory(size_in_bytes("memory_limit", config.memory_limit))
    trained = load_trained(Path(config.run))
    if not config.file or config.calibrate or config.thresholds == FITTED:
        _note_changed_data(config, Path(trained.config.data), note)
    task = _fitted(config, trained, progress)
    if config.strict:
        check_options(task, ["strict"])
        task = dataclasses.replace(task, strict=True)  # type: ignore[type-var]
    if config.label_form:
        check_options(task, ["label_form"])
    if config.label_separator is not None and not config.label_columns:
        check_options(task, ["label_separator"])
    if not config.file or is_prepared(tsv):
        note_reading([tsv], note)
    if config.file:
        kind = task.labels.task
        several, words = kind == MULTI_LABEL, kind == TOKEN_CLASSIFICATION
        if several:
            _check_label_columns(config, task, tsv)
        original = None if is_prepared(tsv) else original_of(tsv, Path(trained.config.data))
        of_file = {"words": words, "as_prepared": original is not None}
        reading = read_options(config, several_labels=several, **of_file)
        table, tokenizer = read_tsv(tsv, reading, note), Tokenizer(trained.tokenization)
        form = original, config.label_form
        store = store_of_table(table, tsv, task, tokenizer, note, config.label_separator, *form)
    else:
        store = open_store(tsv, task, trained.tokenization, progress)
    predictor = (Int8Predictor if config.quantize == INT8 else Predictor)(
        trained.model, config.batch
    )
    logits = predictor.with_passages(store, progress)
    windows = deciding_windows(task, store, logits)
    speed = _speed(predictor, store) if config.latency and len(store) else {}
    speed |= {"quantize": config.quantize} if config.quantize == INT8 else {}
    if task.decoding != trained.files.decoding:
        if trained.is_replaced:
            what = "the run saved a better model meanwhile, to which the fitted values do not apply"
            raise RunError(what, "run `bertaccum eval` again", path=trained.folder)
        if ModelFiles.read(trained.folder).decoding != trained.files.decoding:
            what = "another evaluation fitted or removed values meanwhile, which would be lost"
            raise RunError(what, "run `bertaccum eval` again", path=trained.folder)
        files = dataclasses.replace(trained.files, decoding=task.decoding)
        files.write_decoding(trained.folder)
    return Predictions(trained.run, trained.update, tsv, store, task, logits[:, 0], windows, speed)


def _check_label_columns(config: EvalConfig, task: Task, tsv: Path) -> None:
    """Check that each label has a column: one without a column would apply to no row."""
    columns = column_names(config.label_columns)
    find, numbered = class_finder(columns), sum(map(str.isdecimal, columns))
    missing = [label for label in task.labels.names if find(label) is None]
    # A column that is given by its number may have any name.
    if columns and len(missing) > numbered:
        what = f"`label_columns` {config.label_columns} lacks labels of the run"
        remedy = f"name a column for each of them, also for {listed(missing, 10)}"
        raise ConfigError(what, remedy, path=tsv)


def _note_changed_data(config: EvalConfig, data: Path, note: Note) -> None:
    """Note that a data folder was prepared again, perhaps with another split, since a run began."""
    began = read_mapping(RunPaths(Path(config.run)).inputs) or {}
    tsvs = [tsv for tsv in (data / "train.tsv", data / "dev.tsv") if tsv.is_file()]
    changed = [tsv.name for tsv in tsvs if began.get(tsv.name) not in (None, sha256(tsv))]
    if changed:
        what = f"{data}: {' and '.join(changed)} changed since the run began"
        note(f"{what}, so the model may have been trained on rows that it is evaluated on")


def _speed(predictor: Predictor | Int8Predictor, store: TokenStore) -> dict[str, Any]:
    """Return the size of a model, and the median time to predict one of the texts in a store."""
    rows, seconds = np.linspace(0, len(store) - 1, _TIMED).astype(int), []
    for row in [*rows[:_WARM], *rows]:
        begin = time.perf_counter()
        predictor.predict(store, np.array([row]))
        seconds.append(time.perf_counter() - begin)
    return {
        "model_bytes": predictor.bytes,
        "milliseconds_per_text": 1000 * statistics.median(seconds[_WARM:]),
    }


def _fitted(config: EvalConfig, trained: TrainedModel, progress: Progress) -> Task:
    """Fit or remove what the options request."""
    task = trained.task
    requested = [n for n in ("calibrate", "thresholds") if getattr(config, n) is not None]
    if not requested:
        return task
    check_options(task, requested)
    decoding = task.decoding
    if config.calibrate is False:
        decoding = decoding.uncalibrated()
    if config.thresholds == HALF:
        decoding = dataclasses.replace(decoding, thresholds=None)
    if config.calibrate or config.thresholds == FITTED:
        dev = tsvs_to_train_on(Path(trained.config.data))[1]
        store = open_store(dev, task, trained.tokenization, progress)
        logits = Predictor(trained.model, config.batch)(store, progress)
        wanted = bool(config.calibrate), config.thresholds == FITTED
        decoding = make_task(task.labels, decoding).fit_decoding(logits, store.labels, *wanted)
    return make_task(task.labels, decoding)


def evaluation(predicted: Predictions) -> EvalResult:
    """Return the scores of predictions."""
    scores = predicted.task.report(predicted.logits, predicted.store.labels) | predicted.speed
    scores |= {"strict": True} if getattr(predicted.task, "strict", False) else {}
    if any(predicted.windows):
        deciding = [one["window"] for one in predicted.windows]
        most = max(one["windows"] for one in predicted.windows)
        scores["deciding_windows"] = np.bincount(deciding, minlength=most + 1)[1:].tolist()
    return EvalResult(
        predicted.run, predicted.update, str(predicted.tsv), predicted.task.labels.task, scores
    )


def most_wrong(predicted: Predictions, count: int) -> list[dict[str, Any]]:
    """Return at most `count` of the wrong predictions, worst first.

    Returns:
      For each, its `row` in the TSV, its `text`, and the items of `Task.mistakes` and `windows`.
    """
    table = read_tsv(predicted.tsv)
    texts = table[[name for name in (TEXT, PAIR) if name in table]].agg(" | ".join, axis=1)
    wrong = predicted.task.mistakes(predicted.logits, predicted.store.labels, count)
    indices = [one.pop("index") for one in wrong]
    return [
        {
            "row": int(table["row"].iloc[index]),
            "text": _marked(texts.iloc[index], one.pop("word", None)),
            **one,
            **predicted.windows[index],
        }
        for index, one in zip(indices, wrong, strict=True)
    ]


def _marked(text: str, word: int | None) -> str:
    """Return a text with arrows around the word with a number; None marks no word."""
    if word is None:
        return text
    words = separated_words(text)
    words[word] = f"→{words[word]}←"
    return " ".join(words)


def write_evaluation(config: EvalConfig, result: EvalResult) -> None:
    """Write the result to `eval-<split>.json` or `eval-file-<name>.json`, and update the card."""
    name = f"file-{Path(config.file).stem}" if config.file else Path(result.data).stem
    mode = f"-{INT8}" if config.quantize == INT8 else ""
    mode += "-strict" if config.strict else ""
    folder = RunPaths(Path(config.run))
    path, record = folder.path / f"eval-{name}{mode}.json", result.record()
    if config.file:
        # A relative path names another file in another working folder.
        record["data"] = data = str(Path(result.data).resolve())
        # Files in other folders, or of other formats, may have the same name.
        known = (read_mapping(path) or {}).get("data", data)
        if str(Path(str(known)).resolve()) != data:
            path = folder.path / f"eval-{name}-{json_digest(data)[:8]}{mode}.json"
    write_text(path, json_text(record))
    write_card(folder.path)
