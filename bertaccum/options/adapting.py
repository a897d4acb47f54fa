"""Which weights of the encoder are trained: names of adapters, and options that do not fit them."""

from __future__ import annotations

import dataclasses

from bertaccum.errors import ConfigError
from bertaccum.options.fields import Options, named_options

FULL, LORA, BIAS = "full", "lora", "bias"
# The dense layers of a transformer layer, with their names in an encoder.
TARGETS = {
    "query": "query",
    "key": "key",
    "value": "value",
    "attention-output": "attention_output",
    "intermediate": "intermediate",
    "output": "output",
}
_ALL = "all"
_OF_LORA = ("lora_rank", "lora_alpha", "lora_targets", "lora_dropout")
# The options of this module, and the data type of frozen weights.
OPTIONS = ("adapt", *_OF_LORA, "frozen_dtype")


def target_names(text: str) -> tuple[str, ...]:
    """Return the names in an encoder of the layers that `lora_targets` names.

    Raises:
      ConfigError: A name is unknown.
    """
    named = [name.strip() for name in text.split(",")]
    for name in named:
        if name not in (*TARGETS, _ALL):
            what = f"`lora_targets` {text}: {name!r} is not a layer"
            raise ConfigError(what, f"use {_ALL}, or some of {', '.join(TARGETS)}")
    return tuple(ours for name, ours in TARGETS.items() if name in named or _ALL in named)


def check_adapters(config: Options) -> None:
    """Raise ConfigError if an option has no effect with the value of `adapt`."""
    values = {name: getattr(config, name) for name in ("adapt", "train_layers", "freeze")}
    adapt, train_layers, freeze = values.values()
    given = named_options(config)
    for name in _OF_LORA:
        if adapt != LORA and name in given:
            what = f"`{name}` {given[name]} has no effect without `adapt` {LORA}"
            raise ConfigError(what, f"set `adapt` {LORA}, or omit `{name}`")
    if adapt != FULL and train_layers == 0:
        what = f"`adapt` {adapt} and `train_layers` 0 leave nothing to adapt"
        raise ConfigError(what, "omit `adapt` to train only the pooler and the head")
    if adapt != FULL and freeze != "none":
        what = f"`freeze` {freeze} has no effect with `adapt` {adapt}, which freezes the embeddings"
        raise ConfigError(what, "omit `freeze`")
    if "frozen_dtype" in given and (adapt, train_layers, freeze) == (FULL, None, "none"):
        what = f"`frozen_dtype` {given['frozen_dtype']} has no effect: all weights are trained"
        raise ConfigError(what, "set `adapt`, `train_layers` or `freeze`, or omit it")


def unused_options(config: Options) -> set[str]:
    """Return those of `OPTIONS` that have their default."""
    own = [field for field in dataclasses.fields(config) if field.name in OPTIONS]
    return {field.name for field in own if getattr(config, field.name) == field.default}
