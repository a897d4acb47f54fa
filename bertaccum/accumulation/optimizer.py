"""An optimizer that accumulates gradients over micro-steps and applies one exact update.

The optimizer sums gradients and their weights in `GradientSums`. Their quotient, unlike a mean of
means, is the exact mean over the window, whatever the sizes of the micro-batches.
`window_update.py` computes the quotient once per window.

The optimizer has two interfaces. With the explicit one, the caller passes each micro-batch's
weight to `accumulate` and calls `apply` once per window. With the Keras interface,
`apply_gradients` accumulates, and every N-th call also applies the update. Both interfaces reduce
the gradients over replicas once per update.
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
    traced_step,
    window_update,
)
from bertaccum.accumulation.compiled import maybe_compiled
from bertaccum.accumulation.contract import check_choice
from bertaccum.accumulation.contracts import GradientTransform, Observer, TakesScaledSum
from bertaccum.accumulation.delegation import DelegatingOptimizer, delegated
from bertaccum.accumulation.gradient_tensors import Gradient, GradsAndVars, after, dense, times
from bertaccum.accumulation.legacy import adapted
from bertaccum.accumulation.model_variables import ModelVariables, positions_of
from bertaccum.accumulation.offload.host_sums import HostSums
from bertaccum.accumulation.sums import GradientSums, WindowState


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
      reduction: Reduction of the window's gradients: `mean`, `sum` or `running_mean`. The last
        also computes the mean, but the accumulators store a running mean instead of a sum.
      accumulator_dtype: Dtype of the accumulators. The default is that of each variable, but at
        least float32. Accumulators narrower than float32 store the running mean.
      nonfinite: Treatment of a window whose gradient is not finite or has a norm that overflows
        float32: `skip` the window, `raise` an error, or `propagate` the gradient to the inner
        optimizer.
      gradient_transform: A function that maps the list of (mean gradient, variable) pairs to the
        list that the inner optimizer receives, such as `ClipByGlobalNorm(1.0)`. See
        `contracts.py`.
      name: Name of this optimizer.

    Attributes:
      observer: A function that is called with every window's gradients, in the graph, on each
        replica; see `contracts.py`. None for no such function.

    Raises:
      TypeError: If `optimizer` is not a tf_keras optimizer, or an argument has a wrong type.
      ValueError: If `optimizer` already accumulates, or an argument has a wrong value.
    """

    accumulation_steps: Any
    reduction: str
    accumulator_dtype: tf.DType | None
    nonfinite: str
    gradient_transform: GradientTransform | None
    observer: Observer | None
    skipped_windows: tf.Variable
    gradient_norm: tf.Variable
    half_updated: tf.Variable

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
        super().__init__(adapted(serialization.resolved(optimizer)), name or "accumulating")
        checks.check_inner(self.inner, AccumulatingOptimizer)
        self.accumulation_steps = steps
        self.reduction = reduction
        self.accumulator_dtype = tf.as_dtype(accumulator_dtype) if accumulator_dtype else None
        self.nonfinite = nonfinite
        self.gradient_transform = gradient_transform
        self.observer = None
        self._compiled = False
        self._loss_is_sum = False
        self._sums_on_host = False
        self._host_folder: str | None = None
        self._trained = ModelVariables(self.inner)
        self._state: Any = None  # `build` creates a `WindowState`.

    # --- State ----------------------------------------------------------------------

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Create the state for `var_list`; only these variables can be trained afterwards.

        Raises:
          ValueError: If the optimizer was already built without one of these variables, or was
            created outside of the strategy's scope.
        """
        if self._trained.variables:
            for variable in var_list:
                self._trained.position(variable)
            return
        checks.check_scope(self.inner)
        with tf.init_scope():
            self.inner.build(var_list)
            self._trained = ModelVariables(self.inner, var_list)
            self._state = WindowState(self._new_sums, functools.partial(_tf_compat.track, self))
            self.skipped_windows = replicas.alike(0, tf.int64, "skipped_windows")
            self.gradient_norm = replicas.alike(0, tf.float32, "gradient_norm")
            # True while the variables are being updated; stays True if the update fails midway.
            self.half_updated = replicas.alike(False, tf.bool, "half_updated")
        _tf_compat.mark_built(self)
        if not self._at_once:
            self._state.main()

    def _new_sums(self, prefix: str) -> GradientSums | HostSums:
        variables = self._trained.variables
        if self._sums_on_host:
            return HostSums(variables, self._host_folder, prefix)
        mean = self.reduction == "running_mean"
        return GradientSums(variables, self.accumulator_dtype, mean, prefix)

    def offload(self, moments: bool, sums: bool, folder: str | None = None) -> None:
        """Keep parts of the state in host memory from now on; discard a partial window.

        Functions that were traced before must be traced again. Nothing moves back to the device.

        Args:
          moments: Whether to move the moments of the inner optimizer, an `InPlaceAdamW`.
          sums: Whether to move the accumulators. They then have at least float32, and checkpoints
            do not contain them.
          folder: Folder for files that contain what is moved, or None to use memory.

        Raises:
          RunError: The folder cannot be used, or its disk is full.
        """
        if moments:
            self._innermost.offload_moments(folder)
        if sums and not self._sums_on_host:
            self._sums_on_host, self._host_folder = True, folder
            if self._state is not None:
                self._state.renew_sums()

    def compile_steps(self, compile: bool) -> None:
        """Set whether XLA compiles what `apply` does on the device.

        Functions that were traced before must be traced again. What is in host memory, and the
        step of an inner optimizer other than `InPlaceAdamW`, is not compiled.
        """
        self._compiled = compile
        if hasattr(self._innermost, "compiled"):
            self._innermost.compiled = compile

    def _in_order(self, grads_and_vars: GradsAndVars) -> list[Gradient]:
        pairs = list(grads_and_vars)
        self.build([v for _, v in pairs])
        checks.check_in_replica(self._strategy_outside())
        gradients = self._trained.in_order(pairs)
        self._trained.together.add(positions_of(gradients))
        return gradients

    def _strategy_outside(self) -> tf.distribute.Strategy | None:
        """Return the strategy to run in, or None inside a replica."""
        return replicas.strategy_outside_replicas(getattr(self._state, "step", None))

    @property
    def accumulators(self) -> list[tf.Variable]:
        """The accumulators, one per trained variable, or an empty list if there are none."""
        return [] if self._nothing else self._state.sums.totals

    @property
    def pending(self) -> bool:
        """Whether there is a partial window; do not read this inside a `tf.function`."""
        return not self._nothing and bool(self._state.step.numpy() > 0)

    @property
    def in_window(self) -> tf.Tensor:
        """Whether the window goes on after the micro-step that has just run, a bool scalar."""
        return (self._state.step > 0) & (self._state.step < self._state.window_steps)

    @property
    def _nothing(self) -> bool:
        """Whether there are no accumulators yet."""
        return self._state is None or self._state.sums is None

    # --- Explicit use ---------------------------------------------------------------

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss to differentiate: `loss` times the inner loss scale, if there is one.

        The scale is constant within a window.
        """
        return self.inner.get_scaled_loss(loss) if loss_scaling.is_scaled(self.inner) else loss

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
        gradients = self._in_order(grads_and_vars)
        with after(gradients):
            self._state.main().add(gradients, tf.cast(weight, tf.float64))
            self._state.step.assign_add(1)

    def apply(self, report: tf.Tensor | None = None) -> Any:
        """Update the variables with the gradients of all replicas, and start a new window.

        A variable without a gradient in the window does not change: it does not decay, and its
        moments stay the same. If a `tf.function` calls this method, trace all micro-steps before
        it. The method knows only sets of variables that had gradients in a micro-step traced
        earlier, and the unions of two such sets. If the variables with gradients in a window form
        another set, a missing gradient counts as zero.

        Args:
          report: Numbers of this replica, [n], which are summed over replicas in the same
            reduction as the gradients. If the first sum is not 0, all replicas discard the
            window, and nothing else changes.

        Returns:
          Whether the update was applied, a bool scalar. It is False if the window was discarded
          or its gradient was not finite. With a report, a pair of this scalar and the sums of
          the report over replicas, [n] float64.

        Raises:
          ValueError: If nothing was accumulated.
        """
        strategy = self._strategy_outside()
        if strategy is not None:
            return replicas.run_on_all(strategy, self.apply, report)
        if self._nothing or (tf.executing_eagerly() and not self._state.step > 0):
            raise ValueError(
                "apply() was called without accumulate(), so there is no gradient to apply;"
                " call accumulate() first"
            )
        sums, *parts = self._state.all_sums
        alone = self.reduction != "sum" and replicas.replicas_in_sync() == 1
        read = [sums.read(alone), *(part.read(alone=False) for part in parts)]
        touched = tf.identity(sums.touched)
        applied, total = self._update(read, touched, self._trained.candidates(), report)
        with tf.control_dependencies([applied]):
            self._state.reset(self._compiled)
        return applied if report is None else (applied, total)

    def avoid_copies(self) -> None:
        """Avoid copies of the accumulators of embeddings in `apply`.

        TensorFlow copies a variable that received IndexedSlices, such as the gradients of an
        embedding, when the variable is read. For BERT-Small's word embeddings, the copy took 3% of
        the time of an update. Call this method before `apply`, in the same function, unless XLA
        compiles the function.
        """
        if not self._nothing and not self._sums_on_host:
            self._state.sums.avoid_copies()

    def apply_sums(self, grads_and_vars: GradsAndVars, weight: Any) -> tf.Tensor:
        """Update the variables from a window of a single micro-step, without accumulators.

        Args:
          grads_and_vars: (gradient, variable) pairs of the loss summed over this replica's
            examples.
          weight: Weight of the gradients, usually the number of examples; a scalar.

        Returns:
          Whether the update was applied, a bool scalar. It is False if the window was skipped.
        """
        gradients = self._in_order(grads_and_vars)
        return self._update_at_once([(gradients, tf.cast(weight, tf.float64))])

    def flush(self) -> tf.Tensor:
        """Apply a partial window; a mean is taken over the examples that the window contains.

        Returns:
          Whether an update was applied, a bool scalar. It is False if there was no partial window
          or if it was skipped.
        """
        strategy = self._strategy_outside()
        if strategy is not None:
            return replicas.run_on_all(strategy, self.flush)
        if self._nothing:
            return tf.constant(False)
        self._learn_touched()
        applied = replicas.run_if((self._state.step > 0) & ~self._state.overflowed, self.apply)
        with tf.control_dependencies([applied]):
            self._state.step.assign(0)  # Also ends a window that overflowed.
        return applied

    def traced_flush(self) -> tf.Tensor:
        """Call `flush` in a `tf.function`, which is faster if it is called repeatedly."""
        self._learn_touched()
        # The argument grows when there are new sets of variables or new sums, so that
        # TensorFlow traces the function again.
        return self._flush(len(self._trained.together) + len(self._state.all_sums))

    def _learn_touched(self) -> None:
        """Note which variables have gradients: a loaded model has not traced a micro-step yet."""
        if tf.executing_eagerly() and not self._nothing:
            flags = self._state.sums.touched.numpy()
            touched = frozenset(i for i, has_gradient in enumerate(flags) if has_gradient)
            if touched not in self._trained.candidates():
                self._trained.together.add(touched)

    @functools.cached_property
    def _flush(self) -> Callable[[int], tf.Tensor]:
        return tf.function(lambda _: self.flush())

    def drop(self) -> None:
        """Discard a partial window."""
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
        """Update the variables; return whether they changed, and the sums of the reports."""
        used = sorted(frozenset.union(*candidates))
        groups, reports, agreed = window_update.reduced(groups, used, report)
        sums, factor = window_update.quotient(groups, self.reduction)
        factor *= tf.cast(loss_scaling.unscaling(self.inner), factor.dtype)
        if self.observer is not None:
            by_position, observe = dict(zip(used, sums, strict=True)), self.observer
            seen = maybe_compiled(lambda: observe(by_position, factor, agreed), self._compiled)
            with tf.control_dependencies([seen]):
                factor = tf.identity(factor)
        pairs = [(s, self._trained.variables[i]) for s, i in zip(sums, used, strict=True)]
        scales = isinstance(self._innermost, TakesScaledSum)
        transform = self.gradient_transform
        pairs, factor, norm = window_update.transformed(
            pairs, factor, transform, scales, self._compiled
        )
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
            self.inner.apply_gradients(own, **checks.skip_aggregation(self.inner))

    # --- Use by Keras ---------------------------------------------------------------

    @property
    def _wrapped(self) -> bool:
        """Whether this optimizer is inside a `LossScaleOptimizer`."""
        return _tf_compat.is_wrapped_by_loss_scale(self)

    @property
    def _at_once(self) -> bool:
        """Whether every micro-step is a window, so that no accumulators are needed."""
        return not checks.accumulates(self.accumulation_steps) and not self._wrapped

    def compute_gradients(
        self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None
    ) -> list[tuple[Gradient, tf.Variable]]:
        """Return (gradient, variable) pairs of the loss, multiplied by the inner loss scale if any.

        With an inner or outer `LossScaleOptimizer`, the loss is divided by the number of
        micro-steps (rounded up to a power of two) before it is differentiated, and its gradients
        are multiplied by this number afterwards. Otherwise a micro-batch's gradients would be
        `accumulation_steps` times its share of the window's gradients, and could overflow float16
        in windows that do not overflow as one large batch.
        """
        self._loss_is_sum = micro_batch.has_values(loss)
        if (micro := micro_batch.present()) is not None and not callable(loss):
            micro.loss_is_sum = self._loss_is_sum  # The step may have taken a mean.
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
        """Return the number of micro-steps, rounded up to a power of two to divide exactly."""
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
            loss or, under a strategy, of this replica's share of it.
          name: Ignored.
          skip_gradients_aggregation: Reserved for a `LossScaleOptimizer` around this optimizer.
          **kwargs: Other keyword arguments of `tf_keras.optimizers.Optimizer.apply_gradients`.

        Returns:
          `iterations`, the number of updates.

        Raises:
          ValueError: If called outside of a replica or with gradients that are already reduced.
        """
        pairs = list(grads_and_vars)
        micro_batch.check_function()
        micro = micro_batch.present()
        with traced_step.update(self, pairs, micro.updates if micro else None):
            aggregate = kwargs.get("experimental_aggregate_gradients", True)
            if not skip_gradients_aggregation and aggregate:
                pairs = self.aggregate_gradients(pairs)
            elif not self._wrapped:
                raise ValueError(
                    "AccumulatingOptimizer itself reduces gradients over replicas, once per update;"
                    " pass each replica's own gradients, without `skip_gradients_aggregation`"
                )
            self._micro_step(self._in_order(pairs))
        return self.iterations

    def _micro_step(self, gradients: list[Gradient]) -> None:
        state = self._state
        first = tf.equal(state.step, 1)
        own = micro_batch.weigh(gradients, first, self._loss_is_sum)
        parts = micro_batch.weigh_parts(self, self._trained.in_order)
        if self._at_once:
            self._update_at_once([own, *parts])
            return
        with after(gradients):
            state.main().add(*own)
            for number, part in enumerate(parts):
                state.part(number).add(*part)
        replicas.run_if((state.step >= state.window_steps) & ~state.overflowed, self.apply)

    def aggregate_gradients(self, grads_and_vars: GradsAndVars) -> list[Any]:
        """Start a micro-step, and return the pairs; `apply` will reduce their gradients.

        A `LossScaleOptimizer` around this optimizer calls this method for all gradients, finite
        or not.
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
        """Load the variables that `save_own_variables` saved."""
        self._make_parts(len(store.keys()) - len(self._own_variables()))
        super().load_own_variables(store)

    def set_weights(self, weights: Any) -> None:
        """Set all variables; Keras calls this to load the .h5 format."""
        self._make_parts(len(weights) - len(self.variables))
        super().set_weights(weights)

    def _make_parts(self, missing: int) -> None:
        # The first micro-step creates the parts, but a newly loaded model has not run one yet.
        for _ in range(0 if self._nothing else missing // len(self._state.sums.variables)):
            self._state.part(len(self._state.parts))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, from which `from_config` creates the optimizer without state."""
        return serialization.to_config(self)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Create the optimizer from the config that `get_config` returns."""
        return AccumulatingOptimizer(**serialization.to_arguments(config, custom_objects))


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class ScalingAccumulatingOptimizer(AccumulatingOptimizer, loss_scaling.LossScaleOptimizer):
    """An accumulating optimizer with a `LossScaleOptimizer` inside.

    `AccumulatingOptimizer(LossScaleOptimizer(...))` creates an instance of this class, which only
    adds the interface of a `LossScaleOptimizer`. It is a subclass of `LossScaleOptimizer` because
    `model.compile`, under mixed_float16, wraps every other optimizer in a `LossScaleOptimizer`.
    """

    inner_optimizer = delegated("inner", "inner_optimizer")
    dynamic = delegated("inner", "dynamic")
    loss_scale = delegated("inner", "loss_scale")
    dynamic_counter = delegated("inner", "dynamic_counter")
    initial_scale = delegated("inner", "initial_scale")
    dynamic_growth_steps = delegated("inner", "dynamic_growth_steps")

    get_scaled_loss = AccumulatingOptimizer.scale_loss

    def get_unscaled_gradients(self, grads: list[Gradient]) -> list[Gradient]:
        """Return the gradients unchanged, because `apply` unscales them once per window."""
        return grads
