"""A classifier on the disk: its weights, dimensions, vocabulary and classes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import tensorflow as tf
import tf_keras

from bertaccum.atomic import write_text
from bertaccum.bert.bert_config_file import read_bert_config, write_bert_config
from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.model_source import RUN_PREFIX
from bertaccum.bert.vocabulary import read_vocabulary
from bertaccum.data.labels import Labels
from bertaccum.errors import InputError, reason
from bertaccum.files import json_text, read_text
from bertaccum.tasks.classification import build_classifier

# How good the checkpoint was when it was saved.
EVALUATION = "evaluation.json"


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """What a folder of weights needs beside them to be used: dimensions, words, classes."""

    encoder: EncoderConfig
    vocabulary: list[str]
    labels: Labels

    def write(self, folder: Path) -> None:
        write_bert_config(folder / "bert_config.json", self.encoder)
        write_text(folder / "vocab.txt", "\n".join(self.vocabulary) + "\n")
        write_text(folder / "labels.json", json_text(dataclasses.asdict(self.labels)))

    @staticmethod
    def read(folder: Path) -> ModelFiles:
        """Reads what `write` wrote.

        Raises:
          InputError: a file is missing or damaged.
        """
        path = folder / "labels.json"
        try:
            labels = Labels(**json.loads(read_text(path)))
            if not all(isinstance(text, str) for text in [*labels.values, *labels.names]):
                raise ValueError("a label is not text")
            if len(labels.values) != len(labels.names):
                raise ValueError(f"{len(labels.values)} labels, {len(labels.names)} names")
        except (ValueError, TypeError) as error:
            raise InputError(f"is damaged ({error})", "train again", path=path) from None
        encoder = read_bert_config(folder / "bert_config.json")
        vocabulary = read_vocabulary(folder / "vocab.txt")
        if len(vocabulary) != encoder.vocab_size:
            raise InputError(
                f"its vocab.txt has {len(vocabulary)} entries, its model {encoder.vocab_size}",
                "train again",
                path=folder,
            )
        return ModelFiles(encoder, vocabulary, labels)


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
