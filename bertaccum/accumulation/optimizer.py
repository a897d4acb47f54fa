"""The accumulating optimizer: many micro-steps, one exact update.

It adds up gradients and what they weigh (`GradientSums`); their quotient is the mean over the
whole window, whatever the sizes of the micro-batches, which a mean of means would not be.
`window_update.py` computes it, once per window.

There are two ways to use it. The explicit one, `accumulate` and `apply`, communicates once per
update and is told each micro-batch's weight. The other one is Keras': `apply_gradients`
accumulates, and applies on every N-th call.
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
    loss_scaling,
    micro_batch,
    replicas,
    serialization,
    window_update,
)
from bertaccum.accumulation.contracts import GradientTransform, TakesScaledSum
from bertaccum.accumulation.delegation import DelegatingOptimizer, delegated
from bertaccum.accumulation.gradient_tensors import Gradient, GradsAndVars, after, dense, times
from bertaccum.accumulation.legacy import adapted
from bertaccum.accumulation.model_variables import ModelVariables, positions_of
from bertaccum.accumulation.sums import GradientSums, WindowState


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class AccumulatingOptimizer(DelegatingOptimizer):
    """A tf_keras optimizer around another one, which then acts once per window of micro-steps.

    The inner optimizer sees one gradient per update: its clipping, weight decay, schedule,
    moving averages and `iterations` know nothing of micro-steps.

    Args:
      optimizer: the inner optimizer: one of tf_keras, new or legacy (such as AdamWeightDecay
        of tf-models-official), its name or its config.
        With a `LossScaleOptimizer` inside, gradients of the scaled loss are accumulated,
        unscaled once per window, and a window that overflowed lowers the scale once.
      accumulation_steps: micro-steps in a window for `apply_gradients`: a number, a
        variable, or a function of the update's number. A change takes effect at the
        next window. `accumulate` and `apply` ignore it.
      reduction: `mean` over the window, `sum`, or `running_mean`: the mean, kept as such.
      accumulator_dtype: by default that of the variables, but at least float32. Narrower
        types hold the running mean.
      nonfinite: what to do with a window whose gradient is not finite, or whose norm is
        beyond float32: `skip` it, `raise` an error, or `propagate` it.
      gradient_transform: maps the list of (mean gradient, variable) to what the inner
        optimizer gets, such as `ClipByGlobalNorm(1.0)`. See `contracts.py`.
      name: of this optimizer.

    Raises:
      TypeError, ValueError: the optimizer cannot be wrapped or an argument is not valid.
    """

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
        checks.check_choice("reduction", reduction, checks.REDUCTIONS)
        checks.check_choice("nonfinite", nonfinite, checks.NONFINITE)
        super().__init__(adapted(serialization.resolved(optimizer)), name or "accumulating")
        checks.check_inner(self.inner, AccumulatingOptimizer)
        self.accumulation_steps = steps
        self.reduction = reduction
        self.accumulator_dtype = tf.as_dtype(accumulator_dtype) if accumulator_dtype else None
        self.nonfinite = nonfinite
        self.gradient_transform = gradient_transform
        self._trained = ModelVariables(self.inner)
        self._state: Any = None  # A `WindowState`, from `build` on.

    # --- State ----------------------------------------------------------------------

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Create all state for `var_list`; no other variables can be trained afterwards.

        Raises:
          ValueError: built before without one of them, or made outside the strategy.
        """
        if self._trained.variables:
            for variable in var_list:
                self._trained.position(variable)
            return
        checks.check_scope(self.inner)
        mean = self.reduction == "running_mean"
        new_sums = functools.partial(GradientSums, list(var_list), self.accumulator_dtype, mean)
        with tf.init_scope():
            self.inner.build(var_list)
            self._trained = ModelVariables(self.inner, var_list)
            self._state = WindowState(new_sums, functools.partial(_tf_compat.track, self))
            self.skipped_windows = replicas.alike(0, tf.int64, "skipped_windows")
            self.gradient_norm = replicas.alike(0, tf.float32, "gradient_norm")
            # True while variables change one after another; stays True if that is cut short.
            self.half_updated = replicas.alike(False, tf.bool, "half_updated")
        _tf_compat.mark_built(self)
        if not self._at_once:
            self._state.main()

    def _in_order(self, grads_and_vars: GradsAndVars) -> list[Gradient]:
        pairs = list(grads_and_vars)
        self.build([v for _, v in pairs])
        checks.check_in_replica(self._strategy_outside())
        gradients = self._trained.in_order(pairs)
        self._trained.together.add(positions_of(gradients))
        return gradients

    def _strategy_outside(self) -> tf.distribute.Strategy | None:
        """Return the strategy to run with, or None inside a replica."""
        return replicas.strategy_outside_replicas(getattr(self._state, "step", None))

    @property
    def accumulators(self) -> list[tf.Variable]:
        """The variables that hold the sums, one for each of the model's, if there are any."""
        return [] if self._nothing else self._state.sums.totals

    @property
    def pending(self) -> bool:
        """Whether a window has begun; for use outside of functions."""
        return not self._nothing and bool(self._state.step.numpy() > 0)

    @property
    def _nothing(self) -> bool:
        """Whether nothing has been accumulated so far, in any window."""
        return self._state is None or self._state.sums is None

    # --- Explicit use ---------------------------------------------------------------

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss to differentiate: scaled if there is a loss scale inside."""
        return loss_scaling.scaled_loss(self.inner, loss)

    def accumulate(self, grads_and_vars: GradsAndVars, weight: Any = 1.0) -> None:
        """Add one micro-step on this replica, without communication.

        Args:
          grads_and_vars: gradients of a loss that is *summed* over its examples; None,
            IndexedSlices, and variables left out are fine.
          weight: how much the micro-step weighs, as a rule its number of examples.

        Raises:
          ValueError: called outside a replica, or with a variable that was not built.
        """
        gradients = self._in_order(grads_and_vars)
        with after(gradients):
            self._state.main().add(gradients, tf.cast(weight, tf.float64))
            self._state.step.assign_add(1)

    def apply(self, report: tf.Tensor | None = None) -> Any:
        """Update the variables from what all replicas accumulated, and start a new window.

        Variables without a gradient in the window are left alone: no decay, no new moments.
        In a `tf.function`, where that is decided beforehand, this holds for the sets of
        variables that have had gradients together when it is traced, and for unions of two of
        them: trace the micro-steps first. In other windows a variable without gradient is
        taken to have one of zero.

        Args:
          report: [n] numbers of this replica's, to be added up over replicas on the way. If the
            first sum is not 0, a replica objects: all forget the window, and nothing else
            changes.

        Returns:
          True if the update was applied, False if its gradient was not finite and the
          window was skipped; with a report, that and [n] float64, the sum of all replicas'.

        Raises:
          ValueError: nothing was accumulated.
        """
        strategy = self._strategy_outside()
        if strategy is not None:
            return replicas.run_on_all(strategy, self.apply, report)
        if self._nothing or (tf.executing_eagerly() and not self._state.step > 0):
            raise ValueError("apply() without accumulate(): there is no gradient to apply")
        sums, *parts = self._state.all_sums
        alone = self.reduction != "sum" and replicas.replicas_in_sync() == 1
        read = [sums.read(alone), *(part.read(alone=False) for part in parts)]
        touched = tf.identity(sums.touched)
        applied, total = self._update(read, touched, self._trained.candidates(), report)
        with tf.control_dependencies([applied]):
            self._state.reset()
        return applied if report is None else (applied, total)

    def avoid_copies(self) -> None:
        """Save time in functions that XLA does not compile, if called there before `apply`.

        TensorFlow copies a variable to which rows were added, as to an embedding's sum, when it
        is read, unless it is told not to; with BERT-Small's words that took 3 % of an update.
        """
        if not self._nothing:
            self._state.sums.avoid_copies()

    def apply_sums(self, grads_and_vars: GradsAndVars, weight: Any) -> tf.Tensor:
        """Update from a window that was a single micro-step, without accumulators.

        Args:
          grads_and_vars: gradients of the loss summed over this replica's examples.
          weight: how much they weigh, as a rule the number of examples.

        Returns:
          True if the update was applied, False if the window was skipped.
        """
        gradients = self._in_order(grads_and_vars)
        return self._update_at_once([(gradients, tf.cast(weight, tf.float64))])

    def flush(self) -> tf.Tensor:
        """Apply the window as far as it has come, exactly weighted.

        Returns:
          True if there was anything, and it was applied.
        """
        strategy = self._strategy_outside()
        if strategy is not None:
            return replicas.run_on_all(strategy, self.flush)
        if self._nothing:
            return tf.constant(False)
        applied = replicas.run_if((self._state.step > 0) & ~self._state.overflowed, self.apply)
        with tf.control_dependencies([applied]):
            self._state.step.assign(0)  # Of a window that overflowed, too.
        return applied

    def traced_flush(self) -> tf.Tensor:
        """Call `flush` in a `tf.function`: for use at the end of every epoch."""
        # The number only ever grows, and with it comes a new trace, by these sets and sums.
        return self._flush(len(self._trained.together) + len(self._state.all_sums))

    @functools.cached_property
    def _flush(self) -> Callable[[int], tf.Tensor]:
        return tf.function(lambda _: self.flush())

    def drop(self) -> None:
        """Forget the window as far as it has come."""
        strategy = self._strategy_outside()
        if strategy is not None:
            replicas.run_on_all(strategy, self.drop)
        elif not self._nothing:
            self._state.reset()
            self._state.overflowed.assign(False)

    # --- The update -----------------------------------------------------------------

    def _update_at_once(self, groups: window_update.Groups) -> tf.Tensor:
        gradients = groups[0][0]
        sums = [(dense(own, self._trained.variables), weight) for own, weight in groups]
        touched = tf.constant([g is not None for g in gradients])
        return self._update(sums, touched, [positions_of(gradients)])[0]

    def _update(
        self,
        groups: window_update.Groups,
        touched: tf.Tensor,
        candidates: list[frozenset[int]],
        report: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, Any]:
        """Update the variables; return whether that was done, and the sum of the reports."""
        used = sorted(frozenset.union(*candidates))
        groups, reports, agreed = window_update.reduced(groups, used, report)
        sums, factor = window_update.quotient(groups, self.reduction)
        factor *= tf.cast(loss_scaling.unscaling(self.inner), factor.dtype)
        pairs = [(s, self._trained.variables[i]) for s, i in zip(sums, used, strict=True)]
        scales = isinstance(self._innermost, TakesScaledSum)
        transform = self.gradient_transform
        pairs, factor, norm = window_update.transformed(pairs, factor, transform, scales)
        self.gradient_norm.assign(tf.cast(norm, tf.float32))
        finite = tf.math.is_finite(norm) | ~agreed
        if self.nonfinite != "propagate":
            self.skipped_windows.assign_add(tf.cast(~finite, tf.int64))
        if_so = (agreed, window_update.allowed(finite, self.nonfinite))
        with tf.control_dependencies(if_so):
            begun = self.half_updated.assign(True)
        with tf.control_dependencies([begun]):
            if_so = (tf.identity(if_so[0]), tf.identity(if_so[1]))
        update_if = functools.partial(loss_scaling.update_if, self.inner)
        applied = window_update.hand_over(
            pairs, factor, if_so, candidates, touched, self._update_inner, update_if
        )
        with tf.control_dependencies([applied]):
            self.half_updated.assign(False)
        return applied, reports

    def _update_inner(self, chosen: frozenset[int], pairs: list[Any], factor: tf.Tensor) -> None:
        own = [(g, v) for g, v in pairs if self._trained.position(v) in chosen]
        inner = self._innermost
        with inner.scaling(factor) if isinstance(inner, TakesScaledSum) else nullcontext():
            self.inner.apply_gradients(own, skip_gradients_aggregation=True)

    # --- Use by Keras ---------------------------------------------------------------

    @property
    def _wrapped(self) -> bool:
        """Whether a LossScaleOptimizer has been put around this one."""
        return _tf_compat.is_wrapped_by_loss_scale(self)

    @property
    def _at_once(self) -> bool:
        """Whether every micro-step is a window, so that there is nothing to accumulate."""
        steps = self.accumulation_steps
        return isinstance(steps, int) and steps == 1 and not self._wrapped

    def compute_gradients(
        self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None
    ) -> list[tuple[Gradient, tf.Variable]]:
        """Compute gradients as tf_keras optimizers do; of the scaled loss if that is inside.

        Under a loss scale, inside or outside, the loss is one window's, of which a micro-batch
        has only a share: float16 is to overflow where that of the big batch would, and not
        `accumulation_steps` times earlier.
        """
        scaled = self._wrapped or loss_scaling.is_scaled(self.inner)
        parts = self._power_of_two() if scaled else 1.0

        def share(loss: tf.Tensor) -> tf.Tensor:
            loss = self.scale_loss(loss)
            return loss / tf.cast(parts, loss.dtype) if scaled else loss

        if callable(loss):
            pairs = super().compute_gradients(lambda: share(loss()), var_list, tape)
        else:
            with tape if tape is not None else nullcontext():
                loss = share(loss)
            pairs = super().compute_gradients(loss, var_list, tape)
            pairs = micro_batch.differentiate_parts(self, pairs, loss, parts)
        return [(times(g, parts), v) for g, v in pairs] if scaled else pairs

    def _power_of_two(self) -> tf.Tensor:
        """At least the micro-steps of the present window; multiplying by it is exact."""
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
        """Accumulate one micro-step; the N-th call of a window also applies it.

        Args:
          grads_and_vars: gradients as `model.fit` computes them: of the mean loss; under
            a strategy, of this replica's share of it.
          name: not used.
          skip_gradients_aggregation: only a `LossScaleOptimizer` around this may set it.
          **kwargs: what else tf_keras optimizers take.

        Returns:
          `iterations`.

        Raises:
          ValueError: called outside a replica, or with reduced gradients.
        """
        pairs = list(grads_and_vars)
        aggregate = kwargs.get("experimental_aggregate_gradients", True)
        if not skip_gradients_aggregation and aggregate:
            pairs = self.aggregate_gradients(pairs)
        elif not self._wrapped:
            raise ValueError(
                "AccumulatingOptimizer reduces over replicas by itself, once per update: give it"
                " each replica's own gradients, without skip_gradients_aggregation"
            )
        gradients, weight = micro_batch.weigh(self, self._in_order(pairs))
        parts = micro_batch.weigh_parts(self, self._trained.in_order)
        if self._at_once:
            self._update_at_once([(gradients, weight), *parts])
            return self.iterations
        state = self._state
        with after(gradients):
            state.main().add(gradients, weight)
            for number, part in enumerate(parts):
                state.part(number).add(*part)
        replicas.run_if((state.step >= state.window_steps) & ~state.overflowed, self.apply)
        return self.iterations

    def aggregate_gradients(self, grads_and_vars: GradsAndVars) -> list[Any]:
        """Begin a micro-step. The name is Keras'; nothing is reduced before `apply`.

        A `LossScaleOptimizer` around this one calls it, whether or not the gradients will
        turn out to be finite.
        """
        pairs = list(grads_and_vars)
        self.build([v for _, v in pairs])
        checks.check_in_replica(self._strategy_outside())
        with after([g for g, _ in pairs]):
            state = self._state
            due = tf.equal(state.step, 0) | (state.step >= state.window_steps)
            tf.cond(due, lambda: state.begin(self._steps(), not self._at_once), tf.no_op)
            state.step.assign_add(1)
            if not self._wrapped:
                return pairs
            return loss_scaling.report_overflow(
                pairs, self.iterations, state.overflowed, self.skipped_windows
            )

    # --- Saving ---------------------------------------------------------------------

    def _own_variables(self) -> list[tf.Variable]:
        if not self._trained.variables:
            return []
        state = self._state
        own = [state.step, state.window_steps, state.overflowed, self.skipped_windows]
        own += [variable for sums in state.all_sums for variable in sums.variables]
        return [*own, *_tf_compat.uncounted_variables(self._innermost)]

    def load_own_variables(self, store: Any) -> None:
        """Load what `save_own_variables` saved."""
        self._make_parts(len(store.keys()) - len(self._own_variables()))
        super().load_own_variables(store)

    def set_weights(self, weights: Any) -> None:
        """Set all variables, as the .h5 format does."""
        self._make_parts(len(weights) - len(self.variables))
        super().set_weights(weights)

    def _make_parts(self, missing: int) -> None:
        # The first step makes them, but a model that was just loaded has seen none.
        for _ in range(0 if self._nothing else missing // len(self._state.sums.variables)):
            self._state.part(len(self._state.parts))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, from which `from_config` makes the same optimizer, stateless."""
        return serialization.to_config(self)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Make the optimizer that `get_config` describes."""
        return AccumulatingOptimizer(**serialization.to_arguments(config, custom_objects))


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class ScalingAccumulatingOptimizer(AccumulatingOptimizer, loss_scaling.LossScaleOptimizer):
    """An accumulating optimizer with a `LossScaleOptimizer` inside.

    `AccumulatingOptimizer(LossScaleOptimizer(...))` makes one. It only adds the interface of a
    `LossScaleOptimizer`, and is one itself, because `model.compile` puts another one around any
    optimizer that is not, under mixed_float16.
    """

    inner_optimizer = delegated("inner", "inner_optimizer")
    dynamic = delegated("inner", "dynamic")
    loss_scale = delegated("inner", "loss_scale")
    dynamic_counter = delegated("inner", "dynamic_counter")
    initial_scale = delegated("inner", "initial_scale")
    dynamic_growth_steps = delegated("inner", "dynamic_growth_steps")

    get_scaled_loss = AccumulatingOptimizer.scale_loss

    def get_unscaled_gradients(self, grads: list[Gradient]) -> list[Gradient]:
        """Return the gradients as they are: `apply` unscales them, once per window."""
        return grads
