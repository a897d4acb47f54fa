"""The face that Keras knows: gradients in, micro-step by micro-step, as `fit` gives them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from bertaccum.accumulation import loss_parts, micro_batch
from bertaccum.accumulation.checks import check_in_replica
from bertaccum.accumulation.overflow import overflow_anywhere, poisoned, take_back_update
from bertaccum.accumulation.replicas import (
    first,
    replicas_in_sync,
    strategy_outside_replicas,
)
from bertaccum.accumulation.sums import Gradient, GradientSums, after, times
from bertaccum.accumulation.window_update import OneUpdate

GradsAndVars = Iterable[tuple[Gradient, tf.Variable]]


class KerasFace(OneUpdate):
    """The part of an accumulating optimizer that `fit` calls, and tapes of one's own."""

    accumulation_steps: int | tf.Variable | Callable[[tf.Tensor], Any]
    apply: Callable[[], tf.Tensor]
    scale_loss: Callable[[tf.Tensor], tf.Tensor]
    _step: tf.Variable
    _window_steps: tf.Variable
    _overflowed: tf.Variable
    _accumulators: Callable[[], GradientSums]
    _in_order: Callable[[GradsAndVars], list[Gradient]]
    _ordered: Callable[[GradsAndVars], list[Gradient]]
    _part_sums: Callable[[int], GradientSums]
    _update_at_once: Callable[[list[Gradient], tf.Tensor, Sequence[Any]], tf.Tensor]

    @property
    def _at_once(self) -> bool:
        """Whether every micro-step is a window, so that there is nothing to accumulate."""
        steps = self.accumulation_steps
        wrapped = self._is_wrapped_by_loss_scale_optimizer
        return isinstance(steps, int) and steps == 1 and not wrapped

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
            pairs = self._with_parts(pairs, loss, parts)
        return [(times(g, parts), v) for g, v in pairs] if scaled else pairs

    def _with_parts(self, pairs: list[Any], loss: tf.Tensor, factor: Any) -> list[Any]:
        """Differentiate losses with other divisors, too; see `loss_parts`."""
        present = micro_batch.present()
        if present is None or not present.parts:
            return pairs
        variables = [v for _, v in pairs]
        found = loss_parts.differentiate([*present.parts.values()], loss, variables, factor)
        present.part_gradients[id(self)] = [
            list(zip(gradients, variables, strict=True)) for gradients in found
        ]
        return loss_parts.with_zeros(pairs, found)

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
          ValueError: called outside a replica, or with reduced gradients.
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
        parts = self._weighed_parts()
        if self._at_once:
            self._update_at_once(gradients, weight, parts)
            return self.iterations
        with after(gradients):
            self._accumulators().add(gradients, weight)
            for number, part in enumerate(parts):
                self._part_sums(number).add(*part)
        self._apply_if((self._step >= self._window_steps) & ~self._overflowed)
        return self.iterations

    def aggregate_gradients(self, grads_and_vars: GradsAndVars) -> list[Any]:
        """Begins a micro-step. The name is Keras'; nothing is reduced before `apply`.

        A `LossScaleOptimizer` around this one calls it, whether or not the gradients will
        turn out to be finite.
        """
        pairs = list(grads_and_vars)
        self.build([v for _, v in pairs])
        check_in_replica(self._strategy_outside())
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
        replicas = replicas_in_sync()
        present = micro_batch.present_for(self)
        if present is None:  # All micro-batches are taken to be of one size.
            return gradients, tf.constant(1 / replicas, tf.float64)
        size = tf.cast(present.size, tf.float64)
        return [times(g, size * replicas) for g in gradients], size

    def _weighed_parts(self) -> list[tuple[list[Gradient], tf.Tensor]]:
        """As `_weighed`, the gradients of each loss that has a divisor of its own."""
        present = micro_batch.present()
        if present is None or not present.parts:
            return []
        if id(self) not in present.part_gradients:
            raise ValueError(
                "the outputs of this model have different masks, so their losses are accumulated"
                " separately; a train_step of one's own has to call"
                " optimizer.minimize(loss, variables, tape=tape)"
            )
        found = []
        own = zip(present.part_gradients[id(self)], present.parts.values(), strict=True)
        for pairs, part in own:
            size = tf.cast(part.size, tf.float64)
            ordered = self._ordered(pairs)
            found.append(([times(g, size * replicas_in_sync()) for g in ordered], size))
        return found

    def _begin_window(self) -> tf.Operation:
        self._window_steps.assign(self._steps())
        self._step.assign(0)
        if not self._at_once:
            # `apply` leaves zeros; a window that overflowed never came to it.
            tf.cond(self._overflowed, self._accumulators().reset, tf.no_op)
        self._overflowed.assign(False)
        return tf.no_op()

    def _strategy_outside(self) -> tf.distribute.Strategy | None:
        """Return the strategy to run with, or None inside a replica."""
        return strategy_outside_replicas(getattr(self, "_step", None))

    def _apply_if(self, condition: tf.Tensor) -> tf.Tensor:
        """`apply` where `condition`, the same on all replicas, holds."""

        def merged(strategy: tf.distribute.Strategy, condition: Any) -> tf.Tensor:
            def apply() -> tf.Tensor:
                return first(strategy.extended.call_for_each_replica(self.apply))

            return tf.cond(first(condition), apply, lambda: tf.constant(False))

        return tf.distribute.get_replica_context().merge_call(merged, args=(condition,))
