"""The current micro-batch, the losses that pass its weight to the optimizers, and their logs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops

from bertaccum.accumulation import contract
from bertaccum.accumulation.contract import EXAMPLES, WEIGHTS
from bertaccum.keras3 import _keras_compat, replicas

SUM = "sum"


@dataclass
class MicroBatch:
    """The current micro-batch and its weight.

    Attributes:
      examples: Number of examples, a scalar.
      size: Divisor of the total loss, a scalar: the number of examples until a loss reports another
        divisor.
      kind: Kind of the divisor `size`; None until the first loss has reported its divisor. It is
        `SUM` if the total loss is a sum over the examples, so that nothing divides it.
      targets: What the step has differentiated on TensorFlow; see `contract.is_sum`.
      weight_given: Whether the user's `loss_weight` set `size`, so that losses do not change it.
      first: Whether the micro-step is the first one of its window, a scalar; None if unknown.
      optimizers: The accumulating optimizers that the step has called.
      scaled: The optimizers with which the step has scaled its loss.
      normalized: The `id` of each layer of batch normalization that the step has called.
    """

    examples: Any
    size: Any = None
    kind: Hashable = None
    targets: contract.Targets = field(default_factory=dict)
    weight_given: bool = False
    first: Any = None
    optimizers: list[Any] = field(default_factory=list)
    scaled: list[Any] = field(default_factory=list)
    normalized: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.size = self.examples

    def shares(self, first: Any, dtype: Any, is_sum: bool = False) -> tuple[Any, Any]:
        """Return the factor of the gradient, and the number to add to the window's divisor.

        `is_sum` says whether the step itself has differentiated a sum over the examples.
        """
        if is_sum or self.kind == SUM:
            return ops.ones((), dtype), ops.cast(first, dtype)
        # If all positions of a window are masked, its weight is not zero, but too small to change a
        # sum. The mean is then the gradient of the regularizers.
        weight = ops.maximum(ops.cast(self.size, dtype), 1e-20)
        return weight, weight

    def without_nan(self, values: Any) -> Any:
        """Return losses or gradients, with 0 for NaN and infinity if `loss_weight` is 0.

        A loss that divides by 0 is NaN, and remains NaN when it is multiplied by its weight.
        """
        if not self.weight_given:
            return values
        kept = ops.logical_or(ops.greater(self.size, 0), ops.isfinite(values))
        return ops.where(kept, values, ops.zeros_like(values))


_CURRENT: ContextVar[MicroBatch | None] = ContextVar("micro_batch", default=None)


@contextmanager
def micro_batch(examples: Any) -> Iterator[MicroBatch]:
    """Return a context in which `current` returns a new micro-batch of `examples` examples."""
    micro = MicroBatch(examples)
    token = _CURRENT.set(micro)
    try:
        yield micro
    finally:
        _CURRENT.reset(token)


def current() -> MicroBatch | None:
    """Return the current micro-batch; None outside of an accumulating model's step."""
    return _CURRENT.get()


if keras.config.backend() == "tensorflow":
    from bertaccum.accumulation import tapes

    tapes.note_targets(current)

_POSITIONS = "unmasked positions"


