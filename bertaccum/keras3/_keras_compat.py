"""All uses of private names of Keras 3 in this package, checked with Keras 3.15."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras.src.backend.common.masking import get_keras_mask


def mask_of(tensor: Any) -> Any | None:
    """Return the mask that Keras has attached to a tensor, or None."""
    # Tensors of JAX cannot have attributes, so Keras keeps their masks in a table.
    return get_keras_mask(tensor)


def replace_losses(
    model: keras.Model, y: Any, y_pred: Any, by: Callable[[keras.losses.Loss], keras.losses.Loss]
) -> None:
    """Replace the losses in the container that `compile` made, and build it if necessary."""
    container = model._compile_loss
    if container is None:
        return
    if not container.built:
        container.build(y, y_pred)
    container._flat_losses = [one._replace(loss=by(one.loss)) for one in container._flat_losses]


def own_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the variables of an optimizer without those of its inner optimizer."""
    return list(optimizer._variables)


def position(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> int:
    """Return the position of a variable among those that an optimizer was built with."""
    return int(optimizer._get_variable_index(variable))


def trained(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the variables that an optimizer was built with."""
    return list(optimizer._trainable_variables)
