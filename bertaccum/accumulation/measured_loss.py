"""Compiled losses that report their divisors to the current micro-batch."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import micro_batch
from bertaccum.accumulation.micro_batch import LossPart, MicroBatch

_EXAMPLES = "examples"
# The mixin's methods call those of the loss's class, which comes after the mixin in the bases.
_Mixin: Any = tf_keras.losses.Loss if TYPE_CHECKING else object


def measured(loss: tf_keras.losses.Loss) -> tf_keras.losses.Loss:
    """Return a copy of a loss that reports its divisor; the user's object does not change."""
    if isinstance(loss, _MeasuredLoss):
        return loss
    loss = copy.copy(loss)
    loss.__class__ = type(type(loss).__name__, (_MeasuredLoss, type(loss)), {})
    return loss


class _MeasuredLoss(_Mixin):
    """A mixin that `measured` adds to a loss's class."""

    _divided_by: tuple[Hashable, tf.Tensor | None] | None = None

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the values of the loss, and note the divisor that `Loss.__call__` will use."""
        losses = super().call(y_true, y_pred)
        self._divided_by = _divisor(losses, y_pred)
        return losses

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the mean loss, and report its divisor to the current micro-batch, if any."""
        value = super().__call__(y_true, y_pred, sample_weight)
        # A symbolic tensor must not outlive its graph.
        divided_by, self._divided_by = self._divided_by, None
        present = micro_batch.present()
        if present is None or present.weight_given:
            return value
        kind, size = divided_by or (_EXAMPLES, None)
        if size is None and y_pred.shape.rank != 1:
            warnings.warn(
                f"loss {self.name!r} returns one number for the whole batch, which accumulation"
                " treats as the mean over the examples. If the loss has another divisor, return"
                " one value per example or pass `loss_weight` to accumulate_gradients",
                stacklevel=2,
            )
        return _report(present, value, kind, present.examples if size is None else size)


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


def _report(present: MicroBatch, value: tf.Tensor, kind: Hashable, size: tf.Tensor) -> tf.Tensor:
    """Return the loss's term in the total loss: the loss, or its value without a gradient.

    The first loss sets the divisor of the total loss. Losses with another kind of divisor form a
    `LossPart`, whose gradient the optimizer computes and accumulates separately.
    """
    if present.kind is None:
        present.kind, present.size = kind, size
    elif kind == present.kind == _EXAMPLES:
        # Check the sizes when the step runs, because they may be unknown when it is traced.
        message = "losses of two outputs return different numbers of values; return one value per"
        tf.debugging.assert_equal(size, present.size, f"{message} example from both")
    if kind == present.kind:
        return value
    if tf.executing_eagerly():
        raise ValueError(
            "the outputs of this model have different masks, so their losses are accumulated"
            " separately, which is not possible in eager mode; compile without run_eagerly"
        )
    part = present.parts.setdefault(kind, LossPart(size))
    part.losses.append((value, stopped := tf.stop_gradient(value)))
    return stopped
