"""Layers whose forward pass changes their own state."""

from __future__ import annotations

import types
from collections.abc import Iterator

import keras

from bertaccum.keras3 import _keras_compat
from bertaccum.keras3.batch_normalization import AccumBatchNormalization

_ASSIGNING = {"assign", "assign_add", "assign_sub"}
_STEP = ("call", "train_step", "compute_loss")


def names(model: keras.Model) -> list[str]:
    """Return which layers, or the model, have weights that change in a training step by themselves.

    These are Keras' own layers of this kind, and classes of the user whose `call`, `train_step` or
    `compute_loss` assigns a variable, itself or in other methods of the class.
    """
    return [f"of {one.name}" for one in (model, *_keras_compat.all_layers(model)) if _changes(one)]


def _changes(layer: keras.Layer) -> bool:
    if isinstance(layer, keras.layers.SpectralNormalization) or getattr(layer, "stateful", False):
        return True
    if isinstance(layer, AccumBatchNormalization):
        return False
    if layer.variables and not any("float" in v.dtype for v in layer.variables):
        return False  # Counters and random states.
    own = [one for one in type(layer).__mro__ if not one.__module__.startswith("keras.")]
    members = {name: member for one in reversed(own[:-1]) for name, member in vars(one).items()}
    waiting: set[str] = set(_STEP)
    seen: set[str] = set()
    while called := waiting - seen:
        seen |= called
        functions = [members[name] for name in called & members.keys()]
        codes = [one.__code__ for one in functions if isinstance(one, types.FunctionType)]
        waiting = {name for code in codes for name in _names_in(code)}
    return bool(_ASSIGNING & seen)


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Return the names that a function and the functions inside of it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
