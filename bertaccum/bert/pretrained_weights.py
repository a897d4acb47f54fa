"""Pretrained weights: loading in any format, and writing in Hugging Face's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from bertaccum.bert.checkpoint_files import RELEASED_PREFIX, WEIGHTS
from bertaccum.bert.encoder import POOLER, Encoder
from bertaccum.bert.google_checkpoint import google_name
from bertaccum.bert.huggingface_folder import CONFIG, tensor_key, tensor_name
from bertaccum.bert.in_place import assign_in_place, check_finite
from bertaccum.bert.model_source import HEAD_LAYER, CheckpointFormat, LazyTensor
from bertaccum.bert.tensor_files import safetensors
from bertaccum.errors import InputError, reason
from bertaccum.system.phrases import listed

WORD_EMBEDDINGS = "word_embeddings/embeddings"
# The output matrix of a head for masked tokens, which some checkpoints repeat. The relatives of
# BERT have no part `decoder` in the name.
OUTPUT_MATRICES = ("cls/predictions/decoder/kernel", "cls/predictions/kernel")
_FLOATS = ("F64", "F32", "F16", "BF16")
# Maximum number of mismatched weights that an error message names.
_NAMED = 5


def load_encoder(encoder: Encoder, form: CheckpointFormat, checkpoint: Path) -> None:
    """Load pretrained weights into `encoder`; raise InputError if one is missing or misfits.

    Tensors that the encoder does not have, such as `cls/…` and `classifier.…`, are ignored. If the
    format allows it, the pooler may be missing; the encoder's pooler then keeps its weights.
    """
    tensors = form.tensors(checkpoint)
    wanted = {form.tensor_key(weight_name(weight)): weight for weight in encoder.weights}
    if form.pooler is not None and not form.has_pooler(tensors):
        wanted = {key: w for key, w in wanted.items() if not key.startswith(form.pooler)}
    _load(wanted, tensors, form, checkpoint)


def load_masked_head(weights: list[tf.Variable], form: CheckpointFormat, checkpoint: Path) -> bool:
    """Load the head for masked tokens, and return whether the checkpoint has one.

    Raises:
      InputError: A weight misfits, or the output matrix is not that of the word embeddings.
    """
    tensors = form.tensors(checkpoint)
    wanted = {form.tensor_key(weight_name(weight)): weight for weight in weights}
    if not any(key in tensors for key in wanted):
        return False
    _check_tied(tensors, form, checkpoint)
    _load(wanted, tensors, form, checkpoint)
    return True


def _check_tied(
    tensors: Mapping[str, LazyTensor], form: CheckpointFormat, checkpoint: Path
) -> None:
    """Raise InputError if a head for masked tokens has an output matrix of its own."""
    words = form.tensor_key(WORD_EMBEDDINGS)
    for key in map(form.tensor_key, OUTPUT_MATRICES):
        if key not in tensors:
            continue
        both = tensors[key], tensors[words]
        same_shape = both[0].shape == both[1].shape
        if not same_shape or not np.array_equal(*(tensor.read() for tensor in both)):
            what = f"its output matrix {key} differs from the word embeddings {words}"
            raise InputError(what, "use a model in which both are the same", path=checkpoint)


def _load(
    wanted: dict[str, tf.Variable],
    tensors: Mapping[str, LazyTensor],
    form: CheckpointFormat,
    checkpoint: Path,
) -> None:
    problems = [_problem(key, weight, form, tensors) for key, weight in wanted.items()]
    _refuse_misfit([problem for problem in problems if problem], form.remedy, checkpoint)
    for key, weight in wanted.items():
        value = _usable(tensors, key, checkpoint)
        assign_in_place(weight, value.T if form.transposed and is_kernel(weight) else value)


def read_head(form: CheckpointFormat, checkpoint: Path) -> list[np.ndarray]:
    """Return the kernel [outputs, hidden] and the bias [outputs] of a classifier's head."""
    tensors = form.tensors(checkpoint)
    keys = form.head_in(tensors)
    missing = [f"{key} is missing" for key in keys if key not in tensors]
    _refuse_misfit(missing, "omit `keep_head`", checkpoint)
    return [np.asarray(_usable(tensors, key, checkpoint)) for key in keys]


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
        what = f"does not fit the model: {listed(problems, _NAMED, '; ')}"
        raise InputError(what, hint, path=path)


def weight_name(weight: tf.Variable) -> str:
    """Return the name of a weight in checkpoints, such as pooler_transform/kernel."""
    return str(weight.name).removesuffix(":0")


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


def named_arrays(
    model: tf_keras.Model, factor: float, offset: float, pooler: bool = True
) -> Iterator[tuple[str, np.ndarray, bool]]:
    """Yield a model's weights in the shapes of the original code.

    The logits of these weights are those of `model` times `factor` plus `offset`.

    Yields:
      The name in checkpoints, the weight, and whether it is a kernel, which Hugging Face
      transposes.
    """
    for weight in model.weights:
        if pooler or POOLER not in weight.name:
            name, flat = weight_name(weight), weight.numpy().reshape(original_shape(weight))
            if name.startswith(HEAD_LAYER):
                flat = flat * np.float32(factor)
            if name == f"{HEAD_LAYER}/logits/bias":
                flat = flat + np.float32(offset)
            yield name, flat, is_kernel(weight)


def save_google(
    model: tf_keras.Model, folder: Path, factor: float = 1.0, offset: float = 0.0
) -> None:
    """Write a model's weights as Google's releases do, with the head of `run_classifier.py`.

    `factor` and `offset` are those of `save_huggingface`.
    """
    tensors = {}
    for name, flat, kernel in named_arrays(model, factor, offset):
        if name.startswith(HEAD_LAYER):
            tensors["output_weights" if kernel else "output_bias"] = flat.T if kernel else flat
        else:
            tensors[google_name(tensor_key(name))] = flat
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(folder / RELEASED_PREFIX),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tensors[name] for name in names],
    )


def save_huggingface(
    model: tf_keras.Model,
    folder: Path,
    factor: float = 1.0,
    offset: float = 0.0,
    pooler: bool = True,
) -> None:
    """Write a classifier's weights to a folder that `write_description` has written to.

    The logits of the written model are those of `model` times `factor` plus `offset`. A model of
    tags or masked tokens has no `pooler`.
    """
    model_type, tensors = model.checkpoint_items["encoder"].config.model_type, {}
    for name, flat, kernel in named_arrays(model, factor, offset, pooler):
        # safetensors writes an array in the order of its memory, which is wrong for a transpose.
        array = np.ascontiguousarray(flat.T if kernel else flat)
        tensors[tensor_name(name, model_type, pooler)] = array
    path = folder / WEIGHTS
    # transformers requires this metadata: names and shapes follow PyTorch's conventions.
    try:
        safetensors().numpy.save_file(tensors, path, metadata={"format": "pt"})
    except safetensors().SafetensorError as error:
        raise OSError(reason(error)) from None
    # safetensors makes the file readable by its owner only, unlike the other files.
    shutil.copymode(folder / CONFIG, path)
