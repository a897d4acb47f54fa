"""Export of a run's best model to formats that other tools load."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from bertaccum.bert.huggingface_folder import write_description
from bertaccum.bert.pretrained_weights import save_huggingface
from bertaccum.errors import RunError, reason
from bertaccum.inference.results import ExportResult
from bertaccum.inference.savedmodel import write_savedmodel
from bertaccum.inference.tflite import write_tflite
from bertaccum.inference.trained_model import TrainedModel, load_trained
from bertaccum.options.commands import HUGGINGFACE, SAVEDMODEL, TEXTS, TFLITE, ExportConfig
from bertaccum.reporting.model_card import model_card
from bertaccum.reporting.rendering import render
from bertaccum.runs.record import read_record
from bertaccum.system.atomic import new_folder, write_text

# Names that the Hugging Face hub gives to the libraries that load the formats.
_LIBRARIES = {SAVEDMODEL: "tensorflow", HUGGINGFACE: "transformers", TFLITE: "tflite"}


def export(config: ExportConfig) -> ExportResult:
    """Export a run's best model, completely or not at all."""
    path, trained = Path(config.folder), load_trained(Path(config.run))
    usage = render(
        f"usage-{config.format}.md.j2",
        task=trained.task,
        tokenization=trained.tokenization,
        options=trained.config,
        inputs=config.inputs,
    )
    card = model_card(read_record(Path(config.run)), _LIBRARIES[config.format], usage=usage)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(path, existing="refuse") as folder:
            if config.format == HUGGINGFACE:
                write_huggingface(folder, trained, card)
            elif config.format == TFLITE:
                write_tflite(folder, trained, card, config.quantize)
            else:
                write_savedmodel(folder, trained, card, config.inputs == TEXTS)
    except (OSError, tf.errors.OpError) as error:
        raise RunError(
            f"cannot be written ({reason(error)})",
            "free disk space, or choose another `out`",
            path=path,
        ) from None
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
