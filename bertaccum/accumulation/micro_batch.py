"""The current micro-batch, through which a model's losses pass its weight to the optimizers.

Each loss reports its divisor: the number of examples, or of unmasked positions. An update divides
the sum of the window's gradients by the sum of the divisors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.accumulation.gradient_tensors import Gradient, current_graph, times
from bertaccum.accumulation.replicas import replicas_in_sync


@dataclass
class MicroBatch:
    """The current micro-batch of this replica and its weight.

    Attributes:
      examples: Number of examples, a scalar.
      size: Divisor of the total loss, a scalar: the number of examples until a loss reports
        another divisor.
      kind: Kind of the divisor `size`; None until the first loss has reported its divisor.
      loss_is_sum: Whether the total loss is a sum over the examples, so that nothing divides it.
      weight_given: Whether the user's `loss_weight` set `size`, so that losses do not change it.
      corrections: For each loss, the number to add to its value in the logs.
      updates: What the optimizers have done so far, each a `traced_step.Update`.
      calls: Number of training calls of each layer so far, keyed by the layer's `id`.
    """

    examples: tf.Tensor
    size: tf.Tensor
    kind: Hashable = None
    loss_is_sum: bool = False
    weight_given: bool = False
    corrections: dict[Any, tf.Tensor] = field(default_factory=dict)
    updates: list[Any] = field(default_factory=list)
    calls: Counter[int] = field(default_factory=Counter)


# Each replica is traced in a separate thread, so a context variable has one value per replica.
_CURRENT: ContextVar[MicroBatch | None] = ContextVar("micro_batch", default=None)


@contextmanager
def micro_batch(examples: tf.Tensor) -> Iterator[MicroBatch]:
    """Return a context in which `current` returns a new micro-batch of `examples` examples."""
    micro = MicroBatch(examples, size=examples)
    token = _CURRENT.set(micro)
    try:
        yield micro
    finally:
        _CURRENT.reset(token)


def current() -> MicroBatch | None:
    """Return the current micro-batch; None outside of an accumulating model's step."""
    return _CURRENT.get()


def call_number(layer: Any) -> int:
    """Count a training call of the layer; return its number in the micro-batch, starting at 0."""
    micro = _CURRENT.get()
    if micro is None:
        return 0
    micro.calls[id(layer)] += 1
    return micro.calls[id(layer)] - 1


def check_function() -> None:
    """Raise ValueError if `size` is from another function than the traced one: a constant there."""
    micro = _CURRENT.get()
    if micro is None:
        return
    if not _tf_compat.is_in_function_of(current_graph(), getattr(micro.size, "graph", None)):
        raise ValueError(
            "a tf.function around train_step, or around a part of it, does not receive the sizes"
            " of micro-batches; remove it, because fit and train_on_batch trace the whole step"
        )


def correction(loss: Any) -> Any:
    """Return the number to add to the logged value of a loss; 0 outside of a micro-batch."""
    micro = _CURRENT.get()
    return 0.0 if micro is None else micro.corrections.get(loss, 0.0)


def has_values(loss: Any) -> bool:
    """Return whether a loss has one value per example; its gradient is that of their sum.

    Keras adds the values of `add_loss` to the total loss without taking their mean.
    """
    return bool(getattr(loss, "shape", None) is not None and loss.shape.rank)


def weigh(
    gradients: list[Gradient], first: tf.Tensor, loss_is_sum: bool
) -> tuple[list[Gradient], tf.Tensor]:
    """Convert the gradients of a mean loss to gradients of a sum, and return them with a weight.

    If the loss is a sum already, the weights of a window add up to 1. Outside of the step of an
    `AccumulatingModel`, all micro-batches are assumed to have the same size.

    Args:
      gradients: Gradients of this replica's share of the mean loss.
      first: Whether this is the first micro-step of the window, a bool scalar.
      loss_is_sum: Whether the optimizer has seen that the loss is a sum.

    Returns:
      The summed gradients and their weight, a float64 scalar.
    """
    micro = _CURRENT.get()
    is_sum = loss_is_sum or (micro is not None and micro.loss_is_sum)
    if micro is not None and not is_sum:
        size = tf.cast(micro.size, tf.float64)
        return [times(g, size * replicas_in_sync()) for g in gradients], size
    weight = tf.cast(first, tf.float64) if is_sum else tf.ones([], tf.float64)
    return gradients, weight / replicas_in_sync()
