"""Per-replica variables, and functions that communicate between replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bertaccum import _tf_compat


def summed(value: tf.Tensor, name: str) -> tf.Variable:
    """Create a per-replica variable that a checkpoint saves as the sum over replicas."""
    return replicated(value, tf.VariableAggregation.SUM, name)


def alike(value: Any, dtype: tf.DType, name: str) -> tf.Variable:
    """Create a per-replica variable to which all replicas assign the same values."""
    initial = tf.convert_to_tensor(value, dtype)
    return replicated(initial, tf.VariableAggregation.ONLY_FIRST_REPLICA, name)


def replicated(
    value: tf.Tensor, aggregation: tf.VariableAggregation, name: str | None = None
) -> tf.Variable:
    """Create a variable that each replica updates; `aggregation` is its value outside of them."""
    return tf.Variable(
        value,
        trainable=False,
        name=name,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=aggregation,
    )


def here(variable: tf.Variable) -> tf.Variable:
    """Return this replica's component of a variable; only a component supports `scatter_add`."""
    return _tf_compat.local_component(variable)


def first(value: Any) -> Any:
    """Return the first local replica's component of a value that is the same on all replicas."""
    return tf.distribute.get_strategy().experimental_local_results(value)[0]


def strategy_outside_replicas(variable: tf.Variable | None) -> tf.distribute.Strategy | None:
    """Return a variable's strategy if the caller is outside of its replicas, otherwise None.

    Outside of `strategy.scope()`, only the variable knows the strategy.
    """
    present = tf.distribute.get_strategy()
    if tf.distribute.in_cross_replica_context():
        return present
    own = getattr(variable, "distribute_strategy", present)
    return None if own is present else own


def run_on_all(
    strategy: tf.distribute.Strategy, function: Callable[..., Any], *arguments: Any
) -> Any:
    """Call a function on all replicas, and return the results of the first local replica."""
    results = strategy.run(function, args=arguments)
    return tf.nest.map_structure(lambda r: strategy.experimental_local_results(r)[0], results)


def run_if(condition: tf.Tensor, function: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Call a function on all replicas if a condition is true; each replica must call `run_if`.

    The branch is inside a `merge_call`, because TensorFlow forbids calling `merge_call` inside a
    branch on a replica. Condition and result are bool scalars, the same on all replicas; the
    result is False if the function was not called.
    """

    def merged(strategy: tf.distribute.Strategy, condition: Any) -> tf.Tensor:
        def call() -> tf.Tensor:
            return first(strategy.extended.call_for_each_replica(function))

        return tf.cond(first(condition), call, lambda: tf.constant(False))

    return tf.distribute.get_replica_context().merge_call(merged, args=(condition,))


def replicas_in_sync() -> int:
    """Return the number of replicas that share an update."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def sum_over_replicas(
    tensors: list[tf.Tensor], numbers: tf.Tensor
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return the sums over replicas of tensors and of numbers, [n] float64.

    There is one reduction per dtype. The numbers are reduced in the first tensor's dtype, if there
    is one, and therefore with its precision.
    """
    if replicas_in_sync() == 1:
        return tensors, numbers
    context = tf.distribute.get_replica_context()
    # A value read from a variable has no device yet, but a reduction over workers needs one.
    dtype = tensors[0].dtype if tensors else numbers.dtype
    values = [tf.identity(value) for value in (*tensors, tf.cast(numbers, dtype))]
    for dtype in sorted({value.dtype for value in values}, key=lambda dtype: dtype.name):
        of_type = [i for i, value in enumerate(values) if value.dtype == dtype]
        group = [values[i] for i in of_type]
        reduced = context.all_reduce(tf.distribute.ReduceOp.SUM, group)
        for i, total in zip(of_type, reduced, strict=True):
            values[i] = total
    *sums, totals = values
    return sums, tf.cast(totals, numbers.dtype)
