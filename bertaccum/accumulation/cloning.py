"""`tf_keras.models.clone_model` of an accumulating Sequential model.

`clone_model` makes other models from their class or config, which both know of accumulation,
but builds a plain `Sequential` from the layers of a Sequential one. It calls a private function
to do so, checked against tf_keras 2.20, which is wrapped here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tf_keras
from tf_keras.src.models import cloning

Accumulate = Callable[[tf_keras.Model, tf_keras.Model], tf_keras.Model]


def after_cloning(kind: type, accumulate: Accumulate) -> None:
    """From now on, pass every clone of a Sequential model of this kind on.

    Args:
      kind: a class.
      accumulate: gets the clone and its original, and returns what `clone_model` is to return.
    """
    clone_sequential = cloning._clone_sequential_model

    @functools.wraps(clone_sequential)
    def wrapper(model: tf_keras.Model, *args: Any, **kwargs: Any) -> tf_keras.Model:
        clone = clone_sequential(model, *args, **kwargs)
        return accumulate(clone, model) if isinstance(model, kind) else clone

    cloning._clone_sequential_model = wrapper
