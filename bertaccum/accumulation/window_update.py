"""The steps of an update: reduce the sums over replicas, divide, transform, check and apply.

`AccumulatingOptimizer._update` calls these functions in this order. Only `hand_over` changes
variables, by calling the inner optimizer.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from bertaccum.accumulation.compiled import maybe_compiled
from bertaccum.accumulation.contracts import GradientTransform, MeanGradients, ScalesByFactor
from bertaccum.accumulation.gradient_tensors import compute_dtype, times
from bertaccum.accumulation.offload import host_memory
from bertaccum.accumulation.offload.host_memory import HostArray
from bertaccum.accumulation.replicas import first, replicas_in_sync, sum_over_replicas

# For each divisor, a pair of the summed gradients, one per variable of the model, and their
# weight, a float64 scalar. The first pair belongs to the total loss, the others to its parts.
Groups: TypeAlias = Sequence[tuple[Sequence[Any], tf.Tensor]]


def reduced(groups: Groups, used: Sequence[int], report: Any) -> tuple[Groups, Any, tf.Tensor]:
    """Sum the groups and the report over replicas, in a single reduction.

    Args:
      groups: The groups of this replica.
      used: Positions of the variables that may have gradients. The others are omitted.
      report: Numbers of this replica, [n], or None.

    Returns:
      The summed groups; the summed report, [n] float64, or None; and whether all replicas agree
      to the update, a bool scalar. It is False if the first number of the summed report is not 0.
    """
    numbers = tf.stack([weight for _, weight in groups])
    if report is not None:
        numbers = tf.concat([numbers, tf.cast(report, tf.float64)], axis=0)
    tensors = [sums[i] for sums, _ in groups for i in used]
    if isinstance(tensors[0], HostArray):
        numbers = sum_over_replicas([], numbers)[1]
        if replicas_in_sync() > 1:
            numbers = host_memory.sum_over_replicas(tensors, after=numbers)
    else:
        tensors, numbers = sum_over_replicas(tensors, numbers)
    starts = range(0, len(tensors), len(used))
    totals = [(tensors[s : s + len(used)], numbers[i]) for i, s in enumerate(starts)]
    if report is None:
        return totals, None, tf.constant(True)
    reports = numbers[len(groups) :]
    return totals, reports, tf.equal(reports[0], 0)


def quotient(groups: Groups, reduction: str) -> tuple[Sequence[Any], tf.Tensor]:
    """Return a tensor for each variable, and the factor that turns it into the reduced gradient.

    With a single group, the tensors are its sums, and the factor, a float64 scalar, divides them
    by the weight. The means themselves are not computed: they take as much memory as the model.
    With several groups, the tensors are already divided, and the factor is 1. If the reduction is
    `sum`, nothing is divided.
    """
    weights = [tf.ones_like(w) if reduction == "sum" else w for _, w in groups]
    if len(groups) == 1:
        return groups[0][0], 1 / weights[0]
    shares = [tf.math.reciprocal_no_nan(w) for w in weights]  # A group of weight 0 adds nothing.
    totals = [
        tf.add_n([times(tf.convert_to_tensor(s), f) for s, f in zip(own, shares, strict=True)])
        for own in zip(*(sums for sums, _ in groups), strict=True)
    ]
    return totals, tf.ones_like(weights[0])


def transformed(
    pairs: MeanGradients,
    factor: Any,
    transform: GradientTransform | None,
    takes_scaled_sum: bool,
    compile: bool = False,
) -> tuple[MeanGradients, tf.Tensor, tf.Tensor]:
    """Return the gradients for the inner optimizer: the mean, with `transform` applied.

    Args:
      pairs: (summed gradient, variable) pairs.
      factor: Factor that turns a sum into the mean, a float64 scalar.
      transform: Transform of the mean gradients, or None.
      takes_scaled_sum: Whether the inner optimizer multiplies by a factor itself; see
        `contracts.py`.
      compile: Whether XLA compiles the norm, if no means are computed.

    Returns:
      (gradient, variable) pairs; the factor by which the inner optimizer must multiply the
      gradients, a float64 scalar; and the global norm of the mean before the transform, a float64
      scalar.
    """
    if takes_scaled_sum and isinstance(transform, ScalesByFactor):
        with tf.control_dependencies([factor]):  # It is available once arrays may be read.
            totals = [total for total, _ in pairs]
            norm = maybe_compiled(lambda: _global_norm(totals, compile), compile) * factor
        return pairs, factor * transform.factor(norm), norm
    means = [(_widened(total) * tf.cast(factor, compute_dtype(total)), v) for total, v in pairs]
    norm = _global_norm([mean for mean, _ in means])
    return (transform(means) if transform else means), tf.ones_like(factor), norm


def allowed(finite: tf.Tensor, nonfinite: str) -> tf.Tensor:
    """Return whether the window may be applied, a bool scalar.

    Args:
      finite: Whether the window's gradient is finite, a bool scalar.
      nonfinite: Treatment of a gradient that is not finite: `skip`, `raise` or `propagate`.
    """
    if nonfinite == "propagate":
        return tf.ones_like(finite)
    if nonfinite == "raise":  # XLA ignores the assertion, so a compiled update is skipped.
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

    The branches are inside a `merge_call`, because TensorFlow forbids calling `merge_call` inside
    a branch on a replica.

    Args:
      pairs: (gradient, variable) pairs for the inner optimizer.
      factor: Factor by which the inner optimizer multiplies the gradients, a float64 scalar.
      if_so: Whether the replicas agree to the update and whether it is allowed, two bool scalars.
      candidates: Sets of variables, given as positions. The variables in the first set that
        contains all touched variables are updated.
      touched: Whether each of the model's variables had a gradient, [variables] bool.
      update: A function that calls the inner optimizer on a replica, for one set.
      update_if: A function that calls its second argument if its first argument is true, and
        returns whether the update was applied.

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


def _global_norm(gradients: list[Any], compile: bool = False) -> tf.Tensor:
    """Return the global norm of tensors with any dtypes, a float64 scalar."""
    if isinstance(gradients[0], HostArray):
        return tf.sqrt(host_memory.square_sum(gradients))
    halves: dict[tf.DType, list[tf.Tensor]] = defaultdict(list)
    half = _half_square_of_rows if compile else tf.nn.l2_loss
    done: list[tf.Tensor] = []
    for gradient in gradients:
        # Reading a variable that received IndexedSlices copies it, so read one at a time.
        with tf.control_dependencies(done):
            done = [half(_widened(gradient))]
        halves[done[0].dtype] += done
    sums = [tf.reduce_sum(tf.cast(tf.stack(own), tf.float64)) for own in halves.values()]
    return tf.sqrt(2 * tf.add_n(sums))


def _half_square_of_rows(tensor: tf.Tensor) -> tf.Tensor:
    """Return half the sum of squares, for which XLA keeps a number for each row of the tensor.

    For a sum over all axes, XLA on CPUs keeps the square of each element.
    """
    rows = tf.reshape(tensor, [-1, *tensor.shape[-1:]])
    return 0.5 * tf.reduce_sum(tf.einsum("ij,ij->i", rows, rows))


def _widened(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, compute_dtype(tensor))
