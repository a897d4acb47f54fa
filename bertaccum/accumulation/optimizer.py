"""A tf_keras optimizer that accumulates gradients over micro-steps and applies one exact update.

It is the Keras face of a `WindowOptimizer`: `apply_gradients` adds a micro-step's gradients to the
window, and every N-th call also applies the update. Custom training loops that know the weight of
each micro-batch call `accumulate` and `apply` instead.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import (
    checks,
    contract,
    loss_scaling,
    micro_batch,
    replicas,
    serialization,
    tapes,
    traced_step,
)
from bertaccum.accumulation.contract import check_choice
from bertaccum.accumulation.delegation import DelegatingOptimizer, adapted, delegated
from bertaccum.accumulation.gradient_tensors import Gradient, GradsAndVars, after, times
from bertaccum.accumulation.transforms import GradientTransform
from bertaccum.accumulation.window import WindowOptimizer


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class AccumulatingOptimizer(DelegatingOptimizer):
    """A tf_keras optimizer that calls an inner optimizer once per window of micro-steps.

    The inner optimizer receives one gradient per update. Its clipping, weight decay, schedule,
    moving averages and `iterations` therefore count updates, not micro-steps.

    Args:
      optimizer: The inner optimizer: a new or legacy tf_keras optimizer (such as
        `AdamWeightDecay` of tf-models-official), its name or its config. If it is a
        `LossScaleOptimizer`, gradients of the scaled loss are accumulated and unscaled once per
        window, and a window that overflows lowers the scale once.
      accumulation_steps: Number of micro-steps in a window for `apply_gradients`: an integer, a
        variable, or a function of the update number. A change takes effect at the next
        window. `accumulate` and `apply` ignore it.
      reduction: Reduction of the window's gradients: `mean` or `sum`.
      accumulator_dtype: Dtype of the accumulators: float16, bfloat16, float32 or float64. The
        default is that of each variable, but at least float32. Accumulators narrower than float32
        store a running mean.
      nonfinite: Treatment of a window whose gradient is not finite or has a norm that overflows
        float32: `skip` the window, `raise` an error, or `propagate` the gradient to the inner
        optimizer.
      gradient_transform: A function that maps the list of (mean gradient, variable) pairs to the
        list that the inner optimizer receives, such as `ClipByGlobalNorm(1.0)`.
      name: Name of this optimizer.

    Raises:
      TypeError: If `optimizer` is not a tf_keras optimizer, or an argument has a wrong type.
      ValueError: If `optimizer` already accumulates, or an argument has a wrong value.
    """

    accumulation_steps: Any
    window: WindowOptimizer

    reduction = delegated("window", "reduction")
    accumulator_dtype = delegated("window", "accumulator_dtype")
    nonfinite = delegated("window", "nonfinite")
    gradient_transform = delegated("window", "gradient_transform")
    gradient_norm = delegated("window", "gradient_norm")
    skipped_windows = delegated("window", "skipped_windows")
    pending = delegated("window", "pending")

    def __new__(cls, optimizer: Any = None, *args: Any, **kwargs: Any) -> AccumulatingOptimizer:
        scaled = loss_scaling.is_scaled(serialization.resolved(optimizer))
        if scaled and cls is AccumulatingOptimizer:
            cls = ScalingAccumulatingOptimizer
        return super().__new__(cls)

    def __init__(
        self,
        optimizer: Any,
        accumulation_steps: int | tf.Variable | Callable[[tf.Tensor], Any] = 4,
        reduction: str = "mean",
        accumulator_dtype: Any = None,
        nonfinite: str = "skip",
        gradient_transform: GradientTransform | None = None,
        name: str | None = None,
    ) -> None:
        steps = checks.checked_steps(accumulation_steps, schedule=True)
        check_choice("reduction", reduction, checks.REDUCTIONS)
        check_choice("nonfinite", nonfinite, checks.NONFINITE)
        if accumulator_dtype:
            check_choice("accumulator_dtype", tf.as_dtype(accumulator_dtype).name, checks.DTYPES)
        super().__init__(adapted(serialization.resolved(optimizer)), name or "accumulating")
        checks.check_inner(self.inner, AccumulatingOptimizer)
        self.accumulation_steps = steps
        self.window = WindowOptimizer(
            self.inner, reduction, accumulator_dtype, nonfinite, gradient_transform
        )
        # Losses with one value per example whose gradients have not been applied, outside of the
        # step of an `AccumulatingModel`; replicas may differentiate all of theirs before the first
        # of them applies its gradients.
        self._summed_losses = 0

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Create the state for `var_list`; only these variables can be trained afterwards."""
        is_new = not self.window.trained.variables
        self.window.accumulates = not self._at_once
        self.window.build(var_list)
        if is_new:
            with tf.init_scope():
                self._window_steps = replicas.alike(0, tf.int64, "window_steps")
                # Whether an outer LossScaleOptimizer found an overflow in this window.
                self._overflowed = replicas.alike(False, tf.bool, "overflowed")
            _tf_compat.mark_built(self)

    # --- Explicit use ---------------------------------------------------------------

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss to differentiate: `loss` times the inner loss scale, if there is one.

        The scale is constant within a window. `accumulate` receives gradients of the scaled loss,
        but `apply_gradients` those that `get_unscaled_gradients` returns.
        """
        return self.window.scale_loss(loss)

    def accumulate(self, grads_and_vars: GradsAndVars, weight: Any = 1.0) -> None:
        """Add the gradients of one micro-step on this replica, without communication.

        Args:
          grads_and_vars: (gradient, variable) pairs of a loss *summed* over the examples. A
            gradient may be None or `IndexedSlices`, and pairs without a gradient may be left out.
          weight: Weight of the micro-step, usually its number of examples; a scalar.

        Raises:
          ValueError: If called outside of a replica, or with a variable that the optimizer was
            not built with.
        """
        pairs = list(grads_and_vars)
        self.build([v for _, v in pairs])
        self.window.accumulate(pairs, weight)

    def apply(self) -> tf.Tensor:
        """Update the variables with the gradients of all replicas, and start a new window.

        A variable without a gradient in the window does not change. See `WindowOptimizer.apply` for
        its use in a `tf.function`.

        Returns:
          Whether the update was applied, a bool scalar; False if its gradient was not finite.

        Raises:
          ValueError: If nothing was accumulated.
        """
        return self.window.apply()

    def flush(self) -> tf.Tensor:
        """Apply a partial window; a mean is taken over the examples that the window contains.

        Returns:
          Whether an update was applied, a bool scalar.
        """
        window = self.window
        strategy = window.strategy_outside()
        if strategy is not None:
            return replicas.run_on_all(strategy, self.flush)
        if window.sums is None:
            return tf.constant(False)
        self._learn_touched()
        applied = replicas.run_if((window.step > 0) & ~self._overflowed, window.apply)
        with tf.control_dependencies([applied]):
            window.step.assign(0)  # Also ends a window that overflowed.
        return applied

    def traced_flush(self) -> tf.Tensor:
        """Call `flush` in a `tf.function`, which is faster if it is called repeatedly."""
        self._learn_touched()
        # The argument grows when there are new sets of variables, so that TensorFlow traces again.
        return self._flush(len(self.window.trained.together))

    def _learn_touched(self) -> None:
        """Note which variables have gradients: a loaded model has not traced a micro-step yet."""
        sums, trained = self.window.sums, self.window.trained
        if tf.executing_eagerly() and sums is not None:
            flags = sums.touched.numpy()
            touched = frozenset(i for i, has_gradient in enumerate(flags) if has_gradient)
            if touched not in trained.candidates():
                trained.together.add(touched)

    def forget_flush(self) -> None:
        """Let the next `traced_flush` trace again, with the present settings."""
        self.__dict__.pop("_flush", None)

    @functools.cached_property
    def _flush(self) -> Callable[[int], tf.Tensor]:
        return tf.function(lambda _: self.flush())

    def drop(self) -> None:
        """Discard a partial window."""
        strategy = self.window.strategy_outside()
        if strategy is not None:
            replicas.run_on_all(strategy, self.drop)
        elif self.window.sums is not None:
            self.window.drop()
            self._overflowed.assign(False)

    # --- Use by Keras ---------------------------------------------------------------

    @property
    def in_window(self) -> tf.Tensor:
        """Whether the window goes on after the micro-step that has just run, a bool scalar."""
        return (self.window.step > 0) & (self.window.step < self._window_steps)

    @property
    def _wrapped(self) -> bool:
        return _tf_compat.is_wrapped_by_loss_scale(self)

    @property
    def _at_once(self) -> bool:
        """Whether every micro-step is a window, so that no accumulators are needed."""
        return not checks.accumulates(self.accumulation_steps) and not self._wrapped

    def compute_gradients(
        self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None
    ) -> list[tuple[Gradient, tf.Variable]]:
        """Return (gradient, variable) pairs of the loss, without a loss scale.

        With a `LossScaleOptimizer`, each loss is divided by the number of micro-steps (rounded up
        to a power of two) before it is differentiated, and its gradients are multiplied by this
        number afterwards. Otherwise they could overflow float16 in windows that do not overflow as
        one large batch.
        """
        scaled = self._wrapped or loss_scaling.is_scaled(self.inner)
        parts = self._power_of_two() if scaled else 1.0
        unscaling = loss_scaling.unscaling(self.inner)

        def share(loss: tf.Tensor) -> tf.Tensor:
            if micro_batch.current() is None:
                is_sum = tapes.has_values(loss, None)
                self._summed_losses = self._summed_losses + 1 if is_sum else 0
            loss = self.scale_loss(loss)
            return loss / tf.cast(parts, loss.dtype) if scaled else loss

        if callable(loss):
            pairs = super().compute_gradients(lambda: share(loss()), var_list, tape)
        else:
            with tape if tape is not None else nullcontext():
                loss = share(loss)
            pairs = super().compute_gradients(loss, var_list, tape)
        return [(times(g, parts * unscaling), v) for g, v in pairs] if scaled else pairs

    def _power_of_two(self) -> tf.Tensor:
        # Division by a power of two is exact.
        exponent = tf.math.ceil(tf.math.log(tf.cast(self._steps(), tf.float32)) / math.log(2))
        return tf.pow(2.0, exponent)

    def _steps(self) -> tf.Tensor:
        steps = self.accumulation_steps
        if not isinstance(steps, int | tf.Variable):
            steps = steps(self.iterations.read_value())
        return tf.maximum(tf.cast(steps, tf.int64), 1)

    def apply_gradients(
        self,
        grads_and_vars: GradsAndVars,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        **kwargs: Any,
    ) -> tf.Variable:
        """Accumulate one micro-step; the last call of a window also applies the update.

        Args:
          grads_and_vars: (gradient, variable) pairs as `model.fit` computes them: of the mean
            loss or, under a strategy, of this replica's share of it. They are unscaled, as for a
            `LossScaleOptimizer`.
          name: Ignored.
          skip_gradients_aggregation: Reserved for a `LossScaleOptimizer` around this optimizer.
          **kwargs: Other keyword arguments of Keras' method.

        Returns:
          `iterations`, the number of updates.

        Raises:
          ValueError: If called outside of a replica, without any gradient, or with gradients that
            are already reduced.
        """
        pairs = list(grads_and_vars)
        if not pairs:  # As in Keras: all layers are frozen.
            return self.iterations
        _tf_compat.check_gradients(pairs)
        micro_batch.check_function()
        micro = micro_batch.current()
        with traced_step.update(self, pairs, micro.updates if micro else None):
            aggregate = kwargs.get("experimental_aggregate_gradients", True)
            if not skip_gradients_aggregation and aggregate:
                pairs = self.aggregate_gradients(pairs)
            elif not self._wrapped:
                raise ValueError(
                    "AccumulatingOptimizer itself reduces gradients over replicas, once per update;"
                    " pass each replica's own gradients, without `skip_gradients_aggregation`"
                )
            self._micro_step(pairs)
        return self.iterations

    def _micro_step(self, pairs: list[tuple[Gradient, tf.Variable]]) -> None:
        window = self.window
        first = tf.equal(window.step, 1)
        gradients = window.in_order(pairs)
        # The window contains gradients of the scaled loss, as `accumulate` receives them.
        scale = loss_scaling.scale(self.inner)
        if (micro := micro_batch.current()) is None:
            loss_is_sum = self._summed_losses > 0
            self._summed_losses -= loss_is_sum
        else:
            variables = [v for g, v in pairs if g is not None]
            loss_is_sum = contract.is_sum(micro.targets, variables, self)
        weighed, weight = micro_batch.weigh(gradients, first, loss_is_sum, scale)
        if self._at_once:
            window.apply_once(weighed, weight)
            return
        window.add(weighed, weight)
        replicas.run_if((window.step >= self._window_steps) & ~self._overflowed, window.apply)

    def aggregate_gradients(self, grads_and_vars: GradsAndVars) -> list[Any]:
        """Start a micro-step, and return the pairs; `apply` will reduce their gradients.

        A `LossScaleOptimizer` around this optimizer calls this method for all gradients, finite
        or not.
        """
        pairs, window = list(grads_and_vars), self.window
        self.build([v for _, v in pairs])
        checks.check_in_replica(window.strategy_outside())
        with after([g for g, _ in pairs]):
            due = tf.equal(window.step, 0) | (window.step >= self._window_steps)
            tf.cond(due, self._begin_window, tf.no_op)
            window.step.assign_add(1)
            if not self._wrapped:
                return pairs
            return loss_scaling.report_overflow(
                pairs, self.iterations, self._overflowed, self.skipped_windows
            )

    def _begin_window(self) -> tf.Operation:
        self._window_steps.assign(self._steps())
        self.window.step.assign(0)
        if not self._at_once:
            # If the previous window overflowed, it ended without a reset of its sums.
            tf.cond(self._overflowed, self.window.make_sums().reset, tf.no_op)
        self._overflowed.assign(False)
        return tf.no_op()

    # --- Saving ---------------------------------------------------------------------

    def _own_variables(self) -> list[tf.Variable]:
        window = self.window
        if not window.trained.variables:
            return []
        own = [window.step, self._window_steps, self._overflowed, window.skipped_windows]
        own += window.sums.variables if window.sums is not None else []
        return [*own, *_tf_compat.uncounted_variables(self._innermost)]

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as serializable values."""
        return serialization.to_config(self)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Create the optimizer, without state, from its config."""
        return AccumulatingOptimizer(**serialization.to_arguments(config, custom_objects))


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class ScalingAccumulatingOptimizer(AccumulatingOptimizer, loss_scaling.LossScaleOptimizer):
    """An accumulating optimizer with a `LossScaleOptimizer` inside.

    `AccumulatingOptimizer(LossScaleOptimizer(...))` creates an instance. It is a subclass of
    `LossScaleOptimizer` because `model.compile`, under mixed_float16, wraps every other optimizer.
    """

    inner_optimizer = delegated("inner", "inner_optimizer")
    dynamic = delegated("inner", "dynamic")
    loss_scale = delegated("inner", "loss_scale")
    dynamic_counter = delegated("inner", "dynamic_counter")
    initial_scale = delegated("inner", "initial_scale")
    dynamic_growth_steps = delegated("inner", "dynamic_growth_steps")

    get_scaled_loss = AccumulatingOptimizer.scale_loss

    def get_unscaled_gradients(self, grads: list[Gradient]) -> list[Gradient]:
        """Return the gradients without the loss scale, as `apply_gradients` expects them."""
        unscaled: list[Gradient] = self.inner.get_unscaled_gradients(grads)
        return unscaled
