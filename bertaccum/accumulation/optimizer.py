"""The accumulating optimizer: many micro-steps, one exact update.

What is added up are gradients and what they weigh; their quotient is the mean over the
whole window, whatever the sizes of the micro-batches: a mean of means would not be.

It has two faces on one state. The explicit one, `accumulate` and `apply`, communicates
once per update and knows each micro-batch's weight. The Keras one, `apply_gradients` in
`keras_face.py`, accumulates, and applies on every N-th call. What happens once per window
is in `one_update.py`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.accumulation import serialization
from bertaccum.accumulation.checks import (
    NONFINITE,
    REDUCTIONS,
    check_choice,
    check_in_replica,
    check_inner,
    check_scope,
    check_steps_or_schedule,
    plain_number,
)
from bertaccum.accumulation.keras_face import GradsAndVars, KerasFace
from bertaccum.accumulation.legacy import LossScale, adapted
from bertaccum.accumulation.replicas import alike, replicas_in_sync, run_on_all
from bertaccum.accumulation.sums import Gradient, GradientSums, after
from bertaccum.accumulation.transforms import GradientTransform


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class AccumulatingOptimizer(KerasFace):
    """Wraps a tf_keras optimizer so that it acts once per window of micro-steps.

    The wrapped optimizer sees one gradient per update: its clipping, weight decay,
    schedule, moving averages and `iterations` know nothing of micro-steps.

    Args:
      optimizer: the inner optimizer: one of tf_keras, new or legacy (such as AdamWeightDecay
        of tf-models-official), its name or its config.
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
        if (
            isinstance(serialization.resolved(optimizer), LossScale)
            and cls is AccumulatingOptimizer
        ):
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
        self.inner = adapted(serialization.resolved(optimizer))
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
        # Of losses with divisors of their own: see `loss_parts`.
        self._parts: list[GradientSums] = []

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

    def _accumulators(self) -> GradientSums:
        if self._sums is None:
            self._sums = self._new_sums()
        return self._sums

    def _part_sums(self, number: int) -> GradientSums:
        while len(self._parts) <= number:
            self.__dict__.pop("traced_flush", None)  # It was traced without knowing of them.
            self._parts.append(self._new_sums(f"part_{len(self._parts)}_"))
        return self._parts[number]

    def _new_sums(self, prefix: str = "") -> GradientSums:
        running_mean = self.reduction == "running_mean"
        with tf.init_scope():
            return GradientSums(self._model_variables, self.accumulator_dtype, running_mean, prefix)

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
        """Return one gradient or None for each of the model's variables.

        Raises:
          ValueError: called outside a replica, or with a variable that was not built.
        """
        pairs = list(grads_and_vars)
        self.build([v for _, v in pairs])
        check_in_replica(self._strategy_outside())
        gradients = self._ordered(pairs)
        together = frozenset(_positions_of(gradients))
        if together not in self._together:
            self._together.add(together)
            self.__dict__.pop("traced_flush", None)  # It was traced without knowing of them.
        return gradients

    def _ordered(self, grads_and_vars: GradsAndVars) -> list[Gradient]:
        gradients: list[Gradient] = [None] * len(self._model_variables)
        for gradient, variable in grads_and_vars:
            if gradient is not None:
                gradients[self._position(variable)] = gradient
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

    def apply(self, report: tf.Tensor | None = None) -> Any:
        """Updates the variables from what all replicas accumulated; starts a new window.

        Variables without a gradient in the window are left alone, decay and moments, too.
        In a `tf.function`, where that is decided beforehand, this holds for the sets of
        variables that have had gradients together when it is traced, and for what two of them
        have between them: trace the micro-steps first. In other windows a variable without
        gradient is taken to have one of zero.

        Args:
          report: [n] numbers of this replica's, to be added up over replicas on the way. If the
            first sum is not 0, somebody objects: the window is forgotten by all, and nothing
            else changes.

        Returns:
          True if the update was applied, False if its gradient was not finite and the
          window was skipped; with a report, that and [n] float64, the sum of all replicas'.

        Raises:
          ValueError: nothing was accumulated.
        """
        strategy = self._strategy_outside()
        if strategy is not None:
            return run_on_all(strategy, self.apply, report)
        if self._sums is None or (tf.executing_eagerly() and not self._step > 0):
            raise ValueError("apply() without accumulate(): there is no gradient to apply")
        alone = self.reduction != "sum" and replicas_in_sync() == 1
        sums, weight = self._sums.read(alone)
        parts = [part.read(alone=False) for part in self._parts]
        touched = tf.identity(self._sums.touched)
        applied, total = self._update(sums, weight, self._candidates(), touched, report, parts)
        with tf.control_dependencies([applied]):
            self._reset_sums()
            self._step.assign(0)
        return applied if report is None else (applied, total)

    def _reset_sums(self) -> tf.Operation:
        for sums in [self._sums, *self._parts]:
            if sums is not None:
                sums.reset()
        return tf.no_op()

    def avoid_copies(self) -> None:
        """Before `apply`, in functions that XLA does not compile: saves it time.

        To read a variable to which rows were added, as to those of embeddings, is to copy it,
        unless TensorFlow is told; with BERT-Small's words that took 3 % of an update.
        """
        if self._sums is not None:
            self._sums.avoid_copies()

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

    def _update_at_once(
        self,
        gradients: list[Gradient],
        weight: tf.Tensor,
        parts: Sequence[tuple[list[Gradient], tf.Tensor]] = (),
    ) -> tf.Tensor:
        dense = self._dense(gradients)
        touched = tf.constant([g is not None for g in gradients])
        own = frozenset(_positions_of(gradients))
        dense_parts = [(self._dense(part), its_weight) for part, its_weight in parts]
        return self._update(dense, weight, [own], touched, parts=dense_parts)[0]

    def _dense(self, gradients: list[Gradient]) -> list[tf.Tensor]:
        # The sum is the gradient: clipping must not see an embedding's rows one by one.
        return [
            tf.zeros(v.shape, v.dtype) if g is None else tf.convert_to_tensor(g)
            for g, v in zip(gradients, self._model_variables, strict=True)
        ]

    def flush(self) -> tf.Tensor:
        """Applies the window as far as it has come, exactly weighted.

        Returns:
          True if there was anything, and it was applied.
        """
        strategy = self._strategy_outside()
        if strategy is not None:
            return run_on_all(strategy, self.flush)
        if self._sums is None:
            return tf.constant(False)
        applied = self._apply_if((self._step > 0) & ~self._overflowed)
        with tf.control_dependencies([applied]):
            self._step.assign(0)  # Of a window that overflowed, too.
        return applied

    @property
    def accumulators(self) -> list[tf.Variable]:
        """What sums are kept in, one a variable; none before they are needed."""
        return [] if self._sums is None else self._sums.totals

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
        strategy = self._strategy_outside()
        if strategy is not None:
            run_on_all(strategy, self.drop)
        elif self._sums is not None:
            self._reset_sums()
            self._step.assign(0)
            self._overflowed.assign(False)

    # --- Saving ---------------------------------------------------------------------

    def _own_variables(self) -> list[tf.Variable]:
        if not self._model_variables:
            return []
        own = [self._step, self._window_steps, self._overflowed, self.skipped_windows]
        sums = [self._sums, *self._parts] if self._sums is not None else []
        own += [variable for part in sums for variable in part.variables]
        # tf_keras does not count Nadam's product of momenta among its variables.
        product = getattr(self._innermost, "_u_product", None)
        return own if product is None else [*own, product]

    def load_own_variables(self, store: Any) -> None:
        """The reverse of `save_own_variables`."""
        self._make_parts(len(store.keys()) - len(self._own_variables()))
        super().load_own_variables(store)

    def set_weights(self, weights: Any) -> None:
        """Set all variables, as the .h5 format does."""
        self._make_parts(len(weights) - len(self.variables))
        super().set_weights(weights)

    def _make_parts(self, missing: int) -> None:
        # The first step makes them, but a model that was just loaded has seen none.
        for _ in range(missing // len(self._sums.variables) if self._sums is not None else 0):
            self._part_sums(len(self._parts))

    def get_config(self) -> dict[str, Any]:
        """The arguments, from which `from_config` makes the same optimizer without its state."""
        return serialization.to_config(self)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The reverse of `get_config`."""
        return AccumulatingOptimizer(**serialization.to_arguments(config, custom_objects))


def _positions_of(gradients: list[Gradient]) -> list[int]:
    return [i for i, gradient in enumerate(gradients) if gradient is not None]
