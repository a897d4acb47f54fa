"""Layers whose forward pass changes their own state."""

from __future__ import annotations

import types
from collections.abc import Iterator

import keras

from bertaccum.keras3 import _keras_compat
from bertaccum.keras3.batch_statistics import AccumBatchNormalization

_ASSIGNING = {"assign", "assign_add", "assign_sub"}
# Methods that may assign state, but not in a training step.
_OUTSIDE = {"__init__", "build", "adapt", "reset_state", "load_own_variables", "quantize"}


def names(model: keras.Model) -> list[str]:
    """Return which layers, or the model, have weights that change in a training step by themselves.

    These are Keras' own layers of this kind, and classes of the user with a method that assigns a
    variable.
    """
    return [f"of {one.name}" for one in (model, *_keras_compat.all_layers(model)) if _changes(one)]


def _changes(layer: keras.Layer) -> bool:
    if isinstance(layer, keras.layers.SpectralNormalization) or getattr(layer, "stateful", False):
        return True
    if isinstance(layer, AccumBatchNormalization):
        return False
    own = [one for one in type(layer).__mro__ if not one.__module__.startswith("keras.")]
    methods = (vars(one).items() for one in own if one is not object)
    return any(
        _ASSIGNING.intersection(_names_in(method.__code__))
        for items in methods
        for name, method in items
        if isinstance(method, types.FunctionType) and name not in _OUTSIDE
    )


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Return the names that a function and the functions inside of it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
