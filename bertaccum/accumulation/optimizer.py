"""The accumulating optimizer: many micro-steps, one exact update.

What is summed are gradients of *summed* losses, and how many examples they came
from. Their quotient is the gradient of the mean over the whole window, whatever
the sizes of the micro-batches: a mean of means would not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
import tf_keras

Gradient: TypeAlias = Any  # tf.Tensor, tf.IndexedSlices or None
GradientTransform = Callable[[list[tf.Tensor]], list[tf.Tensor]]


class AccumulatingOptimizer(tf.Module):
    """Wraps a tf_keras optimizer so that it acts once per window of micro-steps.

    The wrapped optimizer sees one mean gradient per update: its clipping, weight decay,
    schedule, moving averages and `iterations` know nothing of micro-steps.

    Args:
      optimizer: the inner optimizer, any new-style tf_keras one; a `LossScaleOptimizer`
        has its scale taken off once per window, and lowered if the window overflowed.
      gradient_transform: maps the list of mean gradients to the list that the inner
        optimizer gets, such as `clip_by_global_norm(1.0)`.

    Example:
      ```
      for tokens, labels in micro_batches:
          with tf.GradientTape() as tape:
              loss = optimizer.scale_loss(tf.reduce_sum(losses(model(tokens), labels)))
          gradients = tape.gradient(loss, variables)
          optimizer.accumulate(zip(gradients, variables), weight=len(labels))
      optimizer.apply()
      ```
    """

    def __init__(
        self,
        optimizer: tf_keras.optimizers.Optimizer,
        gradient_transform: GradientTransform | None = None,
        name: str = "accumulating",
    ) -> None:
        super().__init__(name=name)
        self.inner = optimizer
        self._gradient_transform = gradient_transform
        self._variables: list[tf.Variable] = []
        self._sums: list[tf.Variable] = []
        self._weight = tf.Variable(0.0, trainable=False, name="weight")
        # A constant zero would be folded into a second copy of every accumulator.
        self._zero = tf.Variable(0.0, trainable=False, name="zero")
        self.gradient_norm = tf.Variable(0.0, trainable=False, name="gradient_norm")
        self.skipped_windows = tf.Variable(
            0, dtype=tf.int64, trainable=False, name="skipped_windows"
        )

    @property
    def iterations(self) -> tf.Variable:
        """Updates so far: the inner optimizer's count."""
        return self.inner.iterations

    @property
    def learning_rate(self) -> tf.Tensor:
        """The inner optimizer's, for the next update."""
        optimizer = getattr(self.inner, "inner_optimizer", self.inner)
        rate = optimizer._learning_rate
        if isinstance(rate, tf_keras.optimizers.schedules.LearningRateSchedule):
            rate = rate(optimizer.iterations)
        return tf.convert_to_tensor(rate)

    def build(self, variables: Sequence[tf.Variable]) -> None:
        """Creates the inner optimizer's state for `variables`, which it then keeps to.

        Raises:
          ValueError: built before with other variables.
        """
        if not self._variables:
            with tf.init_scope():
                self.inner.build(variables)
            self._variables = list(variables)
        elif [v.ref() for v in variables] != [v.ref() for v in self._variables]:
            raise ValueError(
                "AccumulatingOptimizer was built with other variables; "
                "make a new one for another model"
            )

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss to differentiate: scaled if a `LossScaleOptimizer` is inside."""
        return self.inner.get_scaled_loss(loss) if self._scales_loss else loss

    def accumulate(
        self, grads_and_vars: Iterable[tuple[Gradient, tf.Variable]], weight: Any = 1.0
    ) -> None:
        """Adds one micro-step: gradients of a loss summed over its examples.

        Args:
          grads_and_vars: for every variable, always in the same order; a gradient may be
            None (nothing to add) or IndexedSlices (scatter-added, never made dense).
          weight: how much the micro-step counts, as a rule its number of examples.
        """
        gradients, variables = _unzip(grads_and_vars)
        self.build(variables)
        self._build_sums()
        for total, gradient in zip(self._sums, gradients, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                total.scatter_add(
                    tf.IndexedSlices(tf.cast(gradient.values, total.dtype), gradient.indices)
                )
            elif gradient is not None:
                total.assign_add(tf.cast(gradient, total.dtype))
        self._weight.assign_add(tf.cast(weight, tf.float32))

    def apply(self) -> tf.Tensor:
        """Updates the variables from what was accumulated, and starts a new window.

        Returns:
          True if the update was applied, False if a gradient was not finite and the
          window was dropped.

        Raises:
          ValueError: nothing was ever accumulated.
        """
        if not self._sums:
            raise ValueError("apply() without accumulate(): there is no gradient to apply")
        applied = self.apply_sums(
            zip([s.value() for s in self._sums], self._variables, strict=True), self._weight
        )
        with tf.control_dependencies([applied]):
            self.reset()
        return applied

    def reset(self) -> None:
        """Forgets what was accumulated since the last update."""
        for total in self._sums:
            total.assign(tf.broadcast_to(self._zero, total.shape))
        self._weight.assign(0.0)

    def apply_sums(
        self, grads_and_vars: Iterable[tuple[Gradient, tf.Variable]], weight: Any
    ) -> tf.Tensor:
        """Updates from a whole window's summed gradients, without accumulators.

        Args:
          grads_and_vars: gradients of the loss summed over the window.
          weight: the window's total weight, as a rule its number of examples.

        Returns:
          As `apply`.
        """
        sums, variables = _unzip(grads_and_vars)
        self.build(variables)
        share = 1.0 / tf.cast(weight, tf.float32)
        used = [(g, v) for g, v in zip(sums, variables, strict=True) if g is not None]
        # The sum is the gradient: clipping must not see an embedding's rows one by one.
        mean = [tf.convert_to_tensor(g) * tf.cast(share, g.dtype) for g, _ in used]
        if self._scales_loss:
            mean = self.inner.get_unscaled_gradients(mean)
        self.gradient_norm.assign(tf.linalg.global_norm(mean))
        finite = tf.math.is_finite(self.gradient_norm)
        if self._gradient_transform is not None:
            mean = self._gradient_transform(mean)
        self._apply_inner(list(zip(mean, [v for _, v in used], strict=True)), finite)
        self.skipped_windows.assign_add(tf.cast(~finite, tf.int64))
        return finite

    def _apply_inner(
        self, grads_and_vars: list[tuple[tf.Tensor, tf.Variable]], finite: tf.Tensor
    ) -> None:
        if self._scales_loss:
            # It looks for non-finite gradients by itself, and adjusts its scale.
            self.inner.apply_gradients(grads_and_vars)
        elif tf.executing_eagerly():
            if finite:
                self.inner.apply_gradients(grads_and_vars)
        else:
            tf.cond(finite, lambda: self._inner_step(grads_and_vars), lambda: tf.no_op())

    def _inner_step(self, grads_and_vars: list[tuple[tf.Tensor, tf.Variable]]) -> tf.Operation:
        self.inner.apply_gradients(grads_and_vars)
        return tf.no_op()

    def _build_sums(self) -> None:
        if not self._sums:
            with tf.init_scope():
                self._sums = [
                    tf.Variable(tf.zeros(v.shape), trainable=False, name=f"{v.name[:-2]}/sum")
                    for v in self._variables
                ]

    @property
    def _scales_loss(self) -> bool:
        return isinstance(self.inner, tf_keras.mixed_precision.LossScaleOptimizer)


def clip_by_global_norm(clip_norm: float) -> GradientTransform:
    """A gradient transform that scales all gradients so that their joint norm is at most this.

    Source: Pascanu, Mikolov and Bengio 2012, "On the difficulty of training recurrent
    neural networks".
    """

    def transform(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        return tf.clip_by_global_norm(gradients, clip_norm)[0]

    return transform


def _unzip(
    grads_and_vars: Iterable[tuple[Gradient, tf.Variable]],
) -> tuple[list[Gradient], list[tf.Variable]]:
    gradients, variables = zip(*grads_and_vars, strict=True)
    return list(gradients), list(variables)
