"""Dimensions of the encoders of BERT and its relatives, and the file that contains them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertaccum.errors import InputError
from bertaccum.system.files import json_text, read_object

# As in Google's files, `gelu` means the tanh approximation that BERT was pretrained with.
ACTIVATIONS = ("gelu", "gelu_erf", "relu", "tanh", "linear")
BERT, DISTILBERT, ELECTRA = "bert", "distilbert", "electra"


@dataclass(frozen=True)
class Family:
    """What distinguishes BERT and its relatives.

    Sources: Sanh et al. 2019, "DistilBERT, a distilled version of BERT"; Clark et al. 2020,
    "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators"; and both models
    in transformers for what the papers leave open.

    Args:
      title: Its name in messages.
      pooler: Activation of the pooler, which in transformers is part of the head.
      drops_first: Whether the input of the pooler has dropout.
      drops_attended: Whether the output of attention has dropout.
      masked_activation: Activation of the head for masked tokens; None for `hidden_act`.
    """

    title: str
    pooler: str = "tanh"
    drops_first: bool = False
    drops_attended: bool = True
    masked_activation: str | None = None


# The families by their `model_type` in transformers.
FAMILIES = {
    BERT: Family("BERT"),
    DISTILBERT: Family("DistilBERT", pooler="relu", drops_attended=False),
    ELECTRA: Family("ELECTRA", "gelu_erf", drops_first=True, masked_activation="gelu_erf"),
}


@dataclass(frozen=True)
class EncoderConfig:
    """The dimensions of an encoder, under the names of Google's `bert_config.json`.

    Dropout is not a field, because it belongs to the training recipe and not to the weights.
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
    # Google's files do not contain the following fields.
    embedding_size: int | None = None  # Width of the embeddings; None for `hidden_size`.
    layer_norm_eps: float = 1e-12
    model_type: str = BERT

    @property
    def family(self) -> Family:
        """What distinguishes the encoder from those of other families."""
        return FAMILIES[self.model_type]

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings, which are projected to `hidden_size` if it differs."""
        return self.embedding_size or self.hidden_size

    @property
    def parameters(self) -> int:
        """The number of weights, without biases and layer normalization."""
        return self.trained_parameters(self.num_hidden_layers) + self._embeddings

    def trained_parameters(self, layers: int | None, freeze: bool = True) -> int:
        """Return the number of weights to train, without biases and layer normalization.

        Args:
          freeze: Whether the embeddings are frozen; they are as well if `layers` is a number.
        """
        count = self.num_hidden_layers if layers is None else min(layers, self.num_hidden_layers)
        layer = 4 * self.hidden_size + 2 * self.intermediate_size
        embeddings = 0 if freeze or layers is not None else self._embeddings
        return embeddings + (count * layer + self.hidden_size) * self.hidden_size

    def adapted_parameters(
        self, targets: tuple[str, ...], rank: int, layers: int | None = None
    ) -> int:
        """Return the number of weights of low-rank adapters and the pooler, without biases.

        Args:
          targets: Names in an encoder of the layers that have adapters.
          layers: Number of last transformer layers that have adapters; None for all.
        """
        count = self.num_hidden_layers if layers is None else min(layers, self.num_hidden_layers)
        hidden, inner = self.hidden_size, self.intermediate_size
        wide = [name in ("intermediate", "output") for name in targets]
        return count * rank * sum(hidden + (inner if w else hidden) for w in wide) + hidden**2

    def unusual(self) -> dict[str, Any]:
        """Return the fields that Google's files do not contain, if they differ from its BERT."""
        own = {name: getattr(self, name) for name in _OPTIONAL}
        return {name: value for name, value in own.items() if value != _OPTIONAL[name]}

    @property
    def mask_width(self) -> int:
        """The largest possible size of an axis with dropout: hidden units or tokens."""
        return max(self.hidden_size, self.embedding_width, self.max_position_embeddings)

    @property
    def _embeddings(self) -> int:
        entries = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        projected = 0 if self.embedding_size is None else self.hidden_size
        return (entries + projected) * self.embedding_width


# Fields that files need not contain, with their defaults.
_OPTIONAL = {"embedding_size": None, "layer_norm_eps": 1e-12, "model_type": BERT}
# Tokens have this number of bits for their ID.
ID_BITS = 19
# Twenty times the size of BERT-Large. In a larger model, a dimension was probably mistyped.
_MAX_PARAMETERS = 7_000_000_000
# Building a layer takes time, even if it is tiny.
_MAX_LAYERS = 200


def read_bert_config(path: Path) -> EncoderConfig:
    """Return the encoder's dimensions from a `bert_config.json`, ignoring its other keys."""
    return checked_config(read_object(path), path)


def checked_config(values: dict[str, Any], path: Path) -> EncoderConfig:
    """Return the encoder's dimensions from the contents of a configuration file."""
    known: dict[str, Any] = {}
    for field in dataclasses.fields(EncoderConfig):
        name, default = field.name, field.default
        if name not in values and name not in _OPTIONAL:
            raise InputError(f"has no {name}", "use the file that came with the model", path=path)
        value = values.get(name, default)
        # DistilBERT has no segment embeddings.
        none = name == "type_vocab_size" and values.get("model_type") == DISTILBERT
        may_be = 0 if none else default
        known[name] = value if value is may_be else _checked(path, name, value, default)
    config = EncoderConfig(**known)
    if config.embedding_size == config.hidden_size:
        config = dataclasses.replace(config, embedding_size=None)
    if math.isclose(config.layer_norm_eps, EncoderConfig.layer_norm_eps, rel_tol=1e-3):
        config = dataclasses.replace(config, layer_norm_eps=EncoderConfig.layer_norm_eps)
    if config.num_hidden_layers > _MAX_LAYERS:
        raise InputError(
            f"describes a model of {config.num_hidden_layers:,} layers, more than any BERT has",
            "correct num_hidden_layers",
            path=path,
        )
    if config.vocab_size > 2**ID_BITS:
        raise InputError(
            f"describes a vocabulary of {config.vocab_size:,} entries, more than {2**ID_BITS:,}",
            "correct vocab_size",
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
    """Write `config` as a `bert_config.json`, which Google's own code can read if it is a BERT."""
    values = {n: v for n, v in dataclasses.asdict(config).items() if n not in _OPTIONAL}
    path.write_text(json_text(values | config.unusual()), encoding="utf-8")


def _checked(path: Path, name: str, value: Any, default: Any) -> Any:
    """Return `value`, or raise InputError unless it has the type of `default` and is valid."""
    if isinstance(default, str):
        known = ACTIVATIONS if name == "hidden_act" else tuple(FAMILIES)
        if value not in known:
            raise InputError(f"{name} is {value!r}", f"use one of {', '.join(known)}", path=path)
        return value
    whole = not isinstance(default, float)
    number = type(value) is int or (type(value) is float and not whole)
    if not number or not 0 < value <= 10_000_000:
        kind = "whole number" if whole else "number"
        raise InputError(f"{name} is {value!r}, not a positive {kind}", path=path)
    return value
