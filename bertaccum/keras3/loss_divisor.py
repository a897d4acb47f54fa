"""Compiled losses of Keras 3 that report their divisors to the current micro-step."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from bertaccum.keras3 import _keras_compat, step_weight

_EXAMPLES, _POSITIONS, _WEIGHTS = "examples", "unmasked positions", "sample weights"
# The mixin's methods call those of the loss's class, which comes after the mixin in the bases.
_Mixin: Any = keras.losses.Loss if TYPE_CHECKING else object


def measured(loss: Any) -> Any:
    """Return a copy of a loss that reports its divisor; the user's object does not change."""
    if loss is None or isinstance(loss, _MeasuredLoss):
        return loss
    loss = copy.copy(loss)
    loss.__class__ = type(type(loss).__name__, (_MeasuredLoss, type(loss)), {})
    return loss


class _MeasuredLoss(_Mixin):
    """A mixin that `measured` adds to a loss's class."""

    _losses: Any = None

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the values of the loss, and keep them until `__call__` has read their mask."""
        self._losses = super().call(y_true, y_pred)
        return self._losses

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the mean loss, and report its divisor to the current micro-step, if any.

        Raises:
          ValueError: If the loss is not a mean, or its divisor is not of the first loss's kind.
        """
        value = super().__call__(y_true, y_pred, sample_weight)
        # A traced tensor must not outlive its trace.
        losses, self._losses = self._losses, None
        if (current := step_weight.current()) is not None:
            if self.reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight"):
                raise ValueError(
                    f"loss {self.name} has the reduction {self.reduction!r}, but accumulation needs"
                    " a mean; use reduction='sum_over_batch_size'"
                )
            _report(current, *_divisor(self.reduction, losses, y_pred, sample_weight))
        return value


def _divisor(
    reduction: str, losses: Any, y_pred: Any, sample_weight: Any
) -> tuple[Hashable, Any | None]:
    """Return the kind of divisor in the mean of `losses`, and the divisor.

    The divisor is None if it is the number of examples.

    Source: `Loss.__call__` and `reduce_weighted_values` of Keras 3.15.
    """
    masks = [m for m in map(_keras_compat.mask_of, (y_pred, losses)) if m is not None]
    if reduction == "mean_with_sample_weight" and (masks or sample_weight is not None):
        if masks:
            raise ValueError(
                "accumulation does not know the divisor of a masked loss with the reduction"
                " 'mean_with_sample_weight'; use reduction='sum_over_batch_size'"
            )
        return _WEIGHTS, ops.sum(sample_weight)
    if not masks:
        return _EXAMPLES, None
    valid = masks[0] if len(masks) == 1 else ops.logical_and(*masks)
    return (_POSITIONS, *map(id, masks)), ops.sum(ops.cast(valid, "float32"))


def _report(current: step_weight.StepWeight, kind: Hashable, size: Any | None) -> None:
    if current.kind is None:
        current.kind = kind
        current.value = current.value if size is None else size
    elif current.kind != kind:
        raise ValueError(
            "two losses of this model are means over different numbers, such as the unmasked"
            " positions of different outputs, so their gradients cannot be accumulated together;"
            " give them the same mask, or pass sample weights of 0 instead of a mask"
        )
