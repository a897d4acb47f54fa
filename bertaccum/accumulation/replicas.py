"""Variables that each replica changes by itself, and values that are the same on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bertaccum import _tf_compat


def summed(value: tf.Tensor, name: str) -> tf.Variable:
    """Make a variable of each replica's own; a checkpoint holds the sum over replicas."""
    return replicated(value, tf.VariableAggregation.SUM, name)


def alike(value: Any, dtype: tf.DType, name: str) -> tf.Variable:
    """Make a scalar that all replicas change alike, each its own, without communication."""
    return replicated(tf.constant(value, dtype), tf.VariableAggregation.ONLY_FIRST_REPLICA, name)


def replicated(
    value: tf.Tensor, aggregation: tf.VariableAggregation, name: str | None = None
) -> tf.Variable:
    """Make a variable that each replica changes by itself.

    Args:
      value: the initial value, on every replica.
      aggregation: how the replicas' values become one where it is read or saved outside them.
      name: of the variable.
    """
    return tf.Variable(
        value,
        trainable=False,
        name=name,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=aggregation,
    )


def here(variable: tf.Variable) -> tf.Variable:
    """Return this replica's component of a variable; only that can be scattered to."""
    return _tf_compat.local_component(variable)


def first(value: Any) -> Any:
    """Return the first local replica's value of what is the same on all."""
    return tf.distribute.get_strategy().experimental_local_results(value)[0]


def strategy_outside_replicas(variable: tf.Variable | None) -> tf.distribute.Strategy | None:
    """Return the strategy of a variable, or None inside one of its replicas.

    Code outside `strategy.scope()` is outside all replicas, too, and only the variable knows the
    strategy there.
    """
    present = tf.distribute.get_strategy()
    if tf.distribute.in_cross_replica_context():
        return present
    own = getattr(variable, "distribute_strategy", present)
    return None if own is present else own


def run_on_all(
    strategy: tf.distribute.Strategy, function: Callable[..., Any], *arguments: Any
) -> Any:
    """Call a function on all replicas, and return the results of the first local one."""
    results = strategy.run(function, args=arguments)
    return tf.nest.map_structure(lambda r: strategy.experimental_local_results(r)[0], results)


def run_if(condition: tf.Tensor, function: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Call a function on all replicas if a condition holds; called on each of them.

    Replicas are merged first and the branch is taken after: a merge inside a branch that one
    replica takes is an error in TensorFlow.

    Args:
      condition: bool scalar, the same on all replicas.
      function: returns a bool scalar, the same on all replicas.

    Returns:
      What the function returned, or False.
    """

    def merged(strategy: tf.distribute.Strategy, condition: Any) -> tf.Tensor:
        def call() -> tf.Tensor:
            return first(strategy.extended.call_for_each_replica(function))

        return tf.cond(first(condition), call, lambda: tf.constant(False))

    return tf.distribute.get_replica_context().merge_call(merged, args=(condition,))


def replicas_in_sync() -> int:
    """Return the number of replicas that share an update, this one included."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def sum_over_replicas(
    tensors: list[tf.Tensor], numbers: tf.Tensor
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Add up over replicas, all in one reduction (one a type, should there be several).

    Args:
      tensors: this replica's.
      numbers: [n] float64, this replica's. They travel with the tensors, in their type: as
        exact as they are.

    Returns:
      The sums of both.
    """
    if replicas_in_sync() == 1:
        return tensors, numbers
    context = tf.distribute.get_replica_context()
    summed_up: dict[int, tf.Tensor] = {}
    # What was read from a variable has no device yet, and several workers need one.
    values = [tf.identity(value) for value in (*tensors, tf.cast(numbers, tensors[0].dtype))]
    for dtype in sorted({value.dtype for value in values}, key=lambda dtype: dtype.name):
        of_type = [i for i, value in enumerate(values) if value.dtype == dtype]
        group = [values[i] for i in of_type]
        reduced = context.all_reduce(tf.distribute.ReduceOp.SUM, group)
        summed_up.update(zip(of_type, reduced, strict=True))
    *sums, totals = (summed_up[i] for i in range(len(values)))
    return sums, tf.cast(totals, numbers.dtype)
