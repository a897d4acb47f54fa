"""An accumulating optimizer's arguments as plain values, as Keras saves them with a model."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras


def resolved(optimizer: Any) -> Any:
    """The optimizer that a name or a config means; an optimizer is returned as it is."""
    return tf_keras.optimizers.get(optimizer) if isinstance(optimizer, str | dict) else optimizer


def to_config(optimizer: Any) -> dict[str, Any]:
    """The arguments of an `AccumulatingOptimizer`; of a variable, its value."""
    steps, transform = optimizer.accumulation_steps, optimizer.gradient_transform
    if isinstance(steps, tf.Variable):
        steps = int(steps.numpy())
    elif not isinstance(steps, int):
        steps = tf_keras.saving.serialize_keras_object(steps)
    return {
        "optimizer": tf_keras.optimizers.serialize(optimizer.inner),
        "accumulation_steps": steps,
        "reduction": optimizer.reduction,
        "accumulator_dtype": optimizer.accumulator_dtype and optimizer.accumulator_dtype.name,
        "nonfinite": optimizer.nonfinite,
        "gradient_transform": transform and tf_keras.saving.serialize_keras_object(transform),
        "name": optimizer.name,
    }


def to_arguments(config: dict[str, Any], custom_objects: Any) -> dict[str, Any]:
    """The reverse of `to_config`."""
    arguments = dict(config)
    if isinstance(config["optimizer"], dict):
        arguments["optimizer"] = tf_keras.optimizers.deserialize(
            config["optimizer"], custom_objects
        )
    for key in ("accumulation_steps", "gradient_transform"):
        if isinstance(config.get(key), dict):
            arguments[key] = tf_keras.saving.deserialize_keras_object(config[key], custom_objects)
    return arguments
