"""Checks of a traced `train_step` for actions that accumulation cannot make exact.

An optimizer that is applied twice is refused. Gradients that depend on weights which another
optimizer has already updated, and weights that change without an optimizer, cause a warning. These
two are visible only in graphs, not in eager mode.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import contract
from bertaccum.accumulation.checks import BATCH_NORMALIZATIONS, accumulates
from bertaccum.accumulation.gradient_tensors import Gradient, current_graph, values_of
from bertaccum.accumulation.replicas import here

_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


@dataclass(frozen=True)
class Update:
    """A call of an optimizer in a train_step.

    Attributes:
      variables: The variables that had a gradient.
      graph: The graph that was traced, or None in eager mode.
      operations: Positions of the call's operations in this graph; empty in eager mode.
    """

    optimizer: Any
    variables: Sequence[tf.Variable]
    graph: Any
    operations: range


@contextlib.contextmanager
def update(
    optimizer: Any, pairs: Sequence[tuple[Gradient, tf.Variable]], so_far: list[Update] | None
) -> Iterator[None]:
    """Add what an optimizer does in this context to the updates so far.

    Args:
      optimizer: The optimizer.
      pairs: The (gradient, variable) pairs that it was called with.
      so_far: The updates of the current micro-batch; None outside of an `AccumulatingModel`.

    Warns:
      UserWarning: If the gradients depend on weights that another optimizer has updated.

    Raises:
      ValueError: If the optimizer was already applied in the same micro-step, which is certain in
        a train_step. In another function, calls with the same variables are several micro-steps,
        as in an unrolled loop.
    """
    gradients = [g for g, _ in pairs if g is not None]
    variables = [v for g, v in pairs if g is not None]
    updates = _updates_in_graph() if so_far is None else so_far
    in_step = so_far is not None or _tf_compat.is_in_train_function(current_graph())
    for earlier in updates if accumulates(optimizer.accumulation_steps) else []:
        if earlier.optimizer is not optimizer:
            if in_step and _depends_on(gradients, earlier):
                contract.warn_of_new_weights(optimizer, earlier.optimizer)
        elif in_step or {*map(id, earlier.variables)}.isdisjoint(map(id, variables)):
            raise contract.applied_twice(optimizer)
    start = operations_so_far()
    yield
    updates.append(Update(optimizer, variables, current_graph(), range(start, operations_so_far())))


def _updates_in_graph() -> list[Update]:
    graph = current_graph()
    if graph is None:
        return []
    # Each replica is traced in a separate thread. An attribute lives as long as the graph.
    if not hasattr(graph, "accumulating_updates"):
        graph.accumulating_updates = {}
    return graph.accumulating_updates.setdefault(threading.get_ident(), [])


def warn_of_changed_weights(model: tf_keras.Model, start: int, updates: Iterable[Update]) -> None:
    """Warn about weights that the operations since `start` change without an optimizer.

    Metrics, random states, which are vectors of integers, and batch normalization, which has its
    own warning, do not count.
    """
    graph = current_graph()
    if graph is None:
        return
    own = [update for update in updates if update.graph is graph]
    by_optimizers = {i for update in own for i in update.operations}
    operations = graph.get_operations()
    outside = [op for i, op in enumerate(operations) if i >= start and i not in by_optimizers]
    # An optimizer may update its variables in a branch, which has no position of its own.
    trained = {id(here(v).handle) for update in updates for v in update.variables}
    changed = _handles(graph, _assigned(outside, called=False))
    changed |= _handles(graph, _assigned(outside, called=True)) - trained
    contract.warn_of_changing_state(
        [name for name, v in _weights(model) if id(here(v).handle) in changed]
    )


def operations_so_far() -> int:
    """Return the number of operations in the graph that is being traced; 0 in eager mode."""
    graph = current_graph()
    return 0 if graph is None else len(graph.get_operations())


def _depends_on(gradients: Sequence[Gradient], update: Update) -> bool:
    """Return whether gradients depend on variables that were read after an update of them."""
    graph = current_graph()
    if graph is None or graph is not update.graph:
        return False
    new = {op.name for op in graph.get_operations()[update.operations.stop :]}
    handles = {id(here(v).handle) for v in update.variables}
    waiting = [values_of(g).op for g in gradients if g is not None]
    seen = set()
    while waiting:
        op = waiting.pop()
        if op.name not in seen and op.name in new:
            seen.add(op.name)
            waiting += [tensor.op for tensor in op.inputs]
            if _handles(graph, {t.name for t in op.inputs if t.dtype == tf.resource}) & handles:
                return True
    return False


def _assigned(operations: Iterable[tf.Operation], called: bool) -> set[str]:
    """Return the names of the handles that operations, or what they call, assign."""
    names = set()
    for op in operations:
        if op.type in _ASSIGNMENTS or op.type.startswith(("ResourceScatter", "ResourceApply")):
            names.add(op.inputs[0].name)
        for graph in _tf_compat.called_graphs(op) if called else []:
            inside = _assigned(graph.get_operations(), called)
            # The captured tensors are the last inputs of both; a dataset has no others.
            pairs = zip(reversed(op.inputs), reversed(graph.inputs), strict=False)
            names |= {outer.name for outer, inner in pairs if inner.name in inside}
    return names


def _handles(graph: Any, names: set[str]) -> set[int]:
    """Return the `id` of the variables' own handles, from the names of handles in a graph."""
    if not names:
        return set()
    outside = [outer for outer, inner in graph.captures if inner.name in names]
    in_outer_graph = {tensor.name for tensor in outside if tf.is_symbolic_tensor(tensor)}
    found = {id(tensor) for tensor in outside if not tf.is_symbolic_tensor(tensor)}
    return found | (_handles(graph.outer_graph, in_outer_graph) if in_outer_graph else set())


def _weights(model: tf_keras.Model) -> Iterator[tuple[str, tf.Variable]]:
    """Yield the weights that should change only once per update, with their names."""
    kinds = (tf_keras.metrics.Metric, *BATCH_NORMALIZATIONS)
    others = [layer for layer in model.submodules if isinstance(layer, kinds)]
    excluded = {id(v) for layer in others for v in layer.variables}
    for variable in model.variables:
        counts = variable.dtype.is_floating or variable.shape.rank == 0
        if counts and id(variable) not in excluded:
            yield variable.name, variable
    for layer in model.submodules:
        # Keras does not count the states of a recurrent layer as its weights.
        if isinstance(layer, tf_keras.layers.RNN) and layer.stateful:
            for state in tf.nest.flatten(layer.states):
                if state is not None:
                    yield f"state of {layer.name}", state
