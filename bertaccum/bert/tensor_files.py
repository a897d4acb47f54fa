"""Weights in Hugging Face's formats: `model.safetensors` and PyTorch's `pytorch_model.bin`.

Each may be split into several files, which an index lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bertaccum.bert.checkpoint_files import INDEX_SUFFIX, MERGE
from bertaccum.bert.model_source import LazyTensor
from bertaccum.bert.torch_file import open_torch_file
from bertaccum.errors import ConfigError, InputError
from bertaccum.system.files import read_object

# Name of the encoder of any family in a file with a head.
_ENCODER = r"(?:(?:distil)?bert|electra)[.]"
# Parts of names that stand for no layer.
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_EMBEDDINGS = "embeddings.word_embeddings.weight"
# Prefixes of the names of the encoder: anything with its name at the end, or such words.
_BEFORE_ENCODER = re.compile(
    rf"(?:\w+[.])*{_ENCODER}"
    r"|(?:(?:module|model|network|net|backbone|encoder|auto_model|checkpoint|(?:model_)?state_dict|\d+)[.])*"
)


def open_tensors(path: Path) -> dict[str, LazyTensor]:
    """Return the tensors in a file, under their current names in transformers, without `bert.`."""
    held = _open_shards(path) if path.name.endswith(INDEX_SUFFIX) else _open(path)
    if any(".lora_" in name for name in held):
        raise InputError("has the weights of a PEFT adapter", MERGE, path=path)
    plain = plain_names(held)
    return {_current_name(plain[name]): tensor for name, tensor in held.items()}


def open_adapter_tensors(path: Path, rename: Callable[[str], str]) -> dict[str, LazyTensor]:
    """Return the tensors in a file with adapters, under their names without a prefix `bert.`."""
    return {_current_name(rename(name)): tensor for name, tensor in _open(path).items()}


def _open(path: Path) -> dict[str, LazyTensor]:
    return _open_safetensors(path) if path.suffix == ".safetensors" else open_torch_file(path)


def _open_shards(index: Path) -> dict[str, LazyTensor]:
    """Return the tensors that an index lists, each from its own file."""
    files = _files_of_tensors(index)
    held = {shard: _open(index.with_name(shard)) for shard in sorted({*files.values()})}
    missing = [name for name, shard in files.items() if name not in held[shard]]
    if missing:
        raise InputError(
            f"has no {missing[0]}, which {index.name} lists",
            "download the model again",
            path=index.with_name(files[missing[0]]),
        )
    return {name: held[shard][name] for name, shard in files.items()}


def shards(path: Path) -> list[Path]:
    """Return the files that an index of weights lists; none for weights in a single file."""
    if not path.name.endswith(INDEX_SUFFIX):
        return []
    return [path.with_name(shard) for shard in sorted({*_files_of_tensors(path).values()})]


def _files_of_tensors(index: Path) -> dict[str, str]:
    """Return the name of the file of each tensor, all of which are beside the index."""
    files = read_object(index).get("weight_map")
    if (
        not isinstance(files, dict)
        or not files
        or not all(isinstance(shard, str) and Path(shard).name == shard for shard in files.values())
    ):
        raise InputError("lists no weights", "download the model again", path=index)
    return files


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Return each name of a tensor, and its name in a BertModel or a classifier of transformers.

    PyTorch's DataParallel, `torch.compile` and FSDP rename the weights of the modules that they
    wrap, and training scripts save them inside of other modules or with the state of the optimizer.
    A name keeps what precedes it unless exactly one encoder is found.
    """
    plain = {name: _unwrapped(name) for name in names}
    if len({*plain.values()}) < len(plain):
        plain = {name: name for name in plain}
    prefixes = [
        name.removesuffix(_EMBEDDINGS)
        for name in plain.values()
        if f".{name}".endswith(f".{_EMBEDDINGS}")
    ]
    if len(prefixes) != 1 or not _BEFORE_ENCODER.fullmatch(prefixes[0]):
        return plain
    # The head of a classifier is beside its encoder.
    encoder, around = prefixes[0], re.sub(f"{_ENCODER}$", "", prefixes[0])
    return {name: _without(short, encoder, around) for name, short in plain.items()}


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _without(name: str, *prefixes: str) -> str:
    """Return a name without the first of the prefixes with which it begins."""
    return next((name.removeprefix(p) for p in prefixes if name.startswith(p)), name)


def _current_name(name: str) -> str:
    """Return a tensor's current name; the first releases used TensorFlow's layer norm names."""
    name = re.sub(f"^{_ENCODER}", "", name).replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def safetensors() -> ModuleType:
    """Return the package that reads and writes `model.safetensors`, or raise ConfigError."""
    try:
        import safetensors.numpy
    except ImportError:
        raise ConfigError(
            "Hugging Face's format needs the package safetensors",
            "run pip install 'bertaccum[huggingface]'",
        ) from None
    return safetensors


def _open_safetensors(path: Path) -> dict[str, LazyTensor]:
    package = safetensors()
    try:
        weights, held = package.safe_open(path, framework="np"), {}
        for name in weights.keys():  # noqa: SIM118 (not a mapping)
            tensor = weights.get_slice(name)
            read = partial(_read, weights, name)
            held[name] = LazyTensor(tensor.get_shape(), tensor.get_dtype(), read)
        return held
    except (package.SafetensorError, OSError) as error:
        raise InputError(
            f"is not a readable safetensors file ({error})", "download it again", path=path
        ) from None


def _read(weights: Any, name: str) -> np.ndarray:
    return np.asarray(weights.get_tensor(name)).astype(np.float32)
