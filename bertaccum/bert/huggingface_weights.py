"""Loader and writer of `model.safetensors`, under the tensor names of transformers' BERT.

PyTorch's kernels have shape [outputs, inputs] and no separate axis for attention heads.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from official.nlp.modeling import networks

from bertaccum.bert.encoder import checkpoint_name
from bertaccum.bert.encoder_config import WEIGHTS
from bertaccum.bert.google_checkpoint import original_shape, refuse_misfit
from bertaccum.bert.huggingface_folder import (
    CONFIG,
    POOLER,
    PREFIX,
    has_pooler,
    held_names,
    open_weights,
    safetensors,
)

_REPLACEMENTS = (
    ("word_embeddings/embeddings", "embeddings/word_embeddings/weight"),
    ("position_embedding/embeddings", "embeddings/position_embeddings/weight"),
    ("type_embeddings/embeddings", "embeddings/token_type_embeddings/weight"),
    ("embeddings/layer_norm", "embeddings/LayerNorm"),
    ("transformer/layer_", "encoder/layer/"),
    ("self_attention/attention_output", "attention/output/dense"),
    ("self_attention_layer_norm", "attention/output/LayerNorm"),
    ("self_attention/", "attention/self/"),
    ("/intermediate/", "/intermediate/dense/"),
    ("output_layer_norm", "output/LayerNorm"),
    ("/output/kernel", "/output/dense/kernel"),
    ("/output/bias", "/output/dense/bias"),
    ("pooler_transform", "pooler/dense"),
    ("sentence_prediction/logits", "classifier"),
    ("/kernel", "/weight"),
    ("LayerNorm/gamma", "LayerNorm/weight"),
    ("LayerNorm/beta", "LayerNorm/bias"),
    ("/", "."),
)
_HEAD = "classifier."
_FLOATS = ("F64", "F32", "F16", "BF16")


def load_huggingface(encoder: networks.EncoderScaffold, path: Path) -> None:
    """Load a `model.safetensors` into `encoder`.

    Masked language models have no pooler; for them, the encoder's pooler keeps its weights.
    Tensors that the encoder does not have (`cls.…`, `classifier.…`) are ignored.

    Raises:
      InputError: The file cannot be read, or any other variable of the encoder is missing or has a
        different shape or dtype.
    """
    with open_weights(path) as weights:
        held = held_names(weights)
        wanted = [(variable, _their_name(variable)) for variable in encoder.weights]
        if not has_pooler(held):
            wanted = [(variable, name) for variable, name in wanted if not name.startswith(POOLER)]
        _require_every_variable(wanted, held, weights, path)
        for variable, name in wanted:
            tensor = _turned(weights.get_tensor(held[name]), variable)
            variable.assign(tensor.astype(np.float32).reshape(variable.shape))


def save_huggingface(
    model: tf_keras.Model, folder: Path, factor: float = 1.0, offset: float = 0.0
) -> None:
    """Write a classifier's weights to a folder that `write_description` has written to.

    Args:
      model: Model that `build_classifier` returned.
      folder: Folder to write to.
      factor: Factor by which the logits of the written model are multiplied.
      offset: Number that is then added to them.
    """
    tensors = {}
    for variable in model.weights:
        name = _their_name(variable)
        flat = variable.numpy().reshape(original_shape(variable))
        key = name if name.startswith(_HEAD) else PREFIX + name
        if name.startswith(_HEAD):
            flat = flat * np.float32(factor)
        if name == f"{_HEAD}bias":
            flat = flat + np.float32(offset)
        # safetensors writes an array in the order of its memory, which is wrong for a transpose.
        tensors[key] = np.ascontiguousarray(_turned(flat, variable))
    path = folder / WEIGHTS
    # transformers requires this metadata: names and shapes follow PyTorch's conventions.
    safetensors().numpy.save_file(tensors, path, metadata={"format": "pt"})
    # safetensors makes the file readable by its owner only, unlike the other files.
    shutil.copymode(folder / CONFIG, path)


def _require_every_variable(
    wanted: list[tuple[tf.Variable, str]], held: dict[str, str], weights: Any, path: Path
) -> None:
    problems = []
    for variable, name in wanted:
        if name not in held:
            problems.append(f"{name} is missing")
            continue
        tensor, shape = weights.get_slice(held[name]), _their_shape(variable)
        if tensor.get_shape() != shape:
            problems.append(f"{name} has shape {tensor.get_shape()}, expected {shape}")
        elif tensor.get_dtype() not in _FLOATS:
            problems.append(f"{name} has dtype {tensor.get_dtype()}, expected floats")
    refuse_misfit(problems, "use the config.json that came with the weights", path)


def _their_name(variable: tf.Variable) -> str:
    name = checkpoint_name(variable.name).removesuffix(":0")
    for ours, theirs in _REPLACEMENTS:
        name = name.replace(ours, theirs)
    return name


def _their_shape(variable: tf.Variable) -> list[int]:
    shape = original_shape(variable)
    return shape[::-1] if _is_kernel(variable) else shape


def _turned(tensor: np.ndarray, variable: tf.Variable) -> np.ndarray:
    return tensor.T if _is_kernel(variable) else tensor


def _is_kernel(variable: tf.Variable) -> bool:
    return variable.name.endswith("kernel:0")
