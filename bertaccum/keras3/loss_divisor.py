"""Losses that report their divisors to the current micro-batch."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import keras
from keras import ops

from bertaccum.accumulation import contract
from bertaccum.keras3 import _keras_compat, micro_batch, replicas
from bertaccum.keras3.micro_batch import SUM, MicroBatch

_EXAMPLES, _POSITIONS, _WEIGHTS = "examples", "unmasked positions", "sample weights"


class MeasuredLoss:
    """A function that the container of a compiled model calls in place of the user's loss."""

    def __init__(self, loss: keras.losses.Loss) -> None:
        self.loss = loss

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the mean loss, and report its divisor to the current micro-batch, if any."""
        current = micro_batch.current()
        if current is None:
            return self.loss(y_true, y_pred, sample_weight)
        reduction = getattr(self.loss, "reduction", "mean")
        if reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight"):
            raise contract.no_mean(self.loss)
        with contract.recorded_values(self.loss) as called:
            value = self.loss(y_true, y_pred, sample_weight)
        if not current.weight_given:
            losses = called[-1] if called else value
            kind, size = _divisor(reduction, losses, y_pred, sample_weight)
            if size is None and len(keras.tree.flatten(y_pred)[0].shape) != 1:
                contract.warn_of_unknown_divisor(self.loss.name)
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


def report_sum(current: MicroBatch, alone: bool) -> None:
    """Report that the loss of the current micro-batch is a sum over the examples.

    Raises ValueError unless it is `alone`, without a loss that is a mean.
    """
    if not alone or current.kind not in (None, SUM):
        raise ValueError(
            "a layer passes one value per example to add_loss, which Keras sums over the batch, but"
            " the model also has a loss that is a mean, so their gradients cannot be accumulated"
            " together; add the mean of the values instead, times the size of the large batch"
        )
    current.kind = SUM


def _report(current: MicroBatch, kind: Hashable, size: Any) -> None:
    if current.kind is None:
        current.kind, current.size = kind, size
    elif current.kind != kind:
        raise contract.different_divisors()
    elif kind == _EXAMPLES:
        replicas.check_equal(size, current.size, contract.DIFFERENT_SIZES)
