"""Saving and loading: the whole training state, and the best weights with what they need."""

from __future__ import annotations

import shutil

import tensorflow as tf
import tf_keras

from bertaccum.accumulation import AccumulatingOptimizer
from bertaccum.bert.classifier import build_classifier, build_encoder
from bertaccum.errors import InputError
from bertaccum.files import beside
from bertaccum.training.run_folder import ModelFiles, RunFolder

_WEIGHTS = "model.ckpt"
# The last training states that are kept.
_KEPT = 2


def state_saver(
    model: tf_keras.Model, optimizer: AccumulatingOptimizer, folder: RunFolder
) -> tf.train.CheckpointManager:
    """A manager whose `save(update)` keeps weights and optimizer state in `checkpoints/`.

    Saving is for between updates: the accumulators are empty then, and left out.
    """
    state = tf.train.Checkpoint(
        model=model, optimizer=optimizer.inner, skipped_windows=optimizer.skipped_windows
    )
    return tf.train.CheckpointManager(
        state, str(folder.checkpoints), max_to_keep=_KEPT, checkpoint_name="update"
    )


def save_best(model: tf_keras.Model, files: ModelFiles, folder: RunFolder) -> None:
    """Puts the model's weights, and what they need to be used, in `best/`."""
    temporary = beside(folder.best)
    temporary.mkdir()
    try:
        files.write(temporary)
        tf.train.Checkpoint(model=model).write(str(temporary / _WEIGHTS))
        folder.replace_best(temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_best(folder: RunFolder) -> tuple[tf_keras.Model, ModelFiles]:
    """The best model of a run, ready to predict.

    Raises:
      InputError: the run saved none, or its files are damaged.
    """
    if not folder.best.is_dir():
        raise InputError(
            "holds no finished model (best/)", "let its training end first", path=folder.path
        )
    files = ModelFiles.read(folder.best)
    encoder = build_encoder(files.encoder)
    model = build_classifier(encoder, files.encoder, len(files.labels.values))
    path = folder.best / _WEIGHTS
    try:
        status = tf.train.Checkpoint(model=model).read(str(path))
        status.assert_existing_objects_matched().expect_partial()
    except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot be loaded ({reason})", "train again", path=path) from None
    return model, files
