"""Reader and writer of `bert_config.json`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from bertaccum.bert.encoder_config import ACTIVATIONS, EncoderConfig
from bertaccum.errors import InputError
from bertaccum.system.files import json_text, read_object

# Twenty times the size of BERT-Large. In a larger model, a dimension was probably mistyped.
_MAX_PARAMETERS = 7_000_000_000
# Building a layer takes time, even if it is tiny.
_MAX_LAYERS = 200


def read_bert_config(path: Path) -> EncoderConfig:
    """Return the encoder's dimensions from a `bert_config.json`, ignoring its other keys."""
    return checked_config(read_object(path), path)


def checked_config(values: dict[str, Any], path: Path) -> EncoderConfig:
    """Return the encoder's dimensions from the contents of a configuration file."""
    known = {}
    for field in dataclasses.fields(EncoderConfig):
        if field.name not in values:
            raise InputError(
                f"has no {field.name}", "use the file that came with the model", path=path
            )
        known[field.name] = _checked(path, field.name, values[field.name], field.default)
    config = EncoderConfig(**known)
    if config.num_hidden_layers > _MAX_LAYERS:
        raise InputError(
            f"describes a model of {config.num_hidden_layers:,} layers, more than any BERT has",
            "correct num_hidden_layers",
            path=path,
        )
    if config.parameters > _MAX_PARAMETERS:
        raise InputError(
            f"describes a model of {config.parameters:,} parameters, more than any BERT has",
            "correct its dimensions",
            path=path,
        )
    if config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"hidden_size {config.hidden_size} is not a multiple of"
            f" num_attention_heads {config.num_attention_heads}",
            "correct one of the two",
            path=path,
        )
    return config


def write_bert_config(path: Path, config: EncoderConfig) -> None:
    """Write `config` as a `bert_config.json`, which Google's own code can also read."""
    path.write_text(json_text(dataclasses.asdict(config)), encoding="utf-8")


def _checked(path: Path, name: str, value: Any, default: Any) -> Any:
    """Return `value`, or raise InputError unless it has the type of `default` and is valid."""
    if isinstance(default, str):
        if value not in ACTIVATIONS:
            raise InputError(
                f"{name} is {value!r}", f"use one of {', '.join(ACTIVATIONS)}", path=path
            )
        return value
    whole = isinstance(default, int)
    number = type(value) is int or (type(value) is float and not whole)
    if not number or not 0 < value <= 10_000_000:
        kind = "whole number" if whole else "number"
        raise InputError(f"{name} is {value!r}, not a positive {kind}", path=path)
    return value
