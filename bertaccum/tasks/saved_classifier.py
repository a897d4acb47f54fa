"""Loader of the model in a run's best checkpoint."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf
import tf_keras

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.model_source import RUN_PREFIX
from bertaccum.config import StepConfig
from bertaccum.errors import InputError, RunError, reason
from bertaccum.tasks.head import build_classifier
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.tasks.task import Task


def load_best(best: Path, config: StepConfig) -> tuple[tf_keras.Model, ModelFiles, Task]:
    """Load a run's best checkpoint.

    Args:
      best: Folder of the checkpoint, which `RunPaths.best_checkpoint` returned.
      config: Options of the run.

    Returns:
      The model with its weights, the information that it needs in addition to them, and its task.

    Raises:
      InputError: The files are damaged.
      RunError: The model does not fit in memory.
    """
    files = ModelFiles.read(best)
    task = make_task(files.labels, files.decoding)
    try:
        zeros = tf_keras.initializers.Zeros  # Random weights would only be replaced.
        encoder = build_encoder(files.encoder, first_token_only=True, initializer=zeros)
        model = build_classifier(
            encoder, files.encoder, task.outputs, pool=config.pooling, initializer=zeros
        )
        load_run(model, best / RUN_PREFIX)
    except tf.errors.ResourceExhaustedError:
        raise RunError(
            "the model does not fit in memory", "raise `memory_limit`", path=best
        ) from None
    return model, files, task


def load_run(model: tf_keras.Model, path: Path, head: bool = True) -> None:
    """Load the weights of a run's best checkpoint into a classifier.

    Args:
      model: Classifier that `build_classifier` returned.
      path: Prefix of the checkpoint's files.
      head: Whether to load the head as well as the encoder and its pooler.

    Raises:
      InputError: The files are damaged or belong to another model.
      tf.errors.ResourceExhaustedError: The weights do not fit in memory beside the classifier.
    """
    encoder, *heads = _named_layers(model).items()
    parts = [
        {encoder[0]: tf.train.Checkpoint(**{n: layer})}
        for n, layer in _named_layers(encoder[1]).items()
    ]
    parts += [dict([named]) for named in heads] if head else []
    try:
        # Reading all at once would need twice the memory of the model.
        for part in parts:
            whole = tf.train.Checkpoint(model=tf.train.Checkpoint(**part))
            whole.read(str(path)).assert_existing_objects_matched().expect_partial()
    except tf.errors.ResourceExhaustedError:
        raise
    except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:
        raise InputError(
            f"cannot be loaded ({reason(error)})", "train the model again", path=path
        ) from None


def _named_layers(model: tf_keras.Model) -> dict[str, tf_keras.layers.Layer]:
    """Return the layers that have weights, keyed by the names under which tf_keras saves them."""
    layers = [layer for layer in model.layers if layer.weights]
    return {f"layer_with_weights-{number}": layer for number, layer in enumerate(layers)}
