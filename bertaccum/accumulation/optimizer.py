"""The accumulating optimizer: many micro-steps, one exact update.

What is added up are gradients and what they weigh; their quotient is the mean over the
whole window, whatever the sizes of the micro-batches: a mean of means would not be.

It has two faces on one state. The explicit one, `accumulate` and `apply`, communicates
once per update and knows each micro-batch's weight. The Keras one, `apply_gradients`,
accumulates, and applies on every N-th call. Under a distribution strategy replicas are
merged first and the branch is taken after: merging inside a branch that one replica
takes is an error in TensorFlow.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.accumulation import micro_batch, serialization
from bertaccum.accumulation.checks import (
    NONFINITE,
    REDUCTIONS,
    check_choice,
    check_inner,
    check_scope,
    check_steps_or_schedule,
    plain_number,
)
from bertaccum.accumulation.overflow import overflow_anywhere, poisoned, take_back_update
from bertaccum.accumulation.replicas import alike, first, sum_over_replicas
from bertaccum.accumulation.sums import Gradient, GradientSums, after, times
from bertaccum.accumulation.transforms import GradientTransform
from bertaccum.accumulation.wrapper import OptimizerWrapper

GradsAndVars = Iterable[tuple[Gradient, tf.Variable]]


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class AccumulatingOptimizer(OptimizerWrapper):
    """Wraps a tf_keras optimizer so that it acts once per window of micro-steps.

    The wrapped optimizer sees one gradient per update: its clipping, weight decay,
    schedule, moving averages and `iterations` know nothing of micro-steps.

    Args:
      optimizer: the inner optimizer: a new-style tf_keras one, its name or its config.
        With a `LossScaleOptimizer` inside, gradients of the scaled loss are accumulated,
        unscaled once per window, and a window that overflowed lowers the scale once.
      accumulation_steps: micro-steps in a window for `apply_gradients`: a number, a
        variable, or a function of the update's number. A change takes effect at the
        next window. `accumulate` and `apply` do not look at it.
      reduction: `mean` over the window, `sum`, or `running_mean`: the mean, kept as such.
      accumulator_dtype: by default that of the variables, but at least float32. Narrower
        types hold the running mean.
      nonfinite: what to do with a window whose gradient is not finite, or whose norm is
        beyond float32: `skip` it, `raise` an error, or `propagate` it.
      gradient_transform: maps the list of (mean gradient, variable) to what the inner
        optimizer gets, such as `ClipByGlobalNorm(1.0)`.
      name: of this optimizer.

    Raises:
      TypeError, ValueError: the optimizer cannot be wrapped or an argument is not valid.
    """

    def __new__(cls, optimizer: Any = None, *args: Any, **kwargs: Any) -> AccumulatingOptimizer:
        scaled = isinstance(
            serialization.resolved(optimizer), tf_keras.mixed_precision.LossScaleOptimizer
        )
        if scaled and cls is AccumulatingOptimizer:
            from bertaccum.accumulation.loss_scale import ScalingAccumulatingOptimizer

            return super().__new__(ScalingAccumulatingOptimizer)
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
        check_steps_or_schedule(accumulation_steps)
        check_choice("reduction", reduction, REDUCTIONS)
        check_choice("nonfinite", nonfinite, NONFINITE)
        self.inner = serialization.resolved(optimizer)
        check_inner(self.inner, AccumulatingOptimizer)
        self.name = name or "accumulating"
        self.accumulation_steps = plain_number(accumulation_steps)
        self.reduction = reduction
        self.accumulator_dtype = tf.as_dtype(accumulator_dtype) if accumulator_dtype else None
        self.nonfinite = nonfinite
        self.gradient_transform = gradient_transform
        # The model's own, so not part of what this optimizer saves.
        self._model_variables = self._no_dependency([])
        self._positions = self._no_dependency({})
        # Which variables have had gradients together, by position.
        self._together: set[frozenset[int]] = self._no_dependency(set())
        self._sums: GradientSums | None = None

    # --- State ----------------------------------------------------------------------

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Creates all state for `var_list`, which is then all that can be trained.

        Raises:
          ValueError: built before without one of them, or made outside the strategy.
        """
        if self._model_variables:
            for variable in var_list:
                self._position(variable)
            return
        check_scope(self.inner)
        with tf.init_scope():
            self.inner.build(var_list)
            self._model_variables.extend(var_list)
            self._positions.update({self.inner._var_key(v): i for i, v in enumerate(var_list)})
            self._step = alike(0, tf.int64, "step")
            self._window_steps = alike(0, tf.int64, "window_steps")
            self._overflowed = alike(False, tf.bool, "overflowed")
            self.skipped_windows = alike(0, tf.int64, "skipped_windows")
            self.gradient_norm = alike(0, tf.float32, "gradient_norm")
            # While variables change one after another; it stays if that is cut short.
            self.half_updated = alike(False, tf.bool, "half_updated")
        self._built = True
        if not self._at_once:
            self._accumulators()

    @property
    def _at_once(self) -> bool:
        """Whether every micro-step is a window, so that there is nothing to accumulate."""
        steps = self.accumulation_steps
        wrapped = self._is_wrapped_by_loss_scale_optimizer
        return isinstance(steps, int) and steps == 1 and not wrapped

    def _accumulators(self) -> GradientSums:
        if self._sums is None:
            running_mean = self.reduction == "running_mean"
            with tf.init_scope():
                self._sums = GradientSums(
                    self._model_variables, self.accumulator_dtype, running_mean
                )
        return self._sums

    def _position(self, variable: tf.Variable) -> int:
        try:
            return self._positions[self.inner._var_key(variable)]
        except KeyError:
            raise ValueError(
                f"AccumulatingOptimizer was built with other variables, without {variable.name};"
                " build() it with all of them before the first step, or make a new one for"
                " another model"
            ) from None

    def _in_order(self, grads_and_vars: GradsAndVars) -> list[Gradient]:
        """One gradient or None for each of the model's variables."""
        pairs = list(grads_and_vars)
        self.build([v for _, v in pairs])
        gradients: list[Gradient] = [None] * len(self._model_variables)
        for gradient, variable in pairs:
            if gradient is not None:
                gradients[self._position(variable)] = gradient
        together = frozenset(_positions_of(gradients))
        if together not in self._together:
            self._together.add(together)
            self.__dict__.pop("traced_flush", None)  # It was traced without knowing of them.
        return gradients

    # --- The explicit face ----------------------------------------------------------

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss to differentiate: scaled if there is a loss scale inside."""
        return loss

    def accumulate(self, grads_and_vars: GradsAndVars, weight: Any = 1.0) -> None:
        """Adds one micro-step on this replica; communicates nothing.

        Args:
          grads_and_vars: gradients of a loss that is *summed* over its examples; None,
            IndexedSlices, and variables left out are fine.
          weight: how much the micro-step weighs, as a rule its number of examples.
        """
        gradients = self._in_order(grads_and_vars)
        with after(gradients):
            self._accumulators().add(gradients, tf.cast(weight, tf.float64))
            self._step.assign_add(1)

    def apply(self) -> tf.Tensor:
        """Updates the variables from what all replicas accumulated; starts a new window.

        Variables without a gradient in the window are left alone, decay and moments, too.
        In a `tf.function`, where that is decided beforehand, this holds for the sets of
        variables that have had gradients together when it is traced, and for what two of them
        have between them: trace the micro-steps first. In other windows a variable without
        gradient is taken to have one of zero.

        Returns:
          True if the update was applied, False if its gradient was not finite and the
          window was skipped.

        Raises:
          ValueError: nothing was accumulated.
        """
        if tf.distribute.in_cross_replica_context():
            return first(tf.distribute.get_strategy().run(self.apply))
        if self._sums is None or (tf.executing_eagerly() and not self._step > 0):
            raise ValueError("apply() without accumulate(): there is no gradient to apply")
        sums, weight = self._sums.read()
        applied = self._update(sums, weight, self._candidates(), tf.identity(self._sums.touched))
        with tf.control_dependencies([applied]):
            self._sums.reset()
            self._step.assign(0)
        return applied

    def _candidates(self) -> list[frozenset[int]]:
        """Sets of variables that may turn out to have gradients in a window, small ones first."""
        pairs = {one | other for one, other in itertools.product(self._together, repeat=2)}
        return sorted(pairs | {frozenset(range(len(self._model_variables)))}, key=len)

    def apply_sums(self, grads_and_vars: GradsAndVars, weight: Any) -> tf.Tensor:
        """Updates from a window that was a single micro-step: no accumulators are used.

        Args:
          grads_and_vars: gradients of the loss summed over this replica's examples.
          weight: how much they weigh, as a rule the number of examples.

        Returns:
          As `apply`.
        """
        return self._update_at_once(self._in_order(grads_and_vars), tf.cast(weight, tf.float64))

    def _update_at_once(self, gradients: list[Gradient], weight: tf.Tensor) -> tf.Tensor:
        # The sum is the gradient: clipping must not see an embedding's rows one by one.
        dense = [
            tf.zeros(v.shape, v.dtype) if g is None else tf.convert_to_tensor(g)
            for g, v in zip(gradients, self._model_variables, strict=True)
        ]
        touched = tf.constant([g is not None for g in gradients])
        own = frozenset(_positions_of(gradients))
        return self._update(dense, weight, [own], touched)

    def flush(self) -> tf.Tensor:
        """Applies the window as far as it has come, exactly weighted.

        Returns:
          True if there was anything, and it was applied.
        """
        if tf.distribute.in_cross_replica_context():
            return first(tf.distribute.get_strategy().run(self.flush))
        if self._sums is None:
            return tf.constant(False)
        applied = self._apply_if((self._step > 0) & ~self._overflowed)
        with tf.control_dependencies([applied]):
            self._step.assign(0)  # Of a window that overflowed, too.
        return applied

    @property
    def pending(self) -> bool:
        """Whether a window has begun; for use outside of functions."""
        return self._sums is not None and bool(self._step.numpy() > 0)

    @functools.cached_property
    def traced_flush(self) -> Callable[[], tf.Tensor]:
        """`flush` as a function that is traced once: for use at the end of every epoch."""
        return tf.function(self.flush)

    def drop(self) -> None:
        """Forgets the window as far as it has come."""
        if tf.distribute.in_cross_replica_context():
            tf.distribute.get_strategy().run(self.drop)
        elif self._sums is not None:
            self._sums.reset()
            self._step.assign(0)
            self._overflowed.assign(False)

    # --- The Keras face -------------------------------------------------------------

    def compute_gradients(
        self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None
    ) -> list[tuple[Gradient, tf.Variable]]:
        """As tf_keras optimizers do; of the scaled loss if there is a loss scale inside.

        Under a loss scale, inside or outside, the loss is one window's, of which a micro-batch
        has only a share: float16 is to overflow where that of the big batch would, and not
        `accumulation_steps` times earlier.
        """
        scaled = self._is_wrapped_by_loss_scale_optimizer or hasattr(self.inner, "loss_scale")
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
        """Accumulates one micro-step; the N-th call of a window also applies it.

        Args:
          grads_and_vars: gradients as `model.fit` computes them: of the mean loss; under
            a strategy, of this replica's share of it.
          name: not used.
          skip_gradients_aggregation: only a `LossScaleOptimizer` around this may set it.
          **kwargs: what else tf_keras optimizers take.

        Returns:
          `iterations`.

        Raises:
          ValueError: called in cross-replica context, or with reduced gradients.
        """
        pairs = list(grads_and_vars)
        reduced = skip_gradients_aggregation or not kwargs.get(
            "experimental_aggregate_gradients", True
        )
        if not reduced:
            pairs = self.aggregate_gradients(pairs)
        elif not self._is_wrapped_by_loss_scale_optimizer:
            raise ValueError(
                "AccumulatingOptimizer reduces over replicas by itself, once per update: give it"
                " each replica's own gradients, without skip_gradients_aggregation"
            )
        gradients, weight = self._weighed(self._in_order(pairs))
        if self._at_once:
            self._update_at_once(gradients, weight)
            return self.iterations
        with after(gradients):
            self._accumulators().add(gradients, weight)
        self._apply_if((self._step >= self._window_steps) & ~self._overflowed)
        return self.iterations

    def aggregate_gradients(self, grads_and_vars: GradsAndVars) -> list[Any]:
        """Begins a micro-step. The name is Keras'; nothing is reduced before `apply`.

        A `LossScaleOptimizer` around this one calls it, whether or not the gradients will
        turn out to be finite.
        """
        if tf.distribute.in_cross_replica_context():
            raise ValueError(
                "apply_gradients() belongs in replica context: call it in strategy.run"
            )
        pairs = list(grads_and_vars)
        self.build([v for _, v in pairs])
        with after([g for g, _ in pairs]):
            return self._begin_micro_step(pairs)

    def _begin_micro_step(self, pairs: list[Any]) -> list[Any]:
        due = tf.equal(self._step, 0) | (self._step >= self._window_steps)
        tf.cond(due, self._begin_window, tf.no_op)
        self._step.assign_add(1)
        if not self._is_wrapped_by_loss_scale_optimizer:
            return pairs
        overflowed = overflow_anywhere([g for g, _ in pairs if g is not None])
        before = tf.identity(self._overflowed)
        # To the optimizer around this, each overflow is an update; but a window is one.
        take_back_update(self.iterations, overflowed & before)
        self.skipped_windows.assign_add(tf.cast(overflowed & ~before, tf.int64))
        self._overflowed.assign(overflowed | before)
        return poisoned(pairs, overflowed)

    def _weighed(self, gradients: list[Gradient]) -> tuple[list[Gradient], tf.Tensor]:
        """Keras' gradients, of this replica's share of a mean, as what `accumulate` takes."""
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        size = micro_batch.size_for(self)
        if size is None:  # All micro-batches are taken to be of one size.
            return gradients, tf.constant(1 / replicas, tf.float64)
        size = tf.cast(size, tf.float64)
        return [times(g, size * replicas) for g in gradients], size

    def _begin_window(self) -> tf.Operation:
        self._window_steps.assign(self._steps())
        self._step.assign(0)
        if not self._at_once:
            # `apply` leaves zeros; a window that overflowed never came to it.
            tf.cond(self._overflowed, self._accumulators().reset, tf.no_op)
        self._overflowed.assign(False)
        return tf.no_op()

    # --- One update -----------------------------------------------------------------

    def _apply_if(self, condition: tf.Tensor) -> tf.Tensor:
        """`apply` where `condition`, the same on all replicas, holds."""

        def merged(strategy: tf.distribute.Strategy, condition: Any) -> tf.Tensor:
            def apply() -> tf.Tensor:
                return first(strategy.extended.call_for_each_replica(self.apply))

            return tf.cond(first(condition), apply, lambda: tf.constant(False))

        return tf.distribute.get_replica_context().merge_call(merged, args=(condition,))

    def _update(
        self,
        sums: list[tf.Tensor],
        weight: tf.Tensor,
        candidates: list[frozenset[int]],
        touched: tf.Tensor,
    ) -> tf.Tensor:
        """Reduces over replicas, once; divides; checks; hands the result to the inner one.

        What is updated is the first of the `candidates` that has all variables `touched`.
        """
        used = sorted(frozenset.union(*candidates))
        sums, weight = sum_over_replicas([sums[i] for i in used], weight)
        factor = tf.ones_like(weight) if self.reduction == "sum" else 1 / weight
        variables = [self._model_variables[i] for i in used]
        pairs, factor, norm = self._gradients(sums, variables, factor)
        self.gradient_norm.assign(tf.cast(norm, tf.float32))
        which = _first_covering(candidates, touched)
        allowed = self._allowed(tf.math.is_finite(norm))
        return self._apply_inner(pairs, factor, allowed, candidates, which)

    def _gradients(
        self, sums: list[tf.Tensor], variables: list[tf.Variable], factor: tf.Tensor
    ) -> tuple[list[Any], tf.Tensor, tf.Tensor]:
        """What the inner optimizer gets, what it multiplies that by, and its norm before clipping.

        Means of all variables at once would be one more copy of the model. They are not made
        if the inner optimizer can multiply by itself, one variable at a time.
        """
        transform: Any = self.gradient_transform
        if hasattr(self.inner, "scaling") and hasattr(transform, "factor"):
            norm = _global_norm(sums) * factor
            factor *= transform.factor(norm)
            return list(zip(sums, variables, strict=True)), factor, norm
        means = self._unscaled([s * tf.cast(factor, s.dtype) for s in sums])
        pairs = list(zip(means, variables, strict=True))
        norm = _global_norm(means)
        return (transform(pairs) if transform else pairs), tf.ones_like(factor), norm

    def _allowed(self, finite: tf.Tensor) -> tf.Tensor:
        if self.nonfinite == "propagate":
            return tf.ones_like(finite)
        self.skipped_windows.assign_add(tf.cast(~finite, tf.int64))
        if self.nonfinite == "raise":  # which XLA does not; it skips the window, too.
            message = "the window's gradient is not finite"
            with tf.control_dependencies([tf.debugging.assert_equal(finite, True, message)]):
                return tf.identity(finite)
        return finite

    def _apply_inner(
        self,
        pairs: list[Any],
        factor: tf.Tensor,
        allowed: tf.Tensor,
        candidates: list[frozenset[int]],
        which: tf.Tensor,
    ) -> tf.Tensor:
        gradients, variables = (list(part) for part in zip(*pairs, strict=True))

        def update(chosen: frozenset[int], gradients: Any, factor: tf.Tensor) -> None:
            pairs = list(zip(gradients, variables, strict=True))
            own = [(g, v) for g, v in pairs if self._position(v) in chosen]
            scaling = getattr(self.inner, "scaling", lambda _: nullcontext())
            with scaling(factor):
                self.inner.apply_gradients(own, skip_gradients_aggregation=True)

        def merged(
            strategy: tf.distribute.Strategy, gradients: Any, factor: Any, allowed: Any, which: Any
        ) -> tf.Tensor:
            def one(chosen: frozenset[int]) -> tf.Tensor:
                strategy.extended.call_for_each_replica(update, args=(chosen, gradients, factor))
                return tf.constant(True)

            def step() -> tf.Tensor:
                steps = [functools.partial(one, chosen) for chosen in candidates]
                return steps[0]() if len(steps) == 1 else tf.switch_case(first(which), steps)

            return self._branch(first(allowed), step)

        with tf.control_dependencies([allowed]):
            begun = self.half_updated.assign(True)
        with tf.control_dependencies([begun]):
            allowed = tf.identity(allowed)
        context = tf.distribute.get_replica_context()
        applied = context.merge_call(merged, args=(gradients, factor, allowed, which))
        with tf.control_dependencies([applied]):
            self.half_updated.assign(False)
        return applied

    def _branch(self, allowed: tf.Tensor, step: Callable[[], tf.Tensor]) -> tf.Tensor:
        return tf.cond(allowed, step, lambda: tf.constant(False))

    def _unscaled(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        return gradients

    # --- Saving ---------------------------------------------------------------------

    def _own_variables(self) -> list[tf.Variable]:
        if not self._model_variables:
            return []
        own = [self._step, self._window_steps, self._overflowed, self.skipped_windows]
        return own + (list(self._sums.variables) if self._sums is not None else [])

    def get_config(self) -> dict[str, Any]:
        """The arguments, from which `from_config` makes the same optimizer without its state."""
        return serialization.to_config(self)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The reverse of `get_config`."""
        return AccumulatingOptimizer(**serialization.to_arguments(config, custom_objects))


def _positions_of(gradients: list[Gradient]) -> list[int]:
    return [i for i, gradient in enumerate(gradients) if gradient is not None]


def _first_covering(candidates: list[frozenset[int]], touched: tf.Tensor) -> tf.Tensor:
    """The index of the first set of positions that has all `touched` ones."""
    masks = [[i in candidate for i in range(touched.shape[0])] for candidate in candidates]
    covering = tf.reduce_all(tf.constant(masks) | ~touched, axis=1)
    return tf.argmax(tf.cast(covering, tf.int32), output_type=tf.int32)


def _global_norm(gradients: list[tf.Tensor]) -> tf.Tensor:
    """As `tf.linalg.global_norm`, of tensors of different types, and of one after the other."""
    squares: list[tf.Tensor] = []
    for gradient in gradients:
        # Reading a variable to which rows have been added makes a copy of it.
        with tf.control_dependencies(squares[-1:]):
            squares.append(tf.cast(2 * tf.nn.l2_loss(gradient), tf.float64))
    return tf.sqrt(tf.add_n(squares))
