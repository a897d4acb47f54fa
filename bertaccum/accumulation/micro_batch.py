"""The current micro-batch, and the losses that pass its weight to the optimizers.

Each loss reports its divisor: the number of examples, or of unmasked positions. An update divides
the sum of the window's gradients by the sum of the divisors.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import contract, tapes
from bertaccum.accumulation.contract import EXAMPLES
from bertaccum.accumulation.gradient_tensors import Gradient, current_graph, times
from bertaccum.accumulation.replicas import replicas_in_sync, summed


@dataclass
class MicroBatch:
    """The current micro-batch of this replica and its weight.

    Attributes:
      examples: Number of examples, a scalar.
      size: Divisor of the total loss, a scalar: the number of examples until a loss reports
        another divisor.
      kind: Kind of the divisor `size`; None until the first loss has reported its divisor.
      targets: What the step has differentiated; see `contract.is_sum`.
      weight_given: Whether the user's `loss_weight` set `size`, so that losses do not change it.
      corrections: For each loss, the number to add to its value in the logs.
      updates: What the optimizers have done so far, each a `traced_step.Update`.
      calls: Number of training calls of each layer so far, keyed by the layer's `id`.
    """

    examples: tf.Tensor
    size: tf.Tensor
    kind: Hashable = None
    targets: contract.Targets = field(default_factory=dict)
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


tapes.note_targets(current)


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


def weigh(
    gradients: list[Gradient], first: tf.Tensor, loss_is_sum: bool, scale: tf.Tensor | None
) -> tuple[list[Gradient], tf.Tensor]:
    """Convert the gradients of a mean loss to gradients of a sum, and return them with a weight.

    If the loss is a sum already, the weights of a window add up to 1. Outside of the step of an
    `AccumulatingModel`, all micro-batches are assumed to have the same size.

    Args:
      gradients: Gradients of this replica's share of the mean loss.
      first: Whether this is the first micro-step of the window, a bool scalar.
      loss_is_sum: Whether the loss is a sum over the examples, so that nothing divides it.
      scale: Loss scale by which the result is multiplied, a scalar; None for 1.

    Returns:
      The summed gradients and their weight, a float64 scalar.
    """
    micro, factor = _CURRENT.get(), None if scale is None else tf.cast(scale, tf.float64)
    if micro is not None and not loss_is_sum:
        weight = tf.cast(micro.size, tf.float64)
        summing = weight * replicas_in_sync()
        factor = summing if factor is None else factor * summing
    else:
        weight = tf.cast(first, tf.float64) if loss_is_sum else tf.ones([], tf.float64)
        weight /= replicas_in_sync()
    return gradients if factor is None else [times(g, factor) for g in gradients], weight


class MeasuredLoss:
    """The user's own loss object, with a call that reports its divisor.

    Outside of the step of an `AccumulatingModel`, it behaves like the user's loss.
    """

    def __init__(self, loss: tf_keras.losses.Loss) -> None:
        self.loss = loss
        self._window: tf.Variable | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "loss":  # `copy` asks for attributes before it sets any.
            raise AttributeError(name)
        return getattr(self.loss, name)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the mean loss, and report its divisor to the current micro-batch, if any."""
        micro = current()
        if micro is None:
            return self.loss(y_true, y_pred, sample_weight)
        with contract.recorded_values(self.loss) as values:
            value = self.loss(y_true, y_pred, sample_weight)
        size, may_be_0 = micro.size, micro.weight_given
        if not micro.weight_given:
            unknown = EXAMPLES, None
            kind, size = _divisor(values[-1], y_pred, micro.examples) if values else unknown
            if size is None and y_pred.shape.rank != 1:
                contract.warn_of_unknown_divisor(self.name)
            size = micro.examples if size is None else size
            # The sizes are compared when the step runs, as they may be unknown when it is traced.
            contract.report_divisor(micro, kind, size, tf.debugging.assert_equal)
            may_be_0 = kind != EXAMPLES
        if may_be_0:
            # If all positions are masked, the mean is NaN, but its weight is 0.
            value = tf.math.multiply_no_nan(value, tf.cast(size > 0, value.dtype))
        micro.corrections[self] = self._correction(value, size, micro.examples)
        return value

    def _correction(self, value: tf.Tensor, size: tf.Tensor, examples: tf.Tensor) -> tf.Tensor:
        """Return what to add to the logged value, so that the logs average the windows' losses.

        Keras weights each logged value by the number of examples. For a large batch it logs one
        value: the sum of the losses of all positions, divided by their number. The corrected value
        therefore contains what this micro-batch changes about the value of its window.
        """
        if self._window is None:
            # Sum of the losses, divisor and number of examples of the window so far.
            with tf.init_scope():
                self._window = summed(tf.zeros([3], tf.float64), "window_loss")
        wide, size, examples = (tf.cast(x, tf.float64) for x in (value, size, examples))
        before = tf.identity(self._window)
        after = before + tf.stack([wide * size, size, examples])
        self._window.assign(after)
        change = _weighted_mean(after) - _weighted_mean(before)
        return tf.math.divide_no_nan(change, examples) - wide

    def end_window(self, keep: Any = False) -> None:
        """Forget the window of the logged loss, unless `keep`, a bool scalar."""
        if self._window is not None:
            self._window.assign(tf.where(keep, self._window, tf.zeros_like(self._window)))


def _weighted_mean(window: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(window[0], window[1]) * window[2]


def _divisor(losses: Any, y_pred: Any, examples: tf.Tensor) -> tuple[Hashable, tf.Tensor | None]:
    """Return the kind of divisor in the mean of `losses`, and the divisor on this replica.

    The divisor is None if the loss function itself returned a single value, or one per feature. If
    their number is unknown, as with `tf.py_function`, a single value has the divisor `examples`.

    Source: `Loss.__call__` and `losses_utils.apply_valid_mask` of tf_keras 2.20.
    """
    if isinstance(losses, tf.RaggedTensor):
        return losses.row_splits.ref(), tf.size(losses)
    if losses.shape.rank == 0:
        return EXAMPLES, None
    found = (_tf_compat.mask_of(tensor) for tensor in (y_pred, losses))
    if masks := [mask for mask in found if mask is not None]:
        valid = functools.reduce(tf.logical_and, masks)
        return tuple(mask.ref() for mask in masks), tf.math.count_nonzero(valid)
    # In eager mode, the length may also be the number of positions that the loss selected.
    known = None if tf.executing_eagerly() else losses.shape[0]
    if contract.is_of_whole_batch(known, tuple(y_pred.shape) if y_pred.shape.rank else ()):
        return EXAMPLES, None
    shape = tf.shape(losses)
    if losses.shape.rank is None:
        shape = tf.concat([shape, [examples]], axis=0)
    return EXAMPLES, shape[0]
