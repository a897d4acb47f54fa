"""Loader of checkpoints in Google's format.

A table in tf-models-official translates the original (TF1) variable names. In addition, this module
checks that the checkpoint has every variable of the encoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from official.nlp.modeling import networks
from official.nlp.tools.tf1_bert_checkpoint_converter_lib import BERT_V2_NAME_REPLACEMENTS

from bertaccum.bert.encoder import checkpoint_name
from bertaccum.bert.in_place import assign_in_place, read_tensor
from bertaccum.errors import InputError, reason

# Maximum number of mismatched variables that an error message names.
_NAMED = 5
# Names of the head's variables in `run_classifier.py`.
_HEAD = ("output_weights", "output_bias")


def load_google_checkpoint(encoder: networks.EncoderScaffold, checkpoint: Path) -> None:
    """Load a checkpoint in Google's format into `encoder`.

    Variables of the checkpoint that the encoder does not have (`cls/…`) are ignored.

    Args:
      encoder: Encoder whose weights are replaced.
      checkpoint: Prefix of the checkpoint's files, such as `…/bert_model.ckpt`.

    Raises:
      InputError: The files cannot be read, or a variable of the encoder is missing or has a
        different shape.
      tf.errors.ResourceExhaustedError: A variable of the checkpoint does not fit in memory beside
        the encoder.
    """
    with _readable(checkpoint):
        reader = tf.train.load_checkpoint(str(checkpoint))
        shapes = reader.get_variable_to_shape_map()
        original_names = {_translated(name): name for name in shapes}
        _require_every_variable(encoder, original_names, shapes, checkpoint)
        for variable in encoder.weights:
            tensor = read_tensor(str(checkpoint), original_names[_name(variable)], variable.dtype)
            with tf.device("CPU"):
                tensor = tf.reshape(tensor, variable.shape)
            assign_in_place(variable, tensor)


def read_google_head(checkpoint: Path) -> list[np.ndarray]:
    """Return the kernel [outputs, hidden] and the bias [outputs] of `run_classifier.py`'s head.

    Raises:
      InputError: The files cannot be read, or contain no such head.
    """
    with _readable(checkpoint):
        reader = tf.train.load_checkpoint(str(checkpoint))
        missing = [name for name in _HEAD if not reader.has_tensor(name)]
        refuse_misfit([f"{name} is missing" for name in missing], "omit `keep_head`", checkpoint)
        return [reader.get_tensor(name) for name in _HEAD]


@contextmanager
def _readable(checkpoint: Path) -> Iterator[None]:
    """Turn the exceptions of a damaged checkpoint into InputError."""
    try:
        yield
    except tf.errors.ResourceExhaustedError:
        raise
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        raise InputError(
            f"is not a readable BERT checkpoint ({reason(error)})",
            "download it again or use another checkpoint",
            path=checkpoint,
        ) from None


def _translated(name: str) -> str:
    for original, ours in BERT_V2_NAME_REPLACEMENTS:
        name = name.replace(original, ours)
    return name


def _require_every_variable(
    encoder: networks.EncoderScaffold,
    original_names: dict[str, str],
    shapes: dict[str, list[int]],
    checkpoint: Path,
) -> None:
    problems = []
    for variable in encoder.weights:
        original = original_names.get(_name(variable))
        expected = original_shape(variable)
        if original is None:
            problems.append(f"{_name(variable)} is missing")
        elif shapes[original] != expected:
            problems.append(f"{original} has shape {shapes[original]}, expected {expected}")
    refuse_misfit(problems, "use the bert_config.json that came with the checkpoint", checkpoint)


def refuse_misfit(problems: list[str], hint: str, path: Path) -> None:
    """Raise InputError if there are `problems` with the weights; the message names the first."""
    if problems:
        more = f" and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise InputError(
            f"does not fit the model: {'; '.join(problems[:_NAMED])}{more}", hint, path=path
        )


def original_shape(variable: tf.Variable) -> list[int]:
    """Return a variable's shape in the original code, which has no separate axis for heads."""
    shape: Any = list(variable.shape)
    if "self_attention/" not in variable.name:
        return shape
    if variable.name.endswith("attention_output/kernel:0"):
        return [shape[0] * shape[1], shape[2]]
    if "attention_output" in variable.name:
        return shape
    return [*shape[:-2], shape[-2] * shape[-1]]


def _name(variable: tf.Variable) -> str:
    return checkpoint_name(variable.name).removesuffix(":0")
