"""One update from what a window has added up: reduce, divide, check, hand over.

Under a distribution strategy replicas are merged first and the branch is taken after:
merging inside a branch that one replica takes is an error in TensorFlow.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from bertaccum.accumulation import loss_parts
from bertaccum.accumulation.replicas import first, sum_over_replicas
from bertaccum.accumulation.sums import compute_dtype
from bertaccum.accumulation.transforms import GradientTransform
from bertaccum.accumulation.wrapper import OptimizerWrapper


class OneUpdate(OptimizerWrapper):
    """The part of an accumulating optimizer that acts once per window."""

    reduction: str
    nonfinite: str
    gradient_transform: GradientTransform | None
    gradient_norm: tf.Variable
    half_updated: tf.Variable
    skipped_windows: tf.Variable
    _model_variables: list[tf.Variable]
    _position: Callable[[tf.Variable], int]

    def _update(
        self,
        sums: list[tf.Tensor],
        weight: tf.Tensor,
        candidates: list[frozenset[int]],
        touched: tf.Tensor,
        report: tf.Tensor | None = None,
        parts: Sequence[tuple[list[tf.Tensor], tf.Tensor]] = (),
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Reduces over replicas, once; divides; checks; hands the result to the inner one.

        What is updated is the first of the `candidates` that has all variables `touched`.
        The sums of each of the `parts` are divided by a weight of their own.

        Returns:
          Whether it was applied; and the reports' sum.
        """
        used = sorted(frozenset.union(*candidates))
        groups = [[group[i] for i in used] for group in (sums, *(part for part, _ in parts))]
        numbers = tf.stack([weight, *(its_weight for _, its_weight in parts)])
        if report is not None:
            numbers = tf.concat([numbers, tf.cast(report, tf.float64)], axis=0)
        reduced, numbers = sum_over_replicas(list(itertools.chain(*groups)), numbers)
        weights, reports = numbers[: len(groups)], numbers[len(groups) :]
        agreed = tf.equal(reports[0], 0) if report is not None else tf.constant(True)
        groups = [reduced[i : i + len(used)] for i in range(0, len(reduced), len(used))]
        sums, factor = self._quotient(groups, weights)
        variables = [self._model_variables[i] for i in used]
        pairs, factor, norm = self._gradients(sums, variables, factor)
        self.gradient_norm.assign(tf.cast(norm, tf.float32))
        which = _first_covering(candidates, touched)
        allowed = self._allowed(tf.math.is_finite(norm) | ~agreed)
        applied = self._apply_inner(pairs, factor, (agreed, allowed), candidates, which)
        return applied, reports

    def _quotient(
        self, groups: list[list[tf.Tensor]], weights: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The sums, and what they are to be multiplied by."""
        if self.reduction == "sum":
            weights = tf.ones_like(weights)
        if len(groups) > 1:
            return loss_parts.mean_of(groups, weights), tf.ones_like(weights[0])
        return groups[0], 1 / weights[0]

    def _gradients(
        self, sums: list[tf.Tensor], variables: list[tf.Variable], factor: tf.Tensor
    ) -> tuple[list[Any], tf.Tensor, tf.Tensor]:
        """What the inner optimizer gets, what it multiplies that by, and its norm before clipping.

        Means of all variables at once would be one more copy of the model. They are not made
        if the inner optimizer can multiply by itself, one variable at a time.
        """
        transform: Any = self.gradient_transform
        factor *= tf.cast(self._unscaling, factor.dtype)
        if hasattr(self._innermost, "scaling") and hasattr(transform, "factor"):
            norm = _global_norm(sums) * factor
            factor *= transform.factor(norm)
            return list(zip(sums, variables, strict=True)), factor, norm
        means = [_widened(s) * tf.cast(factor, compute_dtype(s)) for s in sums]
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
        if_so: tuple[tf.Tensor, tf.Tensor],
        candidates: list[frozenset[int]],
        which: tf.Tensor,
    ) -> tf.Tensor:
        """Updates if all replicas agreed and if it is allowed to, `if_so`."""
        gradients, variables = (list(part) for part in zip(*pairs, strict=True))

        def update(chosen: frozenset[int], gradients: Any, factor: tf.Tensor) -> None:
            pairs = list(zip(gradients, variables, strict=True))
            own = [(g, v) for g, v in pairs if self._position(v) in chosen]
            scaling = getattr(self._innermost, "scaling", lambda _: nullcontext())
            with scaling(factor):
                self.inner.apply_gradients(own, skip_gradients_aggregation=True)

        def merged(
            strategy: tf.distribute.Strategy, gradients: Any, factor: Any, if_so: Any, which: Any
        ) -> tf.Tensor:
            def one(chosen: frozenset[int]) -> tf.Tensor:
                strategy.extended.call_for_each_replica(update, args=(chosen, gradients, factor))
                return tf.constant(True)

            def step() -> tf.Tensor:
                steps = [functools.partial(one, chosen) for chosen in candidates]
                return steps[0]() if len(steps) == 1 else tf.switch_case(first(which), steps)

            agreed, allowed = (first(value) for value in if_so)
            return tf.cond(agreed, lambda: self._branch(allowed, step), lambda: tf.constant(False))

        with tf.control_dependencies(if_so):
            begun = self.half_updated.assign(True)
        with tf.control_dependencies([begun]):
            if_so = (tf.identity(if_so[0]), tf.identity(if_so[1]))
        context = tf.distribute.get_replica_context()
        applied = context.merge_call(merged, args=(gradients, factor, if_so, which))
        with tf.control_dependencies([applied]):
            self.half_updated.assign(False)
        return applied

    def _branch(self, allowed: tf.Tensor, step: Callable[[], tf.Tensor]) -> tf.Tensor:
        return tf.cond(allowed, step, lambda: tf.constant(False))

    @property
    def _unscaling(self) -> Any:
        """What gradients of the scaled loss are multiplied by."""
        return 1.0


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
            squares.append(tf.cast(2 * tf.nn.l2_loss(_widened(gradient)), tf.float64))
    return tf.sqrt(tf.add_n(squares))


def _widened(tensor: tf.Tensor) -> tf.Tensor:
    """In at least float32."""
    return tf.cast(tensor, compute_dtype(tensor))