class MeasuredLoss:
    """A function that the container of a compiled model calls in place of the user's loss."""

    def __init__(self, loss: keras.losses.Loss) -> None:
        self.loss = loss

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the mean loss, and report its divisor to the current micro-batch, if any."""
        micro = current()
        if micro is None:
            return self.loss(y_true, y_pred, sample_weight)
        reduction = getattr(self.loss, "reduction", "mean")
        if reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight"):
            raise contract.no_mean(self.loss)
        with contract.recorded_values(self.loss) as called:
            value = self.loss(y_true, y_pred, sample_weight)
        if not micro.weight_given:
            losses = called[-1] if called else value
            kind, size = _divisor(reduction, losses, y_pred, sample_weight)
            # In eager mode, the length may also be the number of positions that the loss selected.
            known = _known(size) if kind == EXAMPLES and replicas.is_compiled(y_true) else None
            shape = tuple(keras.tree.flatten(y_pred)[0].shape)
            if contract.is_of_whole_batch(known, shape):
                size = None
            if size is None and len(shape) != 1:
                contract.warn_of_unknown_divisor(self.loss.name)
            size = micro.examples if size is None else size
            contract.report_divisor(micro, kind, size, replicas.check_equal)
            if kind == WEIGHTS:
                # XLA on TensorFlow may drop the check; NaN shows that the update would be wrong.
                micro.size = ops.where(ops.equal(size, micro.size), size, float("nan"))
        return value


def has_values(loss: Any, micro: MicroBatch) -> bool:
    """Return whether a loss that a layer has added has one value per example, which Keras sums."""
    if len(loss.shape) == 0:
        return False
    return contract.has_value_per_example(loss.shape[0], _known(micro.examples))


def _known(number: Any) -> int | None:
    """Return a number, or None if it is unknown while a step is compiled."""
    return number if isinstance(number, int) else None


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
        return WEIGHTS, ops.sum(sample_weight)
    if len(losses.shape) == 0:
        return EXAMPLES, None
    if not masks:
        return EXAMPLES, ops.shape(losses)[0]
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


class WindowLoss(keras.metrics.Mean):
    """The mean over the losses of windows, as if each window were one large batch.

    The loss of a window is the mean over its micro-steps, weighted by the divisors of their losses.
    Windows are weighted by their numbers of examples, or equally if these are unknown. Outside of
    the steps of an accumulating model, such as in `evaluate`, this is Keras' own `Mean`.

    Args:
      accumulation_steps: Number of micro-steps in a window. If it is a function, all micro-steps of
        an epoch count as one window.
      name: Name of the loss in logs.
    """

    def __init__(self, accumulation_steps: Any, name: str) -> None:
        super().__init__(name=name)
        self._steps = 2**31 - 1 if callable(accumulation_steps) else accumulation_steps

        def add(name: str, dtype: str) -> keras.Variable:
            return self.add_variable((), "zeros", dtype=dtype, name=name)

        self.window_total, self.window_weight, self.window_examples = (
            add(name, self.dtype) for name in ("window_total", "window_weight", "window_examples")
        )
        self.window_steps = add("window_steps", "int32")

    @property
    def _window(self) -> list[keras.Variable]:
        return [self.window_total, self.window_weight, self.window_examples, self.window_steps]

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Add the loss of a micro-step with `sample_weight` examples, or None if unknown."""
        micro = current()
        if micro is None:
            super().update_state(values, sample_weight)
            return
        with replicas.after([values]):
            self._end_full_window()
            dtype = self.window_total.dtype
            factor, weight = micro.shares(self.window_steps == 0, dtype)
            self.window_total.assign_add(factor * ops.cast(micro.without_nan(values), dtype))
            self.window_weight.assign_add(weight)
            examples = 1.0 if sample_weight is None else self.window_examples + sample_weight
            self.window_examples.assign(ops.cast(examples, dtype))
            self.window_steps.assign_add(1)

    def _end_full_window(self) -> None:
        full = self.window_steps >= self._steps
        total = self._total_of_window()
        self.total.assign_add(ops.where(full, total, ops.zeros_like(total)))
        examples = ops.convert_to_tensor(self.window_examples)
        self.count.assign_add(ops.where(full, examples, ops.zeros_like(examples)))
        for variable in self._window:
            value = ops.convert_to_tensor(variable)
            variable.assign(ops.where(full, ops.zeros_like(value), value))

    def _total_of_window(self) -> Any:
        return ops.divide_no_nan(self.window_total, self.window_weight) * self.window_examples

    def result(self) -> Any:
        """Return the mean over all windows, including a partial one."""
        total = self.total + self._total_of_window()
        return ops.divide_no_nan(total, self.count + self.window_examples)

    def reset_state(self) -> None:
        """Start again."""
        super().reset_state()
        for variable in self._window:
            variable.assign(ops.zeros((), variable.dtype))
