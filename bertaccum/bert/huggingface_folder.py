"""Model folders in Hugging Face's format: their configuration and labels.

`huggingface_weights` reads and writes the weights. Only BERT as published can be read; for any
other model, an error names the key that differs. This module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from bertaccum.atomic import write_text
from bertaccum.bert.bert_config_file import checked_config
from bertaccum.bert.encoder_config import WEIGHTS, EncoderConfig
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer_files import write_tokenizer
from bertaccum.errors import ConfigError, InputError
from bertaccum.files import json_text, read_object

# Prefixes of tensor names: for the encoder in a file with a head, and for the optional pooler.
PREFIX, POOLER = "bert.", "pooler.dense."
_LAYER_NORM_EPSILON = 1e-12
# Hugging Face's names for our activations; an export uses the first name.
_ACTIVATIONS = {
    "gelu": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"),
    "gelu_erf": ("gelu", "gelu_python"),
    "relu": ("relu",),
    "tanh": ("tanh",),
    "linear": ("linear",),
}
# Keys that change what the model computes, with their values for BERT as published.
_USUAL: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}

CONFIG = "config.json"


def safetensors() -> ModuleType:
    """Return the package that reads and writes the weights.

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


def is_huggingface(folder: Path) -> bool:
    """Return whether a folder has files in Hugging Face's format and no Google checkpoint."""
    if (folder / "bert_model.ckpt.index").is_file():
        return False
    return any((folder / name).is_file() for name in (CONFIG, WEIGHTS, "pytorch_model.bin"))


def check_folder(folder: Path) -> None:
    """Check that a folder contains a configuration and weights.

    Raises:
      InputError: A file is missing.
    """
    if not (folder / CONFIG).is_file():
        raise InputError(f"has no {CONFIG}", "download the model again", path=folder)
    if not (folder / WEIGHTS).is_file():
        pickled = (folder / "pytorch_model.bin").is_file()
        held = ", and pytorch_model.bin is not loaded because a pickle can run any code"
        raise InputError(
            f"has no {WEIGHTS}" + (held if pickled else ""),
            "load the model with transformers, and save it with save_pretrained as a single file",
            path=folder,
        )


@contextmanager
def open_weights(path: Path) -> Iterator[Any]:
    """Open a `model.safetensors` without reading its tensors.

    Yields:
      The open file, whose tensors are read on demand.

    Raises:
      InputError: The file cannot be read.
    """
    package = safetensors()
    try:
        with package.safe_open(path, framework="np") as weights:
            yield weights
    except (package.SafetensorError, OSError) as error:
        raise InputError(
            f"is not a readable safetensors file ({error})", "download it again", path=path
        ) from None


def held_names(weights: Any) -> dict[str, str]:
    """Return a mapping from each tensor's current name in transformers to its name in the file."""
    return {_today(name): name for name in weights.keys()}  # noqa: SIM118 (not a mapping)


def _today(name: str) -> str:
    """Return a tensor's current name; the first releases used TensorFlow's layer norm names."""
    name = name.removeprefix(PREFIX).replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def has_pooler(names: Container[str]) -> bool:
    """Return whether the names that `held_names` returned include any weight of a pooler."""
    return any(f"{POOLER}{part}" in names for part in ("weight", "bias"))


def read_huggingface_config(path: Path) -> EncoderConfig:
    """Return the encoder's dimensions from a `config.json`.

    Missing keys have the values of BERT-Base, as in transformers.

    Raises:
      InputError: The file is missing or damaged, or describes a model other than BERT as
        published.
    """
    values = read_object(path)
    named = values.get("model_type", "bert")  # Early files have no model_type.
    if named != "bert":
        raise InputError(
            f"describes a {named} model, not BERT", "use a model with model_type bert", path=path
        )
    for key, usual in {**_USUAL, "layer_norm_eps": _LAYER_NORM_EPSILON}.items():
        value = values.get(key, usual)
        if value != usual and not _is_close(value, usual):
            raise InputError(
                f"{key} is {value!r}, expected {usual!r}", "use another model", path=path
            )
    base = dataclasses.asdict(PRESET_CONFIGS["bert-base"]) | {"hidden_act": "gelu"}
    return checked_config(base | values | {"hidden_act": _our_activation(values, path)}, path)


def _our_activation(values: dict[str, Any], path: Path) -> str:
    named = values.get("hidden_act", "gelu")
    for ours, theirs in _ACTIVATIONS.items():
        if named in theirs:
            return ours
    known = ", ".join(name for theirs in _ACTIVATIONS.values() for name in theirs)
    raise InputError(
        f"hidden_act is {named!r}", f"use a model whose hidden_act is one of {known}", path=path
    )


def _is_close(value: Any, other: Any) -> bool:
    return all(type(v) in (int, float) for v in (value, other)) and math.isclose(
        value, other, rel_tol=1e-3
    )


def write_description(
    folder: Path,
    encoder: EncoderConfig,
    tokenization: Tokenization,
    names: list[str],
    dropout: float,
    problem_type: str = "single_label_classification",
) -> None:
    """Write the files of a BertForSequenceClassification of transformers, except the weights.

    Args:
      folder: Existing folder to write to.
      encoder: Dimensions of the encoder.
      tokenization: How texts become tokens.
      names: Names of the classes, in the order of their numbers.
      dropout: Dropout rate that the model was trained with.
      problem_type: Kind of task, as transformers names it.
    """
    config = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        **dataclasses.asdict(encoder),
        "hidden_act": _ACTIVATIONS[encoder.hidden_act][0],
        "layer_norm_eps": _LAYER_NORM_EPSILON,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "classifier_dropout": dropout,
        **_USUAL,
        "pad_token_id": tokenization.vocabulary.entries.index("[PAD]"),
        "problem_type": problem_type,
        "num_labels": len(names),
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "torch_dtype": "float32",
    }
    write_text(folder / CONFIG, json_text(config))
    write_tokenizer(
        folder,
        tokenization.vocabulary,
        model_max_length=tokenization.max_seq_length,
        truncation_side="right" if tokenization.head_fraction else "left",
    )
