"""Notes whether a step differentiates a single number or the sum of several values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bertaccum.accumulation import contract


def has_values(loss: Any, micro: Any) -> bool:
    """Return whether a loss has one value per example; its gradient is that of their sum.

    Keras adds the values of `add_loss` to the total loss without taking their mean. Without a
    `micro` batch, whose number of examples is known, a vector of one value counts as a number.
    """
    shape = getattr(loss, "shape", None)
    if shape is not None and shape.rank is None:
        tf.debugging.assert_rank(
            loss, 0, "a loss of unknown shape has several values; call its set_shape([None])"
        )
    if shape is None or not shape.rank:
        return False
    if micro is None:
        return bool(shape[0] != 1)
    return contract.has_value_per_example(shape[0], tf.get_static_value(micro.examples))


def note_targets(current: Callable[[], Any]) -> None:
    """Make each tape note in the `current` micro-batch, if any, what it differentiates.

    A step may pass a loss with one value per example to the tape itself, so that neither the model
    nor the optimizer sees it. Gradients with respect to tensors, such as those of a gradient
    penalty, and parts of a chain rule are not gradients of a loss.
    """
    gradient = tf.GradientTape.gradient

    @functools.wraps(gradient)
    def noting(
        self: Any, target: Any, sources: Any, output_gradients: Any = None, *rest: Any, **kw: Any
    ) -> Any:
        micro = current()
        if micro is not None and output_gradients is None:
            variables = [one for one in tf.nest.flatten(sources) if hasattr(one, "handle")]
            for part in tf.nest.flatten(target) if variables else []:
                is_sum = has_values(part, micro)
                for variable in variables:
                    micro.targets.setdefault(id(variable.handle), set()).add(is_sum)
        return gradient(self, target, sources, output_gradients, *rest, **kw)

    tf.GradientTape.gradient = noting
