"""The best model of a run, with everything that its use requires."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf
import tf_keras

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.model_source import RUN_PREFIX
from bertaccum.bert.precision import FLOAT32, building_in
from bertaccum.bert.tokenization import Tokenization, tokenization_of
from bertaccum.distribution.device_memory import variable_if_memory_is_left
from bertaccum.errors import InputError, RunError
from bertaccum.options.commands import TrainConfig
from bertaccum.runs.paths import RunPaths
from bertaccum.runs.record import read_run_config
from bertaccum.tasks.head import build_task_model, load_run, output_tokens
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.model_files import ModelFiles, saved_update
from bertaccum.tasks.task import Task

# Number of times to load a model that the run replaces meanwhile.
_ATTEMPTS = 3
# Device and inode of the folder of a best checkpoint, and the update at which it was saved.
_Identity: TypeAlias = tuple[int, int, int | None]


@dataclass(frozen=True)
class TrainedModel:
    """The best model of a run."""

    run: str
    config: TrainConfig  # Options of the run.
    folder: Path  # Folder of the best checkpoint.
    model: tf_keras.Model  # Classifier that `build_classifier` returned, with its weights.
    files: ModelFiles  # Information that the model needs in addition to its weights.
    task: Task  # Task of the model.
    update: int | None  # Update at which the checkpoint was saved, or None if unknown.
    identity: _Identity  # Distinguishes the folder from one that replaces it.

    @property
    def tokenization(self) -> Tokenization:
        """How the model's texts become tokens."""
        return tokenization_of(self.files.vocabulary, self.config)

    @property
    def is_replaced(self) -> bool:
        """Whether the run has replaced the folder since the model was loaded."""
        return _identity(self.folder) != self.identity


def load_trained(run: Path, merged: bool = True) -> TrainedModel:
    """Load the best model of a run, to be computed in float32; the run may replace it meanwhile.

    Args:
      merged: Whether adapters are added to the kernels, so that the model has none.

    Raises:
      RunError: The model does not fit in memory, or the run replaces it again and again.
    """
    for _ in range(_ATTEMPTS):
        if (trained := _load_unless_replaced(run, merged)) is not None:
            return trained
    raise RunError("the run replaced its best checkpoint meanwhile", "try again", path=run)


def _load_unless_replaced(run: Path, merged: bool) -> TrainedModel | None:
    """Load the best model of a run; return None if the run has replaced it meanwhile."""
    best = RunPaths(run).best_checkpoint()
    if (identity := _identity(best)) is None:
        return None
    try:
        trained = _load(run, best, identity, merged)
    except (InputError, OSError):
        if _identity(best) == identity:
            raise
        return None
    return None if trained.is_replaced else trained


def _identity(best: Path) -> _Identity | None:
    """Return what distinguishes a folder from one that replaces it; None if it is missing."""
    try:
        found = best.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, saved_update(best)


def _load(run: Path, best: Path, identity: _Identity, merged: bool) -> TrainedModel:
    config = read_run_config(run)
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
    name, update = run.resolve().name, identity[-1]
    return TrainedModel(name, config, best, model, files, task, update, identity)
