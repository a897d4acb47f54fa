"""A model as a function of token IDs, for programs that tokenize texts themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.bert.model_inputs import encoder_inputs
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.vocabulary import SPECIAL_TOKENS
from bertaccum.system.atomic import write_text
from bertaccum.system.files import json_text
from bertaccum.tasks.task import Task

INPUTS = ("token_ids", "segment_ids", "padding_mask")
_DESCRIPTION = "model.json"
_SHAPE = ["batch", "length"]


def function_of_tokens(
    model: tf_keras.Model, task: Task, strings: bool
) -> tf.types.experimental.PolymorphicFunction:
    """Return a `tf.function` that maps tokens to the outputs of `Task.serve`.

    Its inputs are those of `INPUTS`, [batch, length] int32. Batch and length may differ between
    calls; the length must be at least 1. `segment_ids` are 1 for the second text of a pair and its
    [SEP], otherwise 0. `padding_mask` is 1 for tokens and 0 for padding.

    Args:
      model: Classifier that `build_classifier` returned, which reads each text in one passage.
      strings: Whether to return outputs that are strings.
    """
    specs = [tf.TensorSpec([None, None], tf.int32, name=name) for name in INPUTS]

    # AutoGraph would convert every layer before the export.
    @tf.function(input_signature=specs, autograph=False)
    def serve(
        token_ids: tf.Tensor, segment_ids: tf.Tensor, padding_mask: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        logits = model(encoder_inputs(token_ids, padding_mask, segment_ids), training=False)
        outputs = task.serve(tf.cast(logits, tf.float32))
        return {n: value for n, value in outputs.items() if strings or value.dtype != tf.string}

    return serve


def write_description(
    folder: Path, tokenization: Tokenization, task: Task, outputs: dict[str, Any], **more: str
) -> None:
    """Write `model.json`: inputs and outputs, and how texts become tokens."""
    entries = tokenization.vocabulary.entries
    description = {
        "inputs": {name: {"dtype": "int32", "shape": _SHAPE} for name in INPUTS},
        "outputs": {
            name: {"dtype": value.dtype.name, "shape": ["batch", *value.shape[1:]]}
            for name, value in sorted(outputs.items())
        },
        "pairs": task.labels.pairs,
        "max_seq_length": tokenization.max_seq_length,
        "head_fraction": tokenization.head_fraction,
        "special_tokens": {t: entries.index(t) for t in SPECIAL_TOKENS if t in entries},
        **more,
    }
    write_text(folder / _DESCRIPTION, json_text(description))
