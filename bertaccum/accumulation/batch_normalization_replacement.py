"""Replacement of a model's batch normalization layers with `AccumBatchNormalization`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation.batch_normalization import AccumBatchNormalization
from bertaccum.accumulation.checks import BATCH_NORMALIZATIONS, check_is_model
from bertaccum.accumulation.contract import own_class
from bertaccum.accumulation.model import AccumulatingModel, accumulate_gradients


def replace_batch_normalization(
    model: tf_keras.Model, accumulation_steps: int | tf.Variable
) -> tf_keras.Model:
    """Return a copy of a model in which `AccumBatchNormalization` replaces batch normalization.

    The copy has the same weights, names, structure and predictions, and so do its nested models.
    It is not compiled. The original model does not change.

    Args:
      model: A functional or Sequential model.
      accumulation_steps: See `AccumBatchNormalization`.

    Returns:
      The copy.

    Raises:
      TypeError: If `model` is not a tf_keras model.
      ValueError: If the model has no batch normalization, or has one inside a subclassed model,
        a custom layer or a wrapper, which cannot be copied layer by layer.
    """
    check_is_model(model)
    if not _inside(model):
        raise ValueError(f"model {model.name!r} has no BatchNormalization to replace")
    pairs: list[tuple[tf_keras.layers.Layer, tf_keras.layers.Layer]] = []

    def clone_layer(layer: tf_keras.layers.Layer) -> tf_keras.layers.Layer:
        if isinstance(layer, BATCH_NORMALIZATIONS):
            clone = _accumulating(layer, accumulation_steps)
        elif _inside(layer):
            return _clone_model(layer, clone_layer)
        else:
            clone = _copied(layer)
        pairs.append((layer, clone))
        return clone

    copy = _clone_model(model, clone_layer)
    for layer, clone in pairs:
        clone.set_weights(layer.get_weights())
    return copy


def _clone_model(model: Any, clone_layer: Any) -> tf_keras.Model:
    clone: Any = None
    if isinstance(model, tf_keras.Sequential) or _tf_compat.is_graph_network(model):
        clone = tf_keras.models.clone_model(model, clone_function=clone_layer)
        # Keras clones every Sequential model as a plain one.
        if isinstance(model, AccumulatingModel) and isinstance(model, tf_keras.Sequential):
            accumulate_gradients(clone, *model._accumulation)
    # Keras clones some subclasses of functional models as plain functional models.
    if clone is None or own_class(clone) is not own_class(model):
        raise ValueError(
            f"{own_class(model).__name__} {model.name!r} has a BatchNormalization inside, but only"
            " functional and Sequential models can be copied layer by layer; use"
            " AccumBatchNormalization in its definition"
        )
    _tf_compat.copy_trainable(model, clone)  # The config of each layer already contains it.
    return clone


def _accumulating(layer: Any, accumulation_steps: int | tf.Variable) -> AccumBatchNormalization:
    if type(layer) not in (*BATCH_NORMALIZATIONS, AccumBatchNormalization):
        raise ValueError(
            f"layer {layer.name!r} is a {type(layer).__name__}, whose changes to"
            " BatchNormalization AccumBatchNormalization would lose; derive the class from"
            " AccumBatchNormalization"
        )
    options = {"synchronized": layer.synchronized, "fused": layer.fused}
    config = layer.get_config() | options | {"accumulation_steps": accumulation_steps}
    return AccumBatchNormalization(**config)


def _copied(layer: tf_keras.layers.Layer) -> tf_keras.layers.Layer:
    try:
        return type(layer).from_config(layer.get_config())
    except NotImplementedError as error:
        raise ValueError(
            f"layer {layer.name!r} cannot be copied: {type(layer).__name__} has no get_config();"
            " define it"
        ) from error


def _inside(layer: tf_keras.layers.Layer) -> bool:
    """Return whether the layer contains batch normalization, at any depth."""
    return any(isinstance(part, BATCH_NORMALIZATIONS) for part in layer.submodules)
