"""Losses that report their divisors to the current micro-batch."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import contract, micro_batch
from bertaccum.accumulation.micro_batch import MicroBatch
from bertaccum.accumulation.replicas import summed

_EXAMPLES = "examples"


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
        current = micro_batch.current()
        if current is None:
            return self.loss(y_true, y_pred, sample_weight)
        with contract.recorded_values(self.loss) as values:
            value = self.loss(y_true, y_pred, sample_weight)
        if current.weight_given:
            current.corrections[self] = self._correction(value, current.size, current.examples)
            return value
        kind, size = _divisor(values[-1], y_pred) if values else (_EXAMPLES, None)
        if size is None and y_pred.shape.rank != 1:
            contract.warn_of_unknown_divisor(self.name)
        size = current.examples if size is None else size
        current.corrections[self] = self._correction(value, size, current.examples)
        _report(current, kind, size)
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
        return tf.cast(tf.math.divide_no_nan(change, examples) - wide, value.dtype)

    def end_window(self, keep: Any = False) -> None:
        """Forget the window of the logged loss, unless `keep`, a bool scalar."""
        if self._window is not None:
            self._window.assign(tf.where(keep, self._window, tf.zeros_like(self._window)))


def _weighted_mean(window: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(window[0], window[1]) * window[2]


def _divisor(losses: Any, y_pred: Any) -> tuple[Hashable, tf.Tensor | None]:
    """Return the kind of divisor in the mean of `losses`, and the divisor on this replica.

    The divisor is None if the loss function itself returned a single value.

    Source: `Loss.__call__` and `losses_utils.apply_valid_mask` of tf_keras 2.20.
    """
    if isinstance(losses, tf.RaggedTensor):
        return losses.row_splits.ref(), tf.size(losses)
    if losses.shape.rank == 0:
        return _EXAMPLES, None
    found = (_tf_compat.mask_of(tensor) for tensor in (y_pred, losses))
    if masks := [mask for mask in found if mask is not None]:
        valid = functools.reduce(tf.logical_and, masks)
        return tuple(mask.ref() for mask in masks), tf.math.count_nonzero(valid)
    return _EXAMPLES, tf.shape(losses)[0]


def _report(current: MicroBatch, kind: Hashable, size: tf.Tensor) -> None:
    if current.kind is None:
        current.kind, current.size = kind, size
    elif current.kind != kind:
        raise contract.different_divisors()
    elif kind == _EXAMPLES:
        # Check the sizes when the step runs, because they may be unknown when it is traced.
        tf.debugging.assert_equal(size, current.size, contract.DIFFERENT_SIZES)
