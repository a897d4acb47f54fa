"""Conversion of an accumulating optimizer's arguments to and from a Keras config."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras


def resolved(optimizer: Any) -> Any:
    """Return the optimizer for a name or a config, and any other value unchanged."""
    if isinstance(optimizer, dict):
        return to_optimizer(optimizer, None)
    return tf_keras.optimizers.get(optimizer) if isinstance(optimizer, str) else optimizer


def to_optimizer(config: dict[str, Any], custom_objects: Any) -> Any:
    """Return the optimizer that a config describes."""
    # The table of optimizers in tf_keras lacks Lion and Adafactor.
    known = vars(tf_keras.optimizers) | (custom_objects or {})
    legacy = "module" not in config
    found = tf_keras.optimizers.deserialize(dict(config), known, use_legacy_format=legacy)
    # If tf_keras does not know the class, it returns the class's name.
    return revived(config, custom_objects) if isinstance(found, str) else found


def to_config(optimizer: Any) -> dict[str, Any]:
    """Return the arguments of an `AccumulatingOptimizer` as serializable values."""
    return {
        "optimizer": tf_keras.optimizers.serialize(optimizer.inner),
        "accumulation_steps": plain_steps(optimizer.accumulation_steps),
        "reduction": optimizer.reduction,
        "accumulator_dtype": optimizer.accumulator_dtype and optimizer.accumulator_dtype.name,
        "nonfinite": optimizer.nonfinite,
        "gradient_transform": tf_keras.saving.serialize_keras_object(optimizer.gradient_transform),
        "name": optimizer.name,
    }


def to_arguments(config: dict[str, Any], custom_objects: Any) -> dict[str, Any]:
    """Return the constructor arguments from a config that `to_config` returned."""
    arguments = dict(config)
    if isinstance(config["optimizer"], dict):
        arguments["optimizer"] = to_optimizer(config["optimizer"], custom_objects)
    for key in {"accumulation_steps", "gradient_transform"} & config.keys():
        arguments[key] = revived(config[key], custom_objects)
    return arguments


def plain_steps(steps: Any) -> Any:
    """Return `accumulation_steps` as a serializable value; a variable becomes its value."""
    if isinstance(steps, tf.Variable):
        return int(steps.numpy())
    return steps if isinstance(steps, int) else tf_keras.saving.serialize_keras_object(steps)


def revived(value: Any, custom_objects: Any) -> Any:
    """Return the object that a config describes, and any other value unchanged."""
    if not isinstance(value, dict):
        return value
    # For .h5 files tf_keras looks up only `class_name`, and only in the dict passed to it.
    known = vars(tf_keras.optimizers.schedules) | (custom_objects or {})
    name = value.get("registered_name") or value["class_name"]
    return tf_keras.saving.deserialize_keras_object(value | {"class_name": name}, known)


def described(kind: type, config: dict[str, Any]) -> dict[str, Any]:
    """Return the Keras serialization of an object of class `kind` with this config."""
    return {
        "module": kind.__module__,
        "class_name": kind.__name__,
        "config": config,
        "registered_name": tf_keras.saving.get_registered_name(kind),
    }
