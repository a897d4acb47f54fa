"""Export of a run's best model to formats that other tools load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from bertaccum.atomic import new_folder, write_text
from bertaccum.bert.huggingface_folder import write_description
from bertaccum.bert.huggingface_weights import save_huggingface
from bertaccum.config import HEAD_TAIL, HUGGINGFACE, TEXTS, TFLITE, ExportConfig
from bertaccum.errors import RunError, reason
from bertaccum.inference.results import ExportResult
from bertaccum.inference.savedmodel import savedmodel_usage, write_savedmodel
from bertaccum.inference.tflite import tflite_usage, write_tflite
from bertaccum.inference.trained_model import TrainedModel, load_trained
from bertaccum.reporting.model_card import model_card
from bertaccum.reporting.run_record import read_record

_TRANSFORMERS = """\
```python
from transformers import pipeline

classifier = pipeline("text-classification", "FOLDER")
classifier(ARGUMENTS, truncation=True)
```"""


def _transformers(trained: TrainedModel) -> str:
    task, config = trained.task, trained.config
    given = '{"text": "a text", "text_pair": "another text"}' if task.labels.pairs else '"a text"'
    usage = _TRANSFORMERS.replace("ARGUMENTS", f"[{given}]")
    if config.truncate == HEAD_TAIL:
        usage += (
            "\n\nThe model was trained with the beginning and the end of texts that are too long"
            f" ({100 * config.head_fraction:g}% of the tokens from the beginning). The tokenizer"
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
    path, trained = Path(config.folder), load_trained(Path(config.run))
    record = read_record(Path(config.run))
    with _written(path) as folder:
        if config.format == HUGGINGFACE:
            card = model_card(record, library="transformers", usage=_transformers(trained))
            write_huggingface(folder, trained, card)
        elif config.format == TFLITE:
            card = model_card(record, library="tflite", usage=tflite_usage(trained))
            write_tflite(folder, trained, card, config.quantize)
        else:
            texts = config.inputs == TEXTS
            usage = savedmodel_usage(trained, texts)
            card = model_card(record, library="tensorflow", usage=usage)
            write_savedmodel(folder, trained, card, texts)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return ExportResult(trained.run, config.format, path, size)


def write_huggingface(folder: Path, trained: TrainedModel, card: str) -> None:
    """Write a BertForSequenceClassification for transformers, with its model card."""
    labels = trained.files.labels
    write_description(
        folder,
        trained.files.encoder,
        trained.tokenization,
        labels.names or ["score"],
        trained.config.dropout,
        labels.task,
    )
    save_huggingface(trained.model, folder, *trained.task.head_transform())
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
