"""Loader and writer of weights in Hugging Face's format.

PyTorch's kernels have shape [outputs, inputs] and no separate axis for attention heads.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras
from official.nlp.modeling import networks

from bertaccum.bert.encoder import checkpoint_name
from bertaccum.bert.encoder_config import WEIGHTS
from bertaccum.bert.google_checkpoint import original_shape, refuse_misfit
from bertaccum.bert.held_tensor import HeldTensor
from bertaccum.bert.huggingface_folder import (
    CONFIG,
    HEAD,
    HEAD_NAMES,
    POOLER,
    has_pooler,
)
from bertaccum.bert.in_place import assign_in_place
from bertaccum.bert.tensor_files import PREFIX, open_tensors, safetensors

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
_FLOATS = ("F64", "F32", "F16", "BF16")


def load_huggingface(encoder: networks.EncoderScaffold, path: Path) -> None:
    """Load a `model.safetensors` or `pytorch_model.bin` into `encoder`.

    Masked language models have no pooler; for them, the encoder's pooler keeps its weights.
    Tensors that the encoder does not have (`cls.…`, `classifier.…`) are ignored.

    Raises:
      InputError: The file cannot be read, or any other variable of the encoder is missing or has a
        different shape or dtype.
    """
    held = open_tensors(path)
    wanted = [(variable, _their_name(variable)) for variable in encoder.weights]
    if not has_pooler(held):
        wanted = [(variable, name) for variable, name in wanted if not name.startswith(POOLER)]
    _require_every_variable(wanted, held, path)
    for variable, name in wanted:
        value = _turned(held[name].read(), variable).reshape(variable.shape)
        assign_in_place(variable, value)


def read_huggingface_head(path: Path) -> list[np.ndarray]:
    """Return the kernel [outputs, hidden] and the bias [outputs] of a classifier's head.

    Raises:
      InputError: The file cannot be read, or has no such head.
    """
    held = open_tensors(path)
    missing = [name for name in HEAD_NAMES if name not in held]
    refuse_misfit([f"{name} is missing" for name in missing], "omit `keep_head`", path)
    return [held[name].read() for name in HEAD_NAMES]


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
        key = name if name.startswith(HEAD) else PREFIX + name
        if name.startswith(HEAD):
            flat = flat * np.float32(factor)
        if name == f"{HEAD}bias":
            flat = flat + np.float32(offset)
        # safetensors writes an array in the order of its memory, which is wrong for a transpose.
        tensors[key] = np.ascontiguousarray(_turned(flat, variable))
    path = folder / WEIGHTS
    # transformers requires this metadata: names and shapes follow PyTorch's conventions.
    safetensors().numpy.save_file(tensors, path, metadata={"format": "pt"})
    # safetensors makes the file readable by its owner only, unlike the other files.
    shutil.copymode(folder / CONFIG, path)


def _require_every_variable(
    wanted: list[tuple[tf.Variable, str]], held: dict[str, HeldTensor], path: Path
) -> None:
    problems = []
    for variable, name in wanted:
        if name not in held:
            problems.append(f"{name} is missing")
            continue
        tensor, shape = held[name], _their_shape(variable)
        if tensor.shape != shape:
            problems.append(f"{name} has shape {tensor.shape}, expected {shape}")
        elif tensor.dtype not in _FLOATS:
            problems.append(f"{name} has dtype {tensor.dtype}, expected floats")
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
