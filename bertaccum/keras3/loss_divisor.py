"""Losses of Keras 3 that report their divisors to the current micro-step."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import keras
from keras import ops

from bertaccum.accumulation.contract import recorded_values, warn_of_unknown_divisor
from bertaccum.keras3 import _keras_compat, replicas, step_weight

_EXAMPLES, _POSITIONS, _WEIGHTS = "examples", "unmasked positions", "sample weights"


class MeasuredLoss:
    """A function that the container of a compiled model calls in place of the user's loss.

    Args:
      loss: The user's loss.
    """

    def __init__(self, loss: keras.losses.Loss) -> None:
        self.loss = loss

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the mean loss, and report its divisor to the current micro-step, if any.

        Raises:
          ValueError: If the loss is not a mean, or its divisor is not of the first loss's kind.
        """
        current = step_weight.current()
        if current is None:
            return self.loss(y_true, y_pred, sample_weight)
        reduction = getattr(self.loss, "reduction", "mean")
        if reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight"):
            raise ValueError(
                f"loss {self.loss.name} has the reduction {reduction!r}, but accumulation needs"
                " a mean; use reduction='sum_over_batch_size'"
            )
        with recorded_values(self.loss) as called:
            value = self.loss(y_true, y_pred, sample_weight)
        if not current.given:
            losses = called[-1] if called else value
            kind, size = _divisor(reduction, losses, y_pred, sample_weight)
            if size is None and len(keras.tree.flatten(y_pred)[0].shape) != 1:
                warn_of_unknown_divisor(self.loss.name)
            _report(current, kind, current.examples if size is None else size)
        return value


def _divisor(
    reduction: str, losses: Any, y_pred: Any, sample_weight: Any
) -> tuple[Hashable, Any | None]:
    """Return the kind of divisor in the mean of `losses`, and the divisor.

    The divisor is None if the loss itself returned a single number.

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
    if len(losses.shape) == 0:
        return _EXAMPLES, None
    if not masks:
        return _EXAMPLES, ops.shape(losses)[0]
    valid = masks[0] if len(masks) == 1 else ops.logical_and(*masks)
    return (_POSITIONS, *map(id, masks)), ops.sum(ops.cast(valid, "float32"))


def report_sum(current: step_weight.StepWeight, alone: bool) -> None:
    """Report that the loss of the current micro-step is a sum over the examples.

    Args:
      current: The current micro-step.
      alone: Whether the model adds no other losses in `add_loss`.

    Raises:
      ValueError: If the model also has a loss that is a mean.
    """
    if not alone or current.kind not in (None, step_weight.SUM):
        raise ValueError(
            "a layer passes one value per example to add_loss, which Keras sums over the batch, but"
            " the model also has a loss that is a mean, so their gradients cannot be accumulated"
            " together; add the mean of the values instead, times the size of the large batch"
        )
    current.kind = step_weight.SUM


def _report(current: step_weight.StepWeight, kind: Hashable, size: Any) -> None:
    if current.kind is None:
        current.kind, current.value = kind, size
    elif current.kind != kind:
        raise ValueError(
            "two losses of this model are means over different numbers, such as the unmasked"
            " positions of different outputs, so their gradients cannot be accumulated together;"
            " give them the same mask, or pass sample weights of 0 instead of a mask"
        )
    elif kind == _EXAMPLES:
        message = "losses of two outputs return different numbers of values; return one value per"
        replicas.check_equal(size, current.value, f"{message} example from both")
