"""A model, and a task for it, that trains in no time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tf_keras

from bertaccum.bert.bert_config_file import write_bert_config
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.vocabulary import SPECIAL_TOKENS


def write_small_model(path: Path, vocabulary: Path, **dimensions: int) -> Path:
    """A bert_config.json of an encoder of one thin layer, for a vocabulary."""
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
    """Makes a folder of TSVs of so many reviews, a vocabulary and a model's bert_config.json."""
    folder.mkdir()
    words = ["the", "food", "was", "very", "good", "bad"]
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
    for name, count in rows.items():
        lines = [
            f"{i % 2}\tthe food was {'very ' * (i % 5)}{words[4 + i % 2]}" for i in range(count)
        ]
        (folder / f"{name}.tsv").write_text("\n".join(["label\ttext", *lines]) + "\n")
    return write_small_model(folder / "bert_config.json", folder / "vocab.txt")


# With larger weights there, logits depend on the text, and not only on [CLS].
_LARGER = {"logits/kernel": 3.0, "value/kernel": 2.0, "attention_output/kernel": 2.0}


def scatter(model: tf_keras.Model) -> tf_keras.Model:
    """Gives a classifier weights none of which is 0, or 1, or another's."""
    rng = np.random.default_rng(3)
    for weight in model.weights:
        spread = next((s for part, s in _LARGER.items() if part in weight.name), 0.5)
        weight.assign(rng.normal(0.1, spread, weight.shape))
    return model
