"""TensorFlow replicas that accumulate separately, and one reduction per update.

Keras 3 clips each replica's gradients and then sums them, in each call of `apply`. Here, the
replicas accumulate separately, and the optimizer receives the mean of the window over all replicas.
On other backends there is one replica.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
from keras import ops

from bertaccum.keras3 import _keras_compat

_TENSORFLOW = keras.config.backend() == "tensorflow"
_TORCH = keras.config.backend() == "torch"
_JAX = keras.config.backend() == "jax"
if _TENSORFLOW:
    import tensorflow as tf
elif _JAX:
    import jax


def count() -> int:
    """Return the number of replicas that share an update."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync) if _TENSORFLOW else 1


def add(total: keras.Variable, gradient: Any, factor: Any) -> None:
    """Add a gradient, which may be `IndexedSlices`, times a scalar to this replica's sum."""
    if _is_sparse(gradient):
        product = mapped(lambda v: ops.multiply(ops.cast(v, total.dtype), factor), gradient)
        _keras_compat.local_component(total).scatter_add(product)
    elif _TORCH:
        # In place, because Keras would create the product, the sum and a copy.
        total.value.data.addcmul_(ops.cast(gradient, total.dtype), factor)
    else:
        total.assign_add(ops.multiply(ops.cast(gradient, total.dtype), factor))


def _is_sparse(gradient: Any) -> bool:
    return _TENSORFLOW and isinstance(gradient, tf.IndexedSlices)


def mapped(function: Callable[[Any], Any], gradient: Any) -> Any:
    """Return a gradient, which may be `IndexedSlices`, with the results of a function as values."""
    if not _is_sparse(gradient):
        return function(gradient)
    values = function(gradient.values)
    return type(gradient)(values, gradient.indices, gradient.dense_shape)


def after(tensors: Iterable[Any]) -> AbstractContextManager[Any]:
    """Return a context whose operations run only after these tensors have been computed.

    When a dataset ends, `fit` may start one more step, which fails when it reads the batch. On
    TensorFlow, operations of this step that do not depend on the batch would run nevertheless.
    """
    if not _TENSORFLOW:
        return nullcontext()
    return tf.control_dependencies([t.values if _is_sparse(t) else t for t in tensors])


def sums(values: Sequence[Any]) -> list[Any]:
    """Return the sums of tensors over all replicas, computed with one reduction."""
    if count() == 1:
        return list(values)
    # A value read from a variable has no device yet, but a reduction needs one.
    values = [tf.identity(value) for value in values]
    context = tf.distribute.get_replica_context()
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, values))


def is_compiled(tensors: Any) -> bool:
    """Return whether a step is compiled, so that known shapes do not depend on these tensors."""
    if _TENSORFLOW:
        return not tf.executing_eagerly()
    return _JAX and any(isinstance(one, jax.core.Tracer) for one in keras.tree.flatten(tensors))


def check_equal(one: Any, other: Any, message: str) -> None:
    """Raise an error if two numbers differ, when the step runs if they are unknown until then."""
    if _TENSORFLOW:
        tf.debugging.assert_equal(one, other, message)
    elif _JAX and not isinstance(one, int):
        jax.debug.callback(functools.partial(_raise_if_different, message), one, other)
    else:
        _raise_if_different(message, one, other)


def _raise_if_different(message: str, one: Any, other: Any) -> None:
    if one != other:
        raise ValueError(message)


def is_second_call(optimizer: Any, variables: Sequence[Any]) -> bool:
    """Return whether a call of an optimizer belongs to the same micro-step as an earlier one.

    This is visible only while TensorFlow traces a function. In the step of `fit`, each second call
    is one. In another function, calls with the same variables are several micro-steps.
    """
    if not _TENSORFLOW or tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "accumulating_calls"):
        graph.accumulating_calls = {}
    # Each replica is traced in a separate thread.
    key = id(optimizer), threading.get_ident()
    earlier = graph.accumulating_calls.setdefault(key, set())
    new = {id(variable) for variable in variables}
    second = bool(earlier) and (_keras_compat.is_in_step(graph) or earlier.isdisjoint(new))
    earlier |= new
    return second


def run_if(condition: Any, functions: Sequence[Callable[[], None]], which: Any) -> None:
    """Call one of some functions on each replica if a condition is true.

    Each replica must call `run_if`. Under a strategy, the branches are inside a `merge_call`,
    because TensorFlow forbids calling `merge_call`, as optimizers do, inside a branch on a replica,
    even if it is the only one.

    Args:
      condition: Whether to call a function, a bool scalar.
      functions: The functions.
      which: The position of the one to call, an integer.
    """
    context = _TENSORFLOW and tf.distribute.has_strategy() and tf.distribute.get_replica_context()
    if not context:
        ops.cond(condition, lambda: _call_one(functions, which), lambda: None)
        return

    def merged(strategy: Any, *values: Any) -> None:
        condition, which = (strategy.experimental_local_results(value)[0] for value in values)
        each = strategy.extended.call_for_each_replica
        calls = [functools.partial(each, function) for function in functions]
        ops.cond(condition, lambda: _call_one(calls, which), lambda: None)

    context.merge_call(merged, args=(condition, which))


def _call_one(functions: Sequence[Callable[[], None]], which: Any) -> None:
    if len(functions) == 1:
        functions[0]()
    else:
        ops.switch(which, functions)


def on_each(variable: keras.Variable, function: Callable[[], None]) -> None:
    """Call a function on each replica of a variable's strategy, from outside of the replicas."""
    strategy = _TENSORFLOW and getattr(variable.value, "distribute_strategy", None)
    if strategy and strategy.num_replicas_in_sync > 1:
        with strategy.scope():
            strategy.run(function)
    else:
        function()
