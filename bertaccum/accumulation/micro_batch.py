"""What a model tells whatever optimizer its step uses about the present micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

_BRANCHES = ("CondBranchFuncGraph", "WhileCondFuncGraph", "WhileBodyFuncGraph")


@dataclass
class MicroBatch:
    """How many examples it has on this replica, and which optimizers have asked for that."""

    size: tf.Tensor
    optimizers: list[Any] = field(default_factory=list)


# Each replica is traced in a thread of its own, which a context variable tells apart.
_PRESENT: ContextVar[MicroBatch | None] = ContextVar("micro_batch", default=None)


@contextmanager
def micro_batch(size: tf.Tensor) -> Iterator[MicroBatch]:
    """Inside, gradients are of a mean over `size` examples."""
    present = MicroBatch(size)
    token = _PRESENT.set(present)
    try:
        yield present
    finally:
        _PRESENT.reset(token)


def resize(size: tf.Tensor) -> None:
    """Corrects the size, if there is a micro-batch."""
    present = _PRESENT.get()
    if present is not None:
        present.size = size


def size_for(optimizer: Any) -> tf.Tensor | None:
    """What the innermost `micro_batch` said; None outside.

    Raises:
      ValueError: the size belongs to another function than the one being traced, which
        would go on with it when the size has changed.
    """
    present = _PRESENT.get()
    if present is None:
        return None
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while type(graph).__name__ in _BRANCHES:
        graph = graph.outer_graph
    if getattr(present.size, "graph", None) is not graph:
        raise ValueError(
            "a tf.function around a train_step, or a part of it, does not learn the sizes of"
            " micro-batches; remove it: fit and train_on_batch make one of the whole step"
        )
    present.optimizers.append(optimizer)
    return present.size
