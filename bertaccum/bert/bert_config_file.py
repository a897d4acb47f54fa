"""The encoder's dimensions: the presets and `bert_config.json`. No tensorflow here."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from bertaccum.bert.encoder_config import ACTIVATIONS, EncoderConfig
from bertaccum.errors import InputError
from bertaccum.files import read_text

# Twenty times BERT-Large: beyond it, a dimension was mistyped.
_MOST_PARAMETERS = 7_000_000_000


def read_bert_config(path: Path) -> EncoderConfig:
    """Reads a `bert_config.json`; keys that do not shape the encoder are passed over.

    Raises:
      InputError: the file is missing, not JSON, or a dimension is absent or impossible.
    """
    return checked_config(read_object(path), path)


def checked_config(values: dict[str, Any], path: Path) -> EncoderConfig:
    """The dimensions that `path` holds as `values`, if they make sense.

    Raises:
      InputError: a dimension is absent or impossible.
    """
    known = {}
    for field in dataclasses.fields(EncoderConfig):
        if field.name not in values:
            raise InputError(f"has no {field.name}", "it is not a BERT configuration", path=path)
        known[field.name] = _checked(path, field.name, values[field.name], field.default)
    config = EncoderConfig(**known)
    if config.parameters > _MOST_PARAMETERS:
        raise InputError(
            f"describes a model of {config.parameters:,} parameters", "correct it", path=path
        )
    if config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"hidden_size {config.hidden_size} is not a multiple of"
            f" num_attention_heads {config.num_attention_heads}",
            "correct one of them",
            path=path,
        )
    return config


def write_bert_config(path: Path, config: EncoderConfig) -> None:
    """Writes `config` as a `bert_config.json` that Google's own code reads, too."""
    path.write_text(json.dumps(dataclasses.asdict(config), indent=2) + "\n", encoding="utf-8")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a configuration file holds.

    Raises:
      InputError: it is missing, or holds none.
    """
    try:
        values = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not readable JSON ({error})", path=path) from None
    if not isinstance(values, dict):
        raise InputError("holds no JSON object", "it is not a BERT configuration", path=path)
    return values


def _checked(path: Path, name: str, value: Any, default: Any) -> Any:
    """`value` if it has the type of `default` and makes sense, else an error."""
    if isinstance(default, str):
        if value not in ACTIVATIONS:
            raise InputError(
                f"{name} is {value!r}", f"known are {', '.join(ACTIVATIONS)}", path=path
            )
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and isinstance(default, int):
        number = isinstance(value, int) and value <= 10_000_000
    if not number or not value > 0:
        kind = "whole number" if isinstance(default, int) else "number"
        raise InputError(f"{name} is {value!r}, not a positive {kind}", path=path)
    return value
