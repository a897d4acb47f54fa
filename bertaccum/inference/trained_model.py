"""The best model of a run, with everything that its use requires."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf
import tf_keras

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.model_source import RUN_PREFIX
from bertaccum.bert.precision import FLOAT32, building_in
from bertaccum.bert.tokenization import Tokenization, tokenization_of
from bertaccum.distribution.device_memory import variable_if_memory_is_left
from bertaccum.errors import RunError
from bertaccum.options.commands import TrainConfig
from bertaccum.runs.paths import RunPaths
from bertaccum.runs.record import read_run_config
from bertaccum.tasks.head import build_task_model, load_run, output_tokens
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.model_files import ModelFiles, saved_update
from bertaccum.tasks.task import Task


@dataclass(frozen=True)
class TrainedModel:
    """The best model of a run."""

    run: str
    config: TrainConfig  # Options of the run.
    folder: Path  # Folder of the best checkpoint.
    model: tf_keras.Model  # Classifier that `build_classifier` returned, with its weights.
    files: ModelFiles  # Information that the model needs in addition to its weights.
    task: Task  # Task of the model.

    @property
    def tokenization(self) -> Tokenization:
        """How the model's texts become tokens."""
        return tokenization_of(self.files.vocabulary, self.config)

    @property
    def update(self) -> int | None:
        """The update at which the best checkpoint was saved, or None if unknown."""
        return saved_update(self.folder)


def load_trained(run: Path, merged: bool = True) -> TrainedModel:
    """Load the best model of a run, to be computed in float32.

    Args:
      merged: Whether adapters are added to the kernels, so that the model has none.

    Raises:
      RunError: The model does not fit in memory.
    """
    config, best = read_run_config(run), RunPaths(run).best_checkpoint()
    files = ModelFiles.read(best)
    task = make_task(files.labels, files.decoding)
    try:
        zeros = tf_keras.initializers.Zeros  # Random weights would only be replaced.
        with building_in(FLOAT32), tf.variable_creator_scope(variable_if_memory_is_left):
            encoder = build_encoder(files.encoder, 0.0, output_tokens(config), zeros)
            outputs = files.labels.outputs
            model = build_task_model(config, encoder, files.encoder, outputs, initializer=zeros)
        load_run(model, best / RUN_PREFIX, merged=merged)
    except tf.errors.ResourceExhaustedError:
        raise RunError(
            "the model does not fit in memory", "raise `memory_limit`", path=best
        ) from None
    return TrainedModel(run.resolve().name, config, best, model, files, task)
