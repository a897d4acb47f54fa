"""Variables that each replica changes by itself, and values that are the same on all."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def summed(value: tf.Tensor, name: str) -> tf.Variable:
    """A variable of each replica's own; what is saved is the sum over replicas."""
    return _own(value, name, tf.VariableAggregation.SUM)


def alike(value: Any, dtype: tf.DType, name: str) -> tf.Variable:
    """A scalar that all replicas change alike, each its own: no communication is needed."""
    return _own(tf.constant(value, dtype), name, tf.VariableAggregation.ONLY_FIRST_REPLICA)


def _own(value: tf.Tensor, name: str, aggregation: tf.VariableAggregation) -> tf.Variable:
    return tf.Variable(
        value,
        trainable=False,
        name=name,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=aggregation,
    )


def here(variable: tf.Variable) -> tf.Variable:
    """This replica's component; only it, not the distributed variable, can be scattered to."""
    return variable._get() if hasattr(variable, "_get") else variable


def first(value: Any) -> Any:
    """The first local replica's value of what is the same on all."""
    return tf.distribute.get_strategy().experimental_local_results(value)[0]
