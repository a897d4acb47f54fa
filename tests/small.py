"""A small model and a small task, which train within a second."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from official.nlp.tools.tf1_bert_checkpoint_converter_lib import BERT_V2_NAME_REPLACEMENTS

from bertaccum.bert.encoder_config import EncoderConfig, write_bert_config
from bertaccum.bert.pretrained_weights import original_shape
from bertaccum.bert.vocabulary import SPECIAL_TOKENS
from bertaccum.tasks.classification import Classification
from bertaccum.tasks.labels import Labels

# An encoder that takes milliseconds for an update.
TINY = EncoderConfig(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    vocab_size=50,
    max_position_embeddings=32,
)
# The same with one layer: trainings, most of whose time is tracing, take two thirds as long.
ONE_LAYER = dataclasses.replace(TINY, num_hidden_layers=1)
# A task with two classes.
CLASSIFICATION = Classification(Labels.numbered(2))


def write_small_model(path: Path, vocabulary: Path, **dimensions: int) -> Path:
    """Write the bert_config.json of an encoder with one small layer, and return its path.

    Args:
      path: The file to write.
      vocabulary: The vocabulary file, which decides the vocabulary size.
      **dimensions: Fields of `EncoderConfig` that replace the defaults here.
    """
    words = len(vocabulary.read_text(encoding="utf-8").splitlines())
    values = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 64,
    }
    write_bert_config(path, EncoderConfig(vocab_size=words, **(values | dimensions)))
    return path


def write_small_task(folder: Path, **rows: int) -> Path:
    """Write a data folder with a vocabulary and a bert_config.json, and return the latter's path.

    Args:
      folder: The folder to create.
      **rows: The number of reviews in each TSV, by its name without extension.
    """
    folder.mkdir()
    words = ["the", "food", "was", "very", "good", "bad"]
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
    for name, count in rows.items():
        lines = [
            f"{i % 2}\tthe food was {'very ' * (i % 5)}{words[4 + i % 2]}" for i in range(count)
        ]
        (folder / f"{name}.tsv").write_text("\n".join(["label\ttext", *lines]) + "\n")
    return write_small_model(folder / "bert_config.json", folder / "vocab.txt")


def copied(trained: Path, target: Path) -> Path:
    """Copy the folder of the fixture `trained`, and return the copy, whose run has its own data."""
    shutil.copytree(trained, target, symlinks=True, dirs_exist_ok=True)
    config = target / "runs/one/config.yaml"
    config.write_text(config.read_text().replace(str(trained), str(target)))
    return target


def run_isolated(code: str, *arguments: object) -> Any:
    """Run a script that sees neither the tests nor the folder, and return the JSON it prints.

    As for users of a library, `tf.keras` is Keras 3.
    """
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TF_USE_LEGACY_KERAS": "0"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_google_checkpoint(encoder: tf_keras.Model, prefix: Path) -> None:
    """Write the weights of an encoder in Google's format."""
    tensors = {}
    for variable in encoder.weights:
        name = variable.name.removesuffix(":0")
        for original, ours in reversed(BERT_V2_NAME_REPLACEMENTS):
            name = name.replace(ours, original) if ours else name
        tensors[name] = variable.numpy().reshape(original_shape(variable))
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )


# With larger weights in these layers, the logits depend on the whole text, not only on [CLS].
_LARGER = {"logits/kernel": 3.0, "value/kernel": 2.0, "attention_output/kernel": 2.0}


def scatter(model: tf_keras.Model) -> tf_keras.Model:
    """Set all weights of a classifier to different random values, and return the classifier."""
    rng = np.random.default_rng(3)
    for weight in model.weights:
        spread = next((s for part, s in _LARGER.items() if part in weight.name), 0.5)
        weight.assign(rng.normal(0.1, spread, weight.shape))
    return model


class Notes:
    """A `Progress` that keeps the messages for the user, as the views of the command line do."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, what: str, done: int, total: int | None) -> None:
        pass

    def note(self, line: str) -> None:
        self.lines.append(line)


def flip_a_bit(path: Path) -> None:
    """Change one bit in the middle of a file, without changing its size or its time."""
    raw, times = bytearray(path.read_bytes()), path.stat()
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def truncate(path: Path) -> None:
    """Remove the second half of a file."""
    os.truncate(path, path.stat().st_size // 2)


# Kinds of damage to a file in the cache.
DAMAGES = (flip_a_bit, truncate, Path.unlink)
