"""Weights in Hugging Face's formats: `model.safetensors` and PyTorch's `pytorch_model.bin`.

This module does not import TensorFlow.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bertaccum.bert.held_tensor import HeldTensor
from bertaccum.bert.torch_file import open_torch_file
from bertaccum.errors import ConfigError, InputError

# Names of the weights file in Hugging Face's format, and of the older one in PyTorch's.
WEIGHTS, TORCH_WEIGHTS = "model.safetensors", "pytorch_model.bin"
# Prefix of the encoder's tensor names in a file with a head.
PREFIX = "bert."


def open_tensors(path: Path) -> dict[str, HeldTensor]:
    """Return the tensors in a file.

    Returns:
      The tensors under their current names in transformers, without the prefix `bert.`.

    Raises:
      ConfigError: The package safetensors is needed but not installed.
      InputError: The file cannot be read.
    """
    held = _open_safetensors(path) if path.name == WEIGHTS else open_torch_file(path)
    return {_today(name): tensor for name, tensor in held.items()}


def _today(name: str) -> str:
    """Return a tensor's current name; the first releases used TensorFlow's layer norm names."""
    name = name.removeprefix(PREFIX).replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def safetensors() -> ModuleType:
    """Return the package that reads and writes `model.safetensors`.

    Raises:
      ConfigError: The package is not installed.
    """
    try:
        import safetensors.numpy
    except ImportError:
        raise ConfigError(
            "Hugging Face's format needs the package safetensors",
            "run pip install 'bertaccum[huggingface]'",
        ) from None
    return safetensors


def _open_safetensors(path: Path) -> dict[str, HeldTensor]:
    package = safetensors()
    try:
        weights, held = package.safe_open(path, framework="np"), {}
        for name in weights.keys():  # noqa: SIM118 (not a mapping)
            tensor = weights.get_slice(name)
            read = partial(_read, weights, name)
            held[name] = HeldTensor(tensor.get_shape(), tensor.get_dtype(), read)
        return held
    except (package.SafetensorError, OSError) as error:
        raise InputError(
            f"is not a readable safetensors file ({error})", "download it again", path=path
        ) from None


def _read(weights: Any, name: str) -> np.ndarray:
    return np.asarray(weights.get_tensor(name)).astype(np.float32)
