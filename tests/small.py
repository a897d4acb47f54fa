"""A model that trains in no time."""

from __future__ import annotations

from pathlib import Path

from bertaccum.bert.presets import EncoderConfig, write_bert_config


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
