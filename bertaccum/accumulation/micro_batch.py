"""The current micro-batch, through which a model's losses pass its weight to the optimizers.

Each loss reports its divisor. In most models all losses have the same divisor: the number of
examples, or of unmasked positions. An update divides the sum of the window's gradients by the sum
of its divisors. If outputs have different masks, their losses have different divisors, whose sums
are known only when the window ends. Losses whose divisor differs from that of the first loss then
form one `LossPart` per divisor, and the gradients of each part are accumulated separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.accumulation.gradient_tensors import Gradient, current_graph, times
from bertaccum.accumulation.replicas import replicas_in_sync


@dataclass
class LossPart:
    """Losses that share a divisor, which differs from the divisor of the total loss.

    Attributes:
      size: The divisor of the losses on this replica, a scalar.
      losses: Pairs of the value of a loss and its term in the total loss.
    """

    size: tf.Tensor
    losses: list[tuple[tf.Tensor, tf.Tensor]] = field(default_factory=list)


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
      parts: Losses with other divisors, keyed by the kind of divisor.
      corrections: For each loss, the number to add to its value in the logs.
      part_gradients: For each optimizer, keyed by its `id`, the (gradient, variable) pairs that
        it computed for each part.
      updates: What the optimizers that have used `size` did; see `traced_step.py`.
      calls: Number of training calls of each layer so far, keyed by the layer's `id`.
    """

    examples: tf.Tensor
    size: tf.Tensor
    kind: Hashable = None
    loss_is_sum: bool = False
    weight_given: bool = False
    parts: dict[Hashable, LossPart] = field(default_factory=dict)
    corrections: dict[Any, tf.Tensor] = field(default_factory=dict)
    part_gradients: dict[int, list[list[tuple[Any, tf.Variable]]]] = field(default_factory=dict)
    updates: list[Any] = field(default_factory=list)
    calls: Counter[int] = field(default_factory=Counter)


# Each replica is traced in a separate thread, so a context variable has one value per replica.
_PRESENT: ContextVar[MicroBatch | None] = ContextVar("micro_batch", default=None)


@contextmanager
def micro_batch(examples: tf.Tensor) -> Iterator[MicroBatch]:
    """Return a context in which `present` returns a new micro-batch of `examples` examples."""
    micro = MicroBatch(examples, size=examples)
    token = _PRESENT.set(micro)
    try:
        yield micro
    finally:
        _PRESENT.reset(token)


def present() -> MicroBatch | None:
    """Return the micro-batch of the innermost `micro_batch` context, or None outside of one."""
    return _PRESENT.get()


def call_number(layer: Any) -> int:
    """Count a training call of the layer; return its number in the micro-batch, starting at 0."""
    micro = _PRESENT.get()
    if micro is None:
        return 0
    micro.calls[id(layer)] += 1
    return micro.calls[id(layer)] - 1


def check_function() -> None:
    """Raise ValueError if the size was computed outside of the function that is being traced.

    The function would treat the size as a constant.
    """
    micro = _PRESENT.get()
    if micro is None:
        return
    if not _tf_compat.is_in_function_of(current_graph(), getattr(micro.size, "graph", None)):
        raise ValueError(
            "a tf.function around train_step, or around a part of it, does not receive the sizes"
            " of micro-batches; remove it, because fit and train_on_batch trace the whole step"
        )


def correction(loss: Any) -> Any:
    """Return the number to add to the logged value of a loss; 0 outside of a micro-batch."""
    micro = _PRESENT.get()
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

    If the loss is a sum already, the weights of a window add up to 1.

    Args:
      gradients: The gradients that Keras computed. Their loss is this replica's share of the mean
        over all replicas.
      first: Whether this is the first micro-step of the window, a bool scalar.
      loss_is_sum: Whether the optimizer has seen that the loss is a sum.

    Returns:
      The summed gradients and their weight, a float64 scalar. Outside of the step of an
      `AccumulatingModel`, all micro-batches are assumed to have the same size.
    """
    micro = _PRESENT.get()
    is_sum = loss_is_sum or (micro is not None and micro.loss_is_sum)
    if micro is not None and not is_sum:
        return _summed(gradients, micro.size)
    weight = tf.cast(first, tf.float64) if is_sum else tf.ones([], tf.float64)
    return gradients, weight / replicas_in_sync()


def weigh_parts(
    optimizer: Any, in_order: Callable[[Any], list[Gradient]]
) -> list[tuple[list[Gradient], tf.Tensor]]:
    """Return the summed gradients and the weight of each loss part, as `weigh` does.

    Args:
      optimizer: The calling optimizer, which has called `differentiate_parts`.
      in_order: A function that maps (gradient, variable) pairs to a list with a gradient or None
        for each of the optimizer's variables.

    Raises:
      ValueError: If the optimizer has not called `differentiate_parts`.
    """
    micro = _PRESENT.get()
    if micro is None or not micro.parts:
        return []
    if id(optimizer) not in micro.part_gradients:
        raise ValueError(
            "the outputs of this model have different masks, so their losses are accumulated"
            " separately; in a custom train_step, call"
            " optimizer.minimize(loss, variables, tape=tape)"
        )
    own = zip(micro.part_gradients[id(optimizer)], micro.parts.values(), strict=True)
    return [_summed(in_order(pairs), part.size) for pairs, part in own]


def _summed(gradients: list[Gradient], size: tf.Tensor) -> tuple[list[Gradient], tf.Tensor]:
    size = tf.cast(size, tf.float64)
    return [times(g, size * replicas_in_sync()) for g in gradients], size


def differentiate_parts(optimizer: Any, pairs: list[Any], loss: tf.Tensor, factor: Any) -> list:
    """Compute the gradients of the current loss parts, which `weigh_parts` will return.

    Args:
      optimizer: The calling optimizer.
      pairs: (gradient, variable) pairs of the total loss.
      loss: The total loss, which contains the parts' values without their gradients. Its
        derivative with respect to the value of a part is the part's weight in the total: the
        product of the loss weight, the replica's share and the loss scale.
      factor: Factor by which the parts' gradients are multiplied, a scalar.

    Returns:
      The pairs. If only loss parts depend on a variable, its gradient is zeros instead of None.

    Raises:
      ValueError: If there are loss parts and the optimizer is inside a `LossScaleOptimizer`,
        which would unscale the gradients of the total loss but not those of the parts.
    """
    micro = _PRESENT.get()
    if micro is None or not micro.parts:
        return pairs
    if _tf_compat.is_wrapped_by_loss_scale(optimizer):
        raise ValueError(
            "the outputs of this model have different masks, so their losses are accumulated"
            " separately; put the LossScaleOptimizer inside:"
            " AccumulatingOptimizer(LossScaleOptimizer(optimizer), accumulation_steps)"
        )
    variables = [v for _, v in pairs]
    found = []
    for part in micro.parts.values():
        values, stand_ins = (list(column) for column in zip(*part.losses, strict=True))
        shares = tf.gradients(loss, stand_ins, unconnected_gradients="zero")
        gradients = tf.gradients(values, variables, grad_ys=shares)
        found.append([times(gradient, factor) for gradient in gradients])
    micro.part_gradients[id(optimizer)] = [list(zip(g, variables, strict=True)) for g in found]
    reached = [any(g is not None for g in gradients) for gradients in zip(*found, strict=True)]
    return [
        (tf.zeros(v.shape, v.dtype) if g is None and wanted else g, v)
        for (g, v), wanted in zip(pairs, reached, strict=True)
    ]
