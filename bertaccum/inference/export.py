"""Export of a run's best model to formats that other tools load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf
import tf_keras

from bertaccum.atomic import new_folder, write_text
from bertaccum.bert.huggingface_folder import write_description
from bertaccum.bert.huggingface_weights import save_huggingface
from bertaccum.bert.tokenization_options import tokenization_of
from bertaccum.config import HEAD_TAIL, HUGGINGFACE, TEXTS, TFLITE, ExportConfig, TrainConfig
from bertaccum.errors import RunError, reason
from bertaccum.inference.results import ExportResult
from bertaccum.inference.savedmodel import savedmodel_usage, write_savedmodel
from bertaccum.inference.tflite import tflite_usage, write_tflite
from bertaccum.reporting.model_card import model_card
from bertaccum.reporting.run_paths import RunPaths
from bertaccum.reporting.run_record import read_record, read_run_config
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.tasks.saved_classifier import load_best
from bertaccum.tasks.task import Task

_TRANSFORMERS = """\
```python
from transformers import pipeline

classifier = pipeline("text-classification", "FOLDER")
classifier(ARGUMENTS, truncation=True)
```"""


def _transformers(task: Task, trained: TrainConfig) -> str:
    given = '{"text": "a text", "text_pair": "another text"}' if task.labels.pairs else '"a text"'
    usage = _TRANSFORMERS.replace("ARGUMENTS", f"[{given}]")
    if trained.truncate == HEAD_TAIL:
        usage += (
            "\n\nThe model was trained with the beginning and the end of texts that are too long"
            f" ({100 * trained.head_fraction:g}% of the tokens from the beginning). The tokenizer"
            " of transformers keeps only the beginning."
        )
    thresholds = task.decoding.thresholds
    if not thresholds:
        return usage
    listed = ", ".join(
        f"{name} {threshold:.4f}"
        for name, threshold in zip(task.labels.names, thresholds, strict=True)
    )
    return f"{usage}\n\nPredict a label if its probability reaches its threshold: {listed}."


def export(config: ExportConfig) -> ExportResult:
    """Export a run's best model, completely or not at all.

    Args:
      config: Options that `check_export` has accepted.

    Returns:
      The run, and the format, folder and size of the exported model.

    Raises:
      InputError: The run's files are damaged.
      RunError: The folder cannot be written.
    """
    run, path = RunPaths(Path(config.run)), Path(config.folder)
    trained = read_run_config(run.path)
    model, files, task = load_best(run.best_checkpoint(), trained)
    record = read_record(run.path)
    tokenization = tokenization_of(files.vocabulary, trained)
    with _written(path) as folder:
        if config.format == HUGGINGFACE:
            card = model_card(record, library="transformers", usage=_transformers(task, trained))
            write_huggingface(folder, model, files, task, trained, card)
        elif config.format == TFLITE:
            card = model_card(record, library="tflite", usage=tflite_usage(task, tokenization))
            write_tflite(folder, model, files, task, tokenization, card, config.quantize)
        else:
            texts = config.inputs == TEXTS
            usage = savedmodel_usage(task, tokenization, texts)
            card = model_card(record, library="tensorflow", usage=usage)
            write_savedmodel(folder, model, files, task, tokenization, card, texts)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return ExportResult(run.path.resolve().name, config.format, path, size)


def write_huggingface(
    folder: Path,
    model: tf_keras.Model,
    files: ModelFiles,
    task: Task,
    trained: TrainConfig,
    card: str,
) -> None:
    """Write a BertForSequenceClassification for transformers, with its model card."""
    write_description(
        folder,
        files.encoder,
        tokenization_of(files.vocabulary, trained),
        files.labels.names or ["score"],
        trained.dropout,
        files.labels.task,
    )
    save_huggingface(model, folder, *task.head_transform())
    write_text(folder / "README.md", card)


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """Yield a folder to write to, and rename it to `path` when it is complete.

    Raises:
      RunError: The folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(path) as folder:
            yield folder
    except (OSError, tf.errors.OpError) as error:
        raise RunError(
            f"cannot be written ({reason(error)})",
            "free disk space, or choose another `out`",
            path=path,
        ) from None
