"""Adapters in peft's format: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertaccum.bert.model_source import CheckpointFormat, FineTunedHead, LazyTensor
from bertaccum.bert.presets import PUBLISHED
from bertaccum.bert.tensor_files import open_adapter_tensors
from bertaccum.errors import InputError
from bertaccum.system.files import read_object

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Earlier versions of peft wrote this file.
_OLDER_WEIGHTS = "adapter_model.bin"
_MERGE = "merge the adapter with merge_and_unload() in peft"
# Models on the Hugging Face Hub by their names from before it had owners. transformers still
# accepts these names, and peft records them.
_WITH_OWNERS = {name.rpartition("/")[2]: name for name in PUBLISHED}
# Modules that peft trains in full for these tasks. Earlier versions did not record them.
_HEADS, _WITH_HEADS = ("classifier", "score"), ("SEQ_CLS", "TOKEN_CLS")
# Beginning of the names of all weights.
PREFIX = "base_model.model."
_PAIR = re.compile(r"(.*)\.lora_([AB])\.weight")
# peft puts this into the names of modules that are trained in full.
_SAVED = re.compile(r"\.modules_to_save(\.default)?(?=\.)")
# Keys of configurations with the values that can be read. Other initial weights also change the
# base model.
_READABLE: dict[str, list[Any]] = {
    "peft_type": ["LORA"],
    "bias": ["none", None],
    "init_lora_weights": [True, False, None, "gaussian", "eva", "orthogonal"],
}
# Keys whose value does not change what the weights in the file compute. Any other key must have an
# empty value, because it may be that of an option which came with a later version of peft.
_HARMLESS = frozenset(
    {
        *("base_model_name_or_path", "revision", "task_type", "peft_version", "inference_mode"),
        *("r", "lora_alpha", "lora_dropout", "use_rslora", "modules_to_save", "auto_mapping"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
        *("megatron_core", "qalora_group_size", "eva_config", "ensure_weight_tying"),
    }
)


@dataclass(frozen=True)
class PeftAdapter:
    """A low-rank adapter in a folder.

    Args:
      folder: The folder.
      base: Name or path of the model to which it belongs; None if it does not tell.
      scale: Factor of the product of its matrices.
      saved: Names of the modules that the file contains in full.
    """

    folder: Path
    base: str | None
    scale: float
    saved: frozenset[str]

    def merged_into(self, form: CheckpointFormat) -> CheckpointFormat:
        """Return a format of checkpoints whose weights are those of `form` with the adapter."""
        own = [self.folder / ADAPTER_CONFIG, _weights_file(self.folder)]
        return dataclasses.replace(
            form,
            tensors=partial(self._merged, form.tensors),
            shards=lambda path: [*form.shards(path), *own],
            # The labels are those of the base model, whose head the adapter replaces.
            head=lambda folder: FineTunedHead(),
        )

    def _merged(
        self, read: Callable[[Path], Mapping[str, LazyTensor]], path: Path
    ) -> dict[str, LazyTensor]:
        """Return the tensors of a checkpoint and of the adapter, as `form.tensors` does."""
        file, tensors = _weights_file(self.folder), dict(read(path))
        pairs: dict[str, dict[str, LazyTensor]] = {}
        for name, tensor in open_adapter_tensors(file, _plain_name).items():
            if found := _PAIR.fullmatch(name):
                pairs.setdefault(f"{found[1]}.weight", {})[found[2]] = tensor
            elif name not in tensors and self.saved.isdisjoint(name.split(".")):
                raise InputError(f"has {name}, which cannot be merged", _MERGE, path=file)
            else:
                tensors[name] = tensor
        for name, pair in pairs.items():
            shapes = [pair[one].shape for one in "BA" if one in pair]
            fits = name in tensors and len(shapes) == 2 and shapes[0][1] == shapes[1][0]
            if not fits or [shapes[0][0], shapes[1][1]] != tensors[name].shape:
                what = f"does not fit {path}: {name} has the shapes {shapes}"
                raise InputError(what, "use the adapter's base model", path=file)
            tensors[name] = dataclasses.replace(
                tensors[name], dtype="F32", read=partial(self._sum, tensors[name], pair)
            )
        return tensors

    def _sum(self, tensor: LazyTensor, pair: dict[str, LazyTensor]) -> np.ndarray:
        product = np.asarray(pair["B"].read()) @ np.asarray(pair["A"].read())
        return np.asarray(tensor.read()) + np.float32(self.scale) * product


def has_adapter(folder: Path) -> bool:
    """Return whether a folder has an adapter in peft's format."""
    return (folder / ADAPTER_CONFIG).is_file() and _weights_file(folder).is_file()


def _weights_file(folder: Path) -> Path:
    path, older = folder / ADAPTER_WEIGHTS, folder / _OLDER_WEIGHTS
    return older if older.is_file() and not path.is_file() else path


def read_adapter(folder: Path) -> PeftAdapter:
    """Return the adapter in a folder.

    Raises:
      InputError: It is not a low-rank adapter, or has an option that cannot be read.
    """
    path = folder / ADAPTER_CONFIG
    values = read_object(path)
    for key, value in ({"peft_type": None} | values).items():
        readable = value in _READABLE[key] if key in _READABLE else key in _HARMLESS or not value
        if not readable:
            raise InputError(f"{key} is {value!r}, which cannot be read", _MERGE, path=path)
    rank, alpha = (_positive(values.get(key)) for key in ("r", "lora_alpha"))
    base, revision = values.get("base_model_name_or_path"), values.get("revision")
    named = isinstance(base, str | None) and isinstance(revision, str | None)
    saved = values.get("modules_to_save") or []
    listed = isinstance(saved, list) and all(isinstance(name, str) for name in saved)
    if rank is None or alpha is None or not named or not listed:
        raise InputError("is damaged", "save the adapter again", path=path)
    if base and Path(base).exists():
        base = str(Path(base).absolute())  # A folder may have the name of a preset.
    elif base:
        base = _WITH_OWNERS.get(base, base)
        base = f"{base}@{revision}" if revision else base
    divisor = math.sqrt(rank) if values.get("use_rslora") else rank
    heads = _HEADS if values.get("task_type") in _WITH_HEADS else ()
    return PeftAdapter(folder, base, alpha / divisor, frozenset([*saved, *heads]))


def _positive(value: Any) -> float | None:
    return value if type(value) in (int, float) and 0 < value < math.inf else None


def _plain_name(name: str) -> str:
    """Return the name of a weight in a file of peft without what peft adds to names."""
    return _SAVED.sub("", name.removeprefix(PREFIX))
