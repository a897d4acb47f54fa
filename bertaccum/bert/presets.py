"""The encoder's dimensions: the presets and `bert_config.json`. No tensorflow here."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertaccum.errors import InputError
from bertaccum.files import read_text

# Twenty times BERT-Large: beyond it, a dimension was mistyped.
_MOST_PARAMETERS = 7_000_000_000
# As in Google's files, `gelu` is the tanh approximation, with which BERT was pretrained.
ACTIVATIONS = ("gelu", "gelu_erf", "relu", "tanh", "linear")


@dataclass(frozen=True)
class EncoderConfig:
    """The dimensions of a BERT encoder, under the names of Google's `bert_config.json`.

    Dropout is not here: it belongs to the training recipe, not to the weights.
    """

    hidden_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    vocab_size: int = 30522
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    initializer_range: float = 0.02

    @property
    def parameters(self) -> int:
        """Weights of embeddings, layers and pooler, but for biases and norms."""
        entries = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        layer = 4 * self.hidden_size + 2 * self.intermediate_size
        return (entries + self.num_hidden_layers * layer + self.hidden_size) * self.hidden_size


def _preset(layers: int, hidden: int) -> EncoderConfig:
    """A released uncased model: heads of 64, a feed-forward part four times as wide."""
    return EncoderConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )


# Turc et al. 2019, "Well-Read Students Learn Better"; base and large: Devlin et al. 2018.
PRESET_CONFIGS = {
    "bert-tiny": _preset(2, 128),
    "bert-mini": _preset(4, 256),
    "bert-small": _preset(4, 512),
    "bert-medium": _preset(8, 512),
    "bert-base": _preset(12, 768),
    "bert-large": _preset(24, 1024),
}


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
