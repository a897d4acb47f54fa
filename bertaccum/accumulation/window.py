"""An optimizer that sums gradients over the micro-steps of a window, then applies one exact update.

The sum of the gradients divided by the sum of their weights is, unlike a mean of means, the exact
mean over the window, whatever the sizes of the micro-batches. Replicas communicate only in `apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import checks, loss_scaling, replicas, window_update
from bertaccum.accumulation.adamw import InPlaceAdamW
from bertaccum.accumulation.compiled import maybe_compiled
from bertaccum.accumulation.gradient_tensors import (
    Gradient,
    GradsAndVars,
    ModelVariables,
    after,
    dense,
    positions_of,
)
from bertaccum.accumulation.offload.host_memory import free
from bertaccum.accumulation.sums import GradientSums, HostSums
from bertaccum.accumulation.transforms import GradientTransform

# A function of the gradients summed over all replicas, keyed by the position of their variable; of
# the factor that turns the sums into mean gradients, a float64 scalar; and of whether all replicas
# agree to the update, a bool scalar. It returns a tensor that the update waits for.
Observer: TypeAlias = Callable[[dict[int, Any], tf.Tensor, tf.Tensor], tf.Tensor]


class WindowOptimizer(_tf_compat.AutoTrackable):
    """A window of micro-steps, and the optimizer that updates the variables at its end.

    Args:
      inner: The tf_keras optimizer, or a `LossScaleOptimizer` around it.
      reduction: `mean` or `sum` of the window's gradients.
      accumulator_dtype: Dtype of the accumulators; None for each variable's own dtype, but at least
        float32. Accumulators narrower than float32 store a running mean.
      nonfinite: Treatment of a window whose gradient is not finite or has a norm that overflows
        float32: `skip` it, `raise` an error, or `propagate` the gradient to the inner optimizer.
      gradient_transform: Function that maps the (mean gradient, variable) pairs to those that the
        inner optimizer receives, or None.
      accumulates: Whether windows may have several micro-steps, so that `build` creates
        accumulators.

    Attributes:
      observer: Function called with every window's gradients, in the graph, on each replica.
      step: Number of micro-steps in the window so far.
      gradient_norm: Global norm of the last mean gradient, before its transform.
      skipped_windows: Number of windows that were skipped.
      half_updated: Whether the variables are being updated. It stays True if that fails midway.
    """

    step: tf.Variable
    gradient_norm: tf.Variable
    skipped_windows: tf.Variable
    half_updated: tf.Variable

    def __init__(
        self,
        inner: tf_keras.optimizers.Optimizer,
        reduction: str = "mean",
        accumulator_dtype: Any = None,
        nonfinite: str = "skip",
        gradient_transform: GradientTransform | None = None,
        accumulates: bool = True,
    ) -> None:
        super().__init__()
        self.inner = inner
        self.reduction = reduction
        self.accumulator_dtype = tf.as_dtype(accumulator_dtype) if accumulator_dtype else None
        self.nonfinite = nonfinite
        self.gradient_transform = gradient_transform
        self.accumulates = accumulates
        self.observer: Observer | None = None
        self.sums: GradientSums | HostSums | None = None
        self.trained = ModelVariables(inner)
        self._compiled = self._sums_on_host = False
        self._host_folder: str | None = None

    @property
    def innermost(self) -> tf_keras.optimizers.Optimizer:
        """The optimizer that updates the variables, without a `LossScaleOptimizer` around it."""
        return loss_scaling.innermost(self.inner)

    @property
    def iterations(self) -> tf.Variable:
        """Number of updates."""
        return self.inner.iterations

    @property
    def learning_rate(self) -> Any:
        """Learning rate of the next update."""
        return self.inner.learning_rate

    @property
    def pending(self) -> bool:
        """Whether there is a partial window; do not read this inside a `tf.function`."""
        return self.sums is not None and bool(self.step.numpy() > 0)

    @property
    def accumulators(self) -> list[Any]:
        """The accumulators, one per trained variable, or an empty list if there are none."""
        return [] if self.sums is None else self.sums.totals

    # --- State ----------------------------------------------------------------------

    def build(self, variables: Sequence[tf.Variable]) -> None:
        """Create the state for `variables`; only these can be trained afterwards."""
        if self.trained.variables:
            for variable in variables:
                self.trained.position(variable)
            return
        checks.check_scope(self.inner)
        with tf.init_scope():
            self.inner.build(variables)
            self.trained = ModelVariables(self.inner, variables)
            self.step = replicas.alike(0, tf.int64, "step")
            self.skipped_windows = replicas.alike(0, tf.int64, "skipped_windows")
            self.gradient_norm = replicas.alike(0, tf.float32, "gradient_norm")
            self.half_updated = replicas.alike(False, tf.bool, "half_updated")
        if self.accumulates:
            self.make_sums()

    def make_sums(self) -> GradientSums | HostSums:
        """Return the accumulators; create them on the first call."""
        if self.sums is None:
            variables = self.trained.variables
            with tf.init_scope():
                if self._sums_on_host:
                    self.sums = HostSums(variables, self._host_folder)
                else:
                    self.sums = GradientSums(variables, self.accumulator_dtype)
        return self.sums

    def offload(self, moments: bool, sums: bool, folder: str | None = None) -> None:
        """Move parts of the state to host memory for good; then trace functions again.

        Args:
          moments: Whether to move the moments of the inner optimizer, an `InPlaceAdamW`.
          sums: Whether to move the accumulators, which discards a partial window. Checkpoints then
            do not contain them.
          folder: Folder for files that contain what is moved, or None to use memory.

        Raises:
          RunError: The folder cannot be used, or its disk is full.
        """
        if moments:
            self.innermost.offload_moments(folder)
        if sums and not self._sums_on_host:
            self._sums_on_host, self._host_folder = True, folder
            if self.sums is not None:
                for total in self.sums.totals:
                    free(total)
                self.sums = None
                self.make_sums()
                self.reset()

    def compile_steps(self, compile: bool) -> None:
        """Set whether XLA compiles the device's part of `apply`; then trace functions again."""
        self._compiled = compile
        if isinstance(self.innermost, InPlaceAdamW):
            self.innermost.compiled = compile

    # --- Micro-steps ----------------------------------------------------------------

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Return `loss` times the inner loss scale, which is constant within a window."""
        return self.inner.get_scaled_loss(loss) if loss_scaling.is_scaled(self.inner) else loss

    def accumulate(self, grads_and_vars: GradsAndVars, weight: Any = 1.0) -> None:
        """Add one micro-step's gradients, of a loss *summed* over its examples, and its weight."""
        gradients = self.in_order(grads_and_vars)
        self.add(gradients, tf.cast(weight, tf.float64))
        with after(gradients):
            self.step.assign_add(1)

    def in_order(self, grads_and_vars: GradsAndVars) -> list[Gradient]:
        """Return a gradient or None for each variable that `build` was called with."""
        pairs = list(grads_and_vars)
        self.build([v for _, v in pairs])
        checks.check_in_replica(self.strategy_outside())
        return self.trained.in_order(pairs)

    def add(self, gradients: Sequence[Gradient], weight: tf.Tensor) -> None:
        """Add gradients that `in_order` returned, without counting a micro-step."""
        with after(gradients):
            self.make_sums().add(gradients, weight)

    def avoid_copies(self) -> None:
        """Avoid copies of the accumulators of embeddings; call this before `apply`, uncompiled.

        TensorFlow copies a variable that received IndexedSlices when the variable is read. For
        BERT-Small's word embeddings, the copy took 3% of the time of an update.
        """
        if isinstance(self.sums, GradientSums):
            self.sums.avoid_copies()

    def strategy_outside(self) -> tf.distribute.Strategy | None:
        """Return the strategy to run in, or None inside a replica."""
        return replicas.strategy_outside_replicas(getattr(self, "step", None))

    # --- The update -----------------------------------------------------------------

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
          Whether the update was applied, a bool scalar: False if the window was discarded or its
          gradient was not finite. With a report, a pair of this scalar and the sums of the report
          over replicas, [n] float64.

        Raises:
          ValueError: If nothing was accumulated.
        """
        strategy = self.strategy_outside()
        if strategy is not None:
            return replicas.run_on_all(strategy, self.apply, report)
        if self.sums is None or (tf.executing_eagerly() and not self.step > 0):
            raise ValueError(
                "apply() was called without accumulate(), so there is no gradient to apply;"
                " call accumulate() first"
            )
        alone = self.reduction != "sum" and replicas.replicas_in_sync() == 1
        totals, weight = self.sums.read(alone)
        touched = tf.identity(self.sums.touched)
        applied, total = self._update(totals, weight, touched, self.trained.candidates(), report)
        with tf.control_dependencies([applied]):
            self.reset()
        return applied if report is None else (applied, total)

    def apply_sums(self, grads_and_vars: GradsAndVars, weight: Any) -> tf.Tensor:
        """Update the variables from a window of one micro-step, without accumulators.

        Returns:
          Whether the update was applied, a bool scalar; False if the window was skipped.
        """
        return self.apply_once(self.in_order(grads_and_vars), tf.cast(weight, tf.float64))

    def apply_once(self, gradients: Sequence[Gradient], weight: tf.Tensor) -> tf.Tensor:
        """Call `apply_sums` for gradients that `in_order` returned."""
        touched = tf.constant([g is not None for g in gradients])
        totals = dense(gradients, self.trained.variables)
        return self._update(totals, weight, touched, [positions_of(gradients)])[0]

    def drop(self) -> None:
        """Discard a partial window."""
        strategy = self.strategy_outside()
        if strategy is not None:
            replicas.run_on_all(strategy, self.drop)
        elif self.sums is not None:
            self.reset()

    def reset(self) -> None:
        """Set the accumulators and the number of micro-steps to zero."""
        if self.sums is not None:
            self.sums.reset(self._compiled)
        self.step.assign(0)

    def _update(
        self,
        totals: Sequence[Any],
        weight: tf.Tensor,
        touched: tf.Tensor,
        candidates: list[frozenset[int]],
        report: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, Any]:
        """Update the variables; return whether they changed, and the sums of the reports."""
        used = sorted(frozenset.union(*candidates))
        totals, weight, reports = window_update.reduced([totals[i] for i in used], weight, report)
        agreed = tf.constant(True) if reports is None else tf.equal(reports[0], 0)
        # The means are not computed here, because they take as much memory as the model.
        factor = 1 / (tf.ones_like(weight) if self.reduction == "sum" else weight)
        factor *= tf.cast(loss_scaling.unscaling(self.inner), factor.dtype)
        if self.observer is not None:
            by_position, observe = dict(zip(used, totals, strict=True)), self.observer
            seen = maybe_compiled(lambda: observe(by_position, factor, agreed), self._compiled)
            with tf.control_dependencies([seen]):
                factor = tf.identity(factor)
        pairs = [(s, self.trained.variables[i]) for s, i in zip(totals, used, strict=True)]
        takes_sums = isinstance(self.innermost, InPlaceAdamW)
        pairs, factor, norm = window_update.transformed(
            pairs, factor, self.gradient_transform, takes_sums, self._compiled
        )
        self.gradient_norm.assign(tf.cast(norm, tf.float32))
        finite = tf.math.is_finite(norm) | ~agreed
        if self.nonfinite != "propagate":
            self.skipped_windows.assign_add(tf.cast(~finite, tf.int64))
        allowed = window_update.allowed(finite, self.nonfinite)
        with tf.control_dependencies([agreed, allowed]):
            begun = self.half_updated.assign(True)
        with tf.control_dependencies([begun]):
            if_so = (tf.identity(agreed), tf.identity(allowed))
        applied = window_update.hand_over(
            self.inner, pairs, factor, if_so, self.trained, touched, candidates
        )
        with tf.control_dependencies([applied]):
            self.half_updated.assign(False)
        return applied, reports
