"""The update of one window, as functions: reduce, divide, transform, check, hand over.

`AccumulatingOptimizer._update` calls them in this order. Only `hand_over` changes anything, by
calling the inner optimizer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from bertaccum.accumulation.contracts import GradientTransform, MeanGradients, ScalesByFactor
from bertaccum.accumulation.gradient_tensors import compute_dtype, times
from bertaccum.accumulation.replicas import first, sum_over_replicas

# For each divisor, sums of gradients, one for each of the model's variables, and what they weigh,
# a float64 scalar. The first belongs to the loss, others to parts of it.
Groups: TypeAlias = Sequence[tuple[Sequence[Any], tf.Tensor]]


def reduced(groups: Groups, used: Sequence[int], report: Any) -> tuple[Groups, Any, tf.Tensor]:
    """Add up over replicas, in a single reduction.

    Args:
      groups: what this replica has added up.
      used: positions of the variables that may have gradients; the others are left out.
      report: [n] numbers of this replica's, to be added up on the way, or None.

    Returns:
      The groups' sums; the reports' sum, [n] float64, or None; and whether the replicas agree to
      the update, a bool scalar: the first of a report's numbers is an objection unless it is 0.
    """
    numbers = tf.stack([weight for _, weight in groups])
    if report is not None:
        numbers = tf.concat([numbers, tf.cast(report, tf.float64)], axis=0)
    mine = [sums[i] for sums, _ in groups for i in used]
    tensors, numbers = sum_over_replicas(mine, numbers)
    starts = range(0, len(tensors), len(used))
    totals = [(tensors[s : s + len(used)], numbers[i]) for i, s in enumerate(starts)]
    if report is None:
        return totals, None, tf.constant(True)
    reports = numbers[len(groups) :]
    return totals, reports, tf.equal(reports[0], 0)


def quotient(groups: Groups, reduction: str) -> tuple[Sequence[Any], tf.Tensor]:
    """Divide sums of gradients by what they weigh, unless the reduction is `sum`.

    Returns:
      One sum for each variable, and the float64 scalar to multiply them by: means of all
      variables at once would be one more copy of the model.
    """
    weights = [tf.ones_like(w) if reduction == "sum" else w for _, w in groups]
    if len(groups) == 1:
        return groups[0][0], 1 / weights[0]
    shares = [tf.math.reciprocal_no_nan(w) for w in weights]  # No weight adds nothing.
    totals = [
        tf.add_n([times(tf.convert_to_tensor(s), f) for s, f in zip(own, shares, strict=True)])
        for own in zip(*(sums for sums, _ in groups), strict=True)
    ]
    return totals, tf.ones_like(weights[0])


def transformed(
    pairs: MeanGradients, factor: Any, transform: GradientTransform | None, takes_scaled_sum: bool
) -> tuple[MeanGradients, tf.Tensor, tf.Tensor]:
    """Return what the inner optimizer gets.

    Args:
      pairs: (sum of gradients, variable).
      factor: float64 scalar that makes the mean of a sum.
      transform: what is done to the mean.
      takes_scaled_sum: the inner optimizer multiplies by a factor itself, see `contracts.py`.

    Returns:
      (gradient, variable) pairs; the factor that is left for the inner optimizer, a float64
      scalar; and the norm of the mean before it is transformed, a float64 scalar.
    """
    if takes_scaled_sum and isinstance(transform, ScalesByFactor):
        norm = _global_norm([total for total, _ in pairs]) * factor
        return pairs, factor * transform.factor(norm), norm
    means = [(_widened(total) * tf.cast(factor, compute_dtype(total)), v) for total, v in pairs]
    norm = _global_norm([mean for mean, _ in means])
    return (transform(means) if transform else means), tf.ones_like(factor), norm


def allowed(finite: tf.Tensor, nonfinite: str) -> tf.Tensor:
    """Return whether a window is applied, a bool scalar.

    Args:
      finite: whether its gradient is finite.
      nonfinite: what to do if not: `skip`, `raise` or `propagate`.
    """
    if nonfinite == "propagate":
        return tf.ones_like(finite)
    if nonfinite == "raise":  # XLA does not raise; it skips the window as well.
        message = "the window's gradient is not finite"
        with tf.control_dependencies([tf.debugging.assert_equal(finite, True, message)]):
            return tf.identity(finite)
    return finite


def hand_over(
    pairs: MeanGradients,
    factor: tf.Tensor,
    if_so: tuple[tf.Tensor, tf.Tensor],
    candidates: Sequence[frozenset[int]],
    touched: tf.Tensor,
    update: Callable[[frozenset[int], MeanGradients, tf.Tensor], None],
    update_if: Callable[[tf.Tensor, Callable[[], tf.Tensor]], tf.Tensor],
) -> tf.Tensor:
    """Update the variables on all replicas.

    Replicas are merged first and branches are taken after: a merge inside a branch that one
    replica takes is an error in TensorFlow.

    Args:
      pairs: (gradient, variable) for the inner optimizer.
      factor: what it is to multiply gradients by.
      if_so: whether the replicas agreed, and whether the update is allowed, bool scalars.
      candidates: sets of positions. The first that has all touched variables is updated.
      touched: [variables] bool, which of the model's had a gradient.
      update: calls the inner optimizer on a replica, for one set.
      update_if: calls a function if its first argument allows it, and returns whether it did.

    Returns:
      Whether the update was applied, a bool scalar.
    """
    gradients, variables = (list(part) for part in zip(*pairs, strict=True))

    def of_replica(chosen: frozenset[int], gradients: Any, factor: tf.Tensor) -> None:
        update(chosen, list(zip(gradients, variables, strict=True)), factor)

    def merged(
        strategy: tf.distribute.Strategy, gradients: Any, factor: Any, if_so: Any, which: Any
    ) -> tf.Tensor:
        def one(chosen: frozenset[int]) -> tf.Tensor:
            strategy.extended.call_for_each_replica(of_replica, args=(chosen, gradients, factor))
            return tf.constant(True)

        def step() -> tf.Tensor:
            steps = [functools.partial(one, chosen) for chosen in candidates]
            return steps[0]() if len(steps) == 1 else tf.switch_case(first(which), steps)

        agreed, allowed = (first(value) for value in if_so)
        return tf.cond(agreed, lambda: update_if(allowed, step), lambda: tf.constant(False))

    masks = [[i in candidate for i in range(touched.shape[0])] for candidate in candidates]
    covering = tf.reduce_all(tf.constant(masks) | ~touched, axis=1)
    which = tf.argmax(tf.cast(covering, tf.int32), output_type=tf.int32)
    context = tf.distribute.get_replica_context()
    return context.merge_call(merged, args=(gradients, factor, if_so, which))


def _global_norm(gradients: list[Any]) -> tf.Tensor:
    """Return the joint norm, float64, of tensors of different types, read one at a time."""
    squares: list[tf.Tensor] = []
    for gradient in gradients:
        # Reading a variable to which rows have been added makes a copy of it.
        with tf.control_dependencies(squares[-1:]):
            squares.append(tf.cast(2 * tf.nn.l2_loss(_widened(gradient)), tf.float64))
    return tf.sqrt(tf.add_n(squares))


def _widened(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, compute_dtype(tensor))
