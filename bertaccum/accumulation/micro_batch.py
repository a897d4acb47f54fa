"""What a model tells whatever optimizer its step uses about the present micro-batch.

A loss says what it divided by. Most models have one divisor for all losses: the number of
examples, or of unmasked positions. An update needs the sum of gradients over the sum of divisors,
both over the window; outputs with different masks have different divisors, which are known only
when the window ends. Until then the gradients of each such `LossPart` are accumulated apart.
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
from bertaccum.accumulation.gradient_tensors import Gradient, times
from bertaccum.accumulation.replicas import replicas_in_sync


@dataclass
class LossPart:
    """Losses of outputs that share a divisor that the other losses do not have.

    Attributes:
      size: what the losses divided by on this replica, a scalar.
      losses: their values, each with the tensor that stands for it in the total loss.
    """

    size: tf.Tensor
    losses: list[tuple[tf.Tensor, tf.Tensor]] = field(default_factory=list)


@dataclass
class MicroBatch:
    """The micro-batch that this replica is working on, and what it weighs.

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
    if not _tf_compat.is_in_function_of(graph, own):
        raise ValueError(
            "a tf.function around a train_step, or a part of it, does not learn the sizes of"
            " micro-batches; remove it: fit and train_on_batch make one of the whole step"
        )
    micro.optimizers.append(optimizer)
    return micro


def weigh(optimizer: Any, gradients: list[Gradient]) -> tuple[list[Gradient], tf.Tensor]:
    """Return sums over examples and their weight, from gradients of a mean.

    Args:
      optimizer: the one that asks.
      gradients: as Keras computes them, of this replica's share of a mean over all replicas.

    Returns:
      Gradients, and what they weigh, float64. Outside of a model's step all micro-batches are
      taken to be of one size.
    """
    micro = present_for(optimizer)
    if micro is None:
        return gradients, tf.constant(1 / replicas_in_sync(), tf.float64)
    return _summed(gradients, micro.size)


def weigh_parts(
    optimizer: Any, in_order: Callable[[Any], list[Gradient]]
) -> list[tuple[list[Gradient], tf.Tensor]]:
    """Return, as `weigh` does, the gradients and the weight of each loss part.

    Args:
      optimizer: the one that asks, which has called `differentiate_parts`.
      in_order: maps (gradient, variable) pairs to one gradient for each of its variables.

    Raises:
      ValueError: it has not called `differentiate_parts`.
    """
    micro = _PRESENT.get()
    if micro is None or not micro.parts:
        return []
    if id(optimizer) not in micro.part_gradients:
        raise ValueError(
            "the outputs of this model have different masks, so their losses are accumulated"
            " separately; a train_step of one's own has to call"
            " optimizer.minimize(loss, variables, tape=tape)"
        )
    own = zip(micro.part_gradients[id(optimizer)], micro.parts.values(), strict=True)
    return [_summed(in_order(pairs), part.size) for pairs, part in own]


def _summed(gradients: list[Gradient], size: tf.Tensor) -> tuple[list[Gradient], tf.Tensor]:
    size = tf.cast(size, tf.float64)
    return [times(g, size * replicas_in_sync()) for g in gradients], size


def differentiate_parts(optimizer: Any, pairs: list[Any], loss: tf.Tensor, factor: Any) -> list:
    """Compute the gradients of the present loss parts, for `weigh_parts` to return.

    Args:
      optimizer: the one that asks.
      pairs: (gradient, variable) of the loss.
      loss: the total, in which the parts have values without gradients. Its derivative with
        respect to them says how much each counts: loss weights, replicas, the loss scale.
      factor: to multiply the parts' gradients by.

    Returns:
      The pairs, with zeros for variables that only parts have a gradient of.

    Raises:
      ValueError: there are loss parts, and a `LossScaleOptimizer` is around the optimizer. It
        would unscale the gradients of the loss, but not those of the parts.
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
