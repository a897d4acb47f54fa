"""What a model tells whatever optimizer its step uses about the present micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

_BRANCHES = ("CondBranchFuncGraph", "WhileCondFuncGraph", "WhileBodyFuncGraph")


@dataclass
class LossPart:
    """Losses of outputs that share a divisor which the other losses do not have.

    Attributes:
      size: what the losses divided by on this replica, a scalar.
      losses: their values, each with the tensor that stands for it in the total loss.
    """

    size: tf.Tensor
    losses: list[tuple[tf.Tensor, tf.Tensor]] = field(default_factory=list)


@dataclass
class MicroBatch:
    """The weight of the micro-batch that this replica is working on.

    Attributes:
      examples: how many there are.
      size: what the total loss divided by: the number of examples until a loss says otherwise.
      kind: which divisor `size` is; None until the first loss has reported its own.
      weight_given: `size` is the user's own, and losses are not to change it.
      parts: the losses with other divisors, by the kind of divisor.
      part_gradients: each part's gradients with their variables, by the identity of the
        optimizer that computed them.
      optimizers: those that asked for the size.
      calls: how often layers were called in training so far, by their identity.
    """

    examples: tf.Tensor
    size: tf.Tensor
    kind: Hashable = None
    weight_given: bool = False
    parts: dict[Hashable, LossPart] = field(default_factory=dict)
    part_gradients: dict[int, list[list[tuple[Any, tf.Variable]]]] = field(default_factory=dict)
    optimizers: list[Any] = field(default_factory=list)
    calls: Counter[int] = field(default_factory=Counter)


# Each replica is traced in a thread of its own, which a context variable tells apart.
_PRESENT: ContextVar[MicroBatch | None] = ContextVar("micro_batch", default=None)


@contextmanager
def micro_batch(examples: tf.Tensor) -> Iterator[MicroBatch]:
    """Begin a micro-batch of so many examples on this replica."""
    micro = MicroBatch(examples, size=examples)
    token = _PRESENT.set(micro)
    try:
        yield micro
    finally:
        _PRESENT.reset(token)


def present() -> MicroBatch | None:
    """Return the micro-batch of the innermost `micro_batch`, or None outside."""
    return _PRESENT.get()


def call_number(layer: Any) -> int:
    """Count a call of the layer in training; return its number within the micro-batch, from 0."""
    micro = _PRESENT.get()
    if micro is None:
        return 0
    micro.calls[id(layer)] += 1
    return micro.calls[id(layer)] - 1


def present_for(optimizer: Any) -> MicroBatch | None:
    """Return the present micro-batch, and note that the optimizer uses it; None outside.

    Raises:
      ValueError: the size belongs to another function than the one being traced, which
        would go on with it when the size has changed.
    """
    micro = _PRESENT.get()
    if micro is None:
        return None
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    own = getattr(micro.size, "graph", None)
    while graph is not own:
        if type(graph).__name__ not in _BRANCHES:
            raise ValueError(
                "a tf.function around a train_step, or a part of it, does not learn the sizes of"
                " micro-batches; remove it: fit and train_on_batch make one of the whole step"
            )
        graph = graph.outer_graph
    micro.optimizers.append(optimizer)
    return micro
