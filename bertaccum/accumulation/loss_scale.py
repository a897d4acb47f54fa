"""The accumulating optimizer around a loss scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.accumulation.optimizer import AccumulatingOptimizer
from bertaccum.accumulation.sums import Gradient


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class ScalingAccumulatingOptimizer(
    AccumulatingOptimizer, tf_keras.mixed_precision.LossScaleOptimizer
):
    """An accumulating optimizer with a `LossScaleOptimizer` inside.

    `AccumulatingOptimizer` makes it by itself. It is a `LossScaleOptimizer` in its turn, so
    that `model.compile` does not put another one around it. Gradients stay scaled until the
    window is complete.
    """

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss times the loss scale, which does not change within a window."""
        return self.inner.get_scaled_loss(loss)

    get_scaled_loss = scale_loss

    def get_unscaled_gradients(self, grads: list[Gradient]) -> list[Gradient]:
        """The gradients as they are: they are unscaled in `apply`, once per window."""
        return grads

    @property
    def _innermost(self) -> tf_keras.optimizers.Optimizer:
        return self.inner_optimizer

    @property
    def _unscaling(self) -> tf.Tensor:
        # Through this method, or it would warn that gradients were never unscaled.
        [factor] = self.inner.get_unscaled_gradients([tf.ones([])])
        return factor

    def _branch(self, allowed: tf.Tensor, step: Callable[[], tf.Tensor]) -> tf.Tensor:
        # One that adapts has to see an overflow, and skips the update by itself.
        done = super()._branch(allowed | self.dynamic, step)
        with tf.control_dependencies([done]):
            return tf.identity(allowed)

    @property
    def inner_optimizer(self) -> tf_keras.optimizers.Optimizer:
        """The optimizer inside the loss scale."""
        return self.inner.inner_optimizer

    @property
    def dynamic(self) -> bool:
        """Whether overflows lower the scale."""
        return self.inner.dynamic

    @property
    def loss_scale(self) -> tf.Tensor:
        """The present scale."""
        return self.inner.loss_scale

    @property
    def dynamic_counter(self) -> Any:
        """Updates since the scale last changed."""
        return self.inner.dynamic_counter

    @property
    def initial_scale(self) -> float:
        """The scale at the start."""
        return self.inner.initial_scale

    @property
    def dynamic_growth_steps(self) -> Any:
        """Updates without overflow after which the scale grows."""
        return self.inner.dynamic_growth_steps
