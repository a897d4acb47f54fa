"""Loader of pretrained weights in any format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from official.nlp.modeling import networks

from bertaccum.bert.encoder import checkpoint_name
from bertaccum.bert.held_tensor import LazyTensor
from bertaccum.bert.in_place import assign_in_place, check_finite
from bertaccum.bert.model_source import CheckpointFormat
from bertaccum.errors import InputError

_FLOATS = ("F64", "F32", "F16", "BF16")
# Maximum number of mismatched weights that an error message names.
_NAMED = 5


def load_encoder(
    encoder: networks.EncoderScaffold, form: CheckpointFormat, checkpoint: Path
) -> None:
    """Load pretrained weights into `encoder`, or raise InputError if a variable misses or misfits.

    Tensors that the encoder does not have, such as `cls/…` and `classifier.…`, are ignored. If the
    format allows it, the pooler may be missing; the encoder's pooler then keeps its weights.
    """
    tensors = form.tensors(checkpoint)
    wanted = {form.tensor_key(weight_name(weight)): weight for weight in encoder.weights}
    if form.pooler is not None and not form.has_pooler(tensors):
        wanted = {key: w for key, w in wanted.items() if not key.startswith(form.pooler)}
    problems = [_problem(key, weight, form, tensors) for key, weight in wanted.items()]
    _refuse_misfit([problem for problem in problems if problem], form.remedy, checkpoint)
    for key, weight in wanted.items():
        value = _usable(tensors, key, checkpoint)
        assign_in_place(weight, value.T if form.transposed and is_kernel(weight) else value)


def read_head(form: CheckpointFormat, checkpoint: Path) -> list[np.ndarray]:
    """Return the kernel [outputs, hidden] and the bias [outputs] of a classifier's head."""
    tensors = form.tensors(checkpoint)
    missing = [f"{key} is missing" for key in form.head_keys if key not in tensors]
    _refuse_misfit(missing, "omit `keep_head`", checkpoint)
    return [np.asarray(_usable(tensors, key, checkpoint)) for key in form.head_keys]


def _usable(tensors: Mapping[str, LazyTensor], key: str, path: Path) -> Any:
    with np.errstate(over="ignore"):  # A number that is too large becomes infinite.
        value = tensors[key].read()
        check_finite(value, tensors[key].name or key, path)
    return value


def _problem(
    key: str, weight: tf.Variable, form: CheckpointFormat, tensors: Mapping[str, LazyTensor]
) -> str | None:
    """Return why a tensor does not fit a weight, or None if it does."""
    tensor = tensors.get(key)
    if tensor is None:
        return f"{key} is missing"
    expected = original_shape(weight)
    if form.transposed and is_kernel(weight):
        expected = expected[::-1]
    if tensor.shape != expected:
        return f"{tensor.name or key} has shape {tensor.shape}, expected {expected}"
    if tensor.dtype not in _FLOATS:
        return f"{key} has dtype {tensor.dtype}, expected floats"
    return None


def _refuse_misfit(problems: list[str], hint: str, path: Path) -> None:
    """Raise InputError if there are `problems` with the weights; the message names the first."""
    if problems:
        more = f" and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise InputError(
            f"does not fit the model: {'; '.join(problems[:_NAMED])}{more}", hint, path=path
        )


def weight_name(weight: tf.Variable) -> str:
    """Return the name of a weight in checkpoints, such as pooler_transform/kernel."""
    return checkpoint_name(weight.name).removesuffix(":0")


def is_kernel(weight: tf.Variable) -> bool:
    """Return whether a weight is the matrix of a dense layer."""
    return weight.name.endswith("kernel:0")


def original_shape(weight: tf.Variable) -> list[int]:
    """Return a weight's shape in the original code, which has no separate axis for heads."""
    shape = list(weight.shape)
    if "self_attention/" not in weight.name:
        return shape
    if weight.name.endswith("attention_output/kernel:0"):
        return [shape[0] * shape[1], shape[2]]
    if "attention_output" in weight.name:
        return shape
    return [*shape[:-2], shape[-2] * shape[-1]]
