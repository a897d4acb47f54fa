"""Writer of weights in Hugging Face's format."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import tf_keras

from bertaccum.bert.huggingface_folder import CONFIG, HEAD, tensor_key
from bertaccum.bert.pretrained_weights import is_kernel, original_shape, weight_name
from bertaccum.bert.tensor_files import PREFIX, safetensors
from bertaccum.bert.weight_files import WEIGHTS
from bertaccum.errors import reason


def save_huggingface(
    model: tf_keras.Model, folder: Path, factor: float = 1.0, offset: float = 0.0
) -> None:
    """Write a classifier's weights to a folder that `write_description` has written to.

    The logits of the written model are those of `model` times `factor` plus `offset`.
    """
    tensors = {}
    for weight in model.weights:
        name = tensor_key(weight_name(weight))
        flat = weight.numpy().reshape(original_shape(weight))
        key = name if name.startswith(HEAD) else PREFIX + name
        if name.startswith(HEAD):
            flat = flat * np.float32(factor)
        if name == f"{HEAD}bias":
            flat = flat + np.float32(offset)
        # safetensors writes an array in the order of its memory, which is wrong for a transpose.
        tensors[key] = np.ascontiguousarray(flat.T if is_kernel(weight) else flat)
    path = folder / WEIGHTS
    # transformers requires this metadata: names and shapes follow PyTorch's conventions.
    try:
        safetensors().numpy.save_file(tensors, path, metadata={"format": "pt"})
    except safetensors().SafetensorError as error:
        raise OSError(reason(error)) from None
    # safetensors makes the file readable by its owner only, unlike the other files.
    shutil.copymode(folder / CONFIG, path)
