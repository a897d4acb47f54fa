"""The loss that an accumulating model logs."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from bertaccum.keras3 import micro_batch, replicas


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
        current = micro_batch.current()
        if current is None:
            super().update_state(values, sample_weight)
            return
        with replicas.after([values]):
            self._end_full_window()
            dtype = self.window_total.dtype
            factor, weight = current.shares(self.window_steps == 0, dtype)
            self.window_total.assign_add(factor * ops.cast(values, dtype))
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
