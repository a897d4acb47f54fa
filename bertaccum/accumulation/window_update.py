"""The steps of a window's update: reduce the sums over replicas, transform, check and hand over."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from bertaccum.accumulation import loss_scaling
from bertaccum.accumulation.adamw import InPlaceAdamW
from bertaccum.accumulation.checks import skip_aggregation
from bertaccum.accumulation.compiled import maybe_compiled
from bertaccum.accumulation.gradient_tensors import ModelVariables, compute_dtype, stored_dtype
from bertaccum.accumulation.offload import host_memory
from bertaccum.accumulation.offload.host_memory import HostArray
from bertaccum.accumulation.replicas import first, replicas_in_sync, sum_over_replicas
from bertaccum.accumulation.transforms import ClipByGlobalNorm, GradientTransform, MeanGradients


def reduced(
    totals: Sequence[Any], weight: tf.Tensor, report: Any
) -> tuple[Sequence[Any], tf.Tensor, tf.Tensor | None]:
    """Sum gradients, their weight and a report over replicas, in a single reduction.

    Args:
      totals: Summed gradients of this replica.
      weight: Their weight, a float64 scalar.
      report: Numbers of this replica, [n], or None.

    Returns:
      The sums; that of the report is [n] float64.
    """
    numbers = tf.stack([weight])
    if report is not None:
        numbers = tf.concat([numbers, tf.cast(report, tf.float64)], axis=0)
    if isinstance(totals[0], HostArray):
        numbers = sum_over_replicas([], numbers)[1]
        if replicas_in_sync() > 1:
            numbers = host_memory.sum_over_replicas(totals, after=numbers)
    else:
        totals, numbers = sum_over_replicas(list(totals), numbers)
    return totals, numbers[0], None if report is None else numbers[1:]


def transformed(
    pairs: MeanGradients,
    factor: Any,
    transform: GradientTransform | None,
    takes_sums: bool,
    compile: bool,
) -> tuple[MeanGradients, tf.Tensor, tf.Tensor]:
    """Return the gradients for the inner optimizer: the mean, with `transform` applied.

    Args:
      pairs: (summed gradient, variable) pairs.
      factor: Factor that turns a sum into the mean, a float64 scalar.
      takes_sums: Whether the inner optimizer multiplies by a factor itself, as `InPlaceAdamW`
        does.
      compile: Whether XLA compiles the norm, if no means are computed.

    Returns:
      (gradient, variable) pairs; the factor by which the inner optimizer must multiply the
      gradients, a float64 scalar; and the global norm of the mean before the transform, a float64
      scalar.
    """
    if takes_sums and isinstance(transform, ClipByGlobalNorm):
        with tf.control_dependencies([factor]):  # It is available once arrays may be read.
            totals = [total for total, _ in pairs]
            norm = maybe_compiled(lambda: _global_norm(totals, compile), compile) * factor
        return pairs, factor * transform.factor(norm), norm
    means = [(_widened(total) * tf.cast(factor, compute_dtype(total)), v) for total, v in pairs]
    norm = _global_norm([mean for mean, _ in means])
    pairs = transform(means) if transform else means
    # Optimizers of tf_keras fail if a gradient has another dtype than its variable.
    pairs = [(g if g is None else tf.cast(g, stored_dtype(v)), v) for g, v in pairs]
    return pairs, tf.ones_like(factor), norm


def allowed(finite: tf.Tensor, nonfinite: str) -> tf.Tensor:
    """Return whether a window may be applied, given whether its gradient is finite."""
    if nonfinite == "propagate":
        return tf.ones_like(finite)
    if nonfinite == "raise":  # XLA ignores the assertion, so a compiled update is skipped.
        message = "the window's gradient is not finite"
        with tf.control_dependencies([tf.debugging.assert_equal(finite, True, message)]):
            return tf.identity(finite)
    return finite


def hand_over(
    inner: Any,
    pairs: MeanGradients,
    factor: tf.Tensor,
    if_so: tuple[tf.Tensor, tf.Tensor],
    trained: ModelVariables,
    touched: tf.Tensor,
    candidates: Sequence[frozenset[int]],
) -> tf.Tensor:
    """Update the variables on all replicas.

    The branches are inside a `merge_call`, because TensorFlow forbids calling `merge_call` inside
    a branch on a replica.

    Args:
      inner: The optimizer, or a `LossScaleOptimizer` around it.
      pairs: (gradient, variable) pairs for it.
      factor: Factor by which an `InPlaceAdamW` multiplies the gradients, a float64 scalar.
      if_so: Whether the replicas agree to the update and whether it is allowed, two bool scalars.
      trained: All trainable variables.
      touched: Whether each of them had a gradient in this window, [variables] bool.
      candidates: Sets of positions. The variables in the first set that contains all touched
        variables are updated.

    Returns:
      Whether the update was applied, a bool scalar.
    """
    gradients, variables = (list(part) for part in zip(*pairs, strict=True))
    innermost = loss_scaling.innermost(inner)

    def of_replica(chosen: frozenset[int], gradients: Any, factor: tf.Tensor) -> None:
        all_pairs = zip(gradients, variables, strict=True)
        own = [(g, v) for g, v in all_pairs if trained.position(v) in chosen]
        scaling = innermost.scaling if isinstance(innermost, InPlaceAdamW) else nullcontext
        with scaling(factor):
            inner.apply_gradients(own, **skip_aggregation(inner))

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
        update = functools.partial(loss_scaling.update_if, inner, allowed, step)
        return tf.cond(agreed, update, lambda: tf.constant(False))

    masks = [[i in candidate for i in range(touched.shape[0])] for candidate in candidates]
    covering = tf.reduce_all(tf.constant(masks) | ~touched, axis=1)
    which = tf.argmax(tf.cast(covering, tf.int32), output_type=tf.int32)
    context = tf.distribute.get_replica_context()
    return context.merge_call(merged, args=(gradients, factor, if_so, which))


def _global_norm(gradients: list[Any], compile: bool = False) -> tf.Tensor:
    if isinstance(gradients[0], HostArray):
        return tf.sqrt(host_memory.square_sum(gradients))
    halves: dict[tf.DType, list[tf.Tensor]] = defaultdict(list)
    half = _half_square_of_rows if compile else tf.nn.l2_loss
    done: list[tf.Tensor] = []
    for gradient in gradients:
        # Reading a variable that received IndexedSlices copies it, so read one at a time.
        with tf.control_dependencies(done):
            wide = _widened(gradient)
            done = [half(tf.abs(wide) if wide.dtype.is_complex else wide)]
        halves[done[0].dtype] += done
    sums = [tf.reduce_sum(tf.cast(tf.stack(own), tf.float64)) for own in halves.values()]
    return tf.sqrt(2 * tf.add_n(sums))


def _half_square_of_rows(tensor: tf.Tensor) -> tf.Tensor:
    # For a sum over all axes, XLA on CPUs would keep the square of each element.
    rows = tf.reshape(tensor, [-1, *tensor.shape[-1:]])
    return 0.5 * tf.reduce_sum(tf.einsum("ij,ij->i", rows, rows))


def _widened(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, compute_dtype(tensor))
