"""A classifier from a run's best checkpoint."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf
import tf_keras

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.model_source import RUN_PREFIX
from bertaccum.errors import InputError, reason
from bertaccum.tasks.classification import build_classifier
from bertaccum.tasks.model_files import ModelFiles


def load_best(best: Path) -> tuple[tf_keras.Model, ModelFiles]:
    """Load a run's best checkpoint, ready to predict.

    Args:
      best: its folder, as `RunPaths.best_checkpoint` returns it.

    Raises:
      InputError: its files are damaged.
    """
    files = ModelFiles.read(best)
    encoder = build_encoder(files.encoder)
    model = build_classifier(encoder, files.encoder, len(files.labels.values))
    load_run(model, best / RUN_PREFIX)
    return model, files


def load_run(model: tf_keras.Model, path: Path, head: bool = True) -> None:
    """Give a classifier the weights of a run's best checkpoint.

    Args:
      model: as `build_classifier` returns it.
      path: the checkpoint's prefix.
      head: also load the classifier's head; otherwise encoder and pooler only.

    Raises:
      InputError: the files are damaged, or those of another model.
    """
    # The names under which tf_keras saves a model's layers that have weights.
    names = ("layer_with_weights-0", "layer_with_weights-1")
    layers = [layer for layer in model.layers if layer.weights]
    wanted = dict(zip(names, layers if head else layers[:1], strict=head))
    try:
        whole = tf.train.Checkpoint(model=tf.train.Checkpoint(**wanted))
        whole.read(str(path)).assert_existing_objects_matched().expect_partial()
    except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:
        raise InputError(f"cannot be loaded ({reason(error)})", "train again", path=path) from None
