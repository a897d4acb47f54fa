"""Losses whose divisor the other losses do not have: their gradients are accumulated apart.

The update needs, for each output, the sum of gradients over the sum of divisors, both over the
window. Outputs with different masks have different divisors, which are known only when the
window ends: until then each of these sums has to be kept by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bertaccum.accumulation.sums import times


def differentiate(
    parts: Sequence[Any], loss: tf.Tensor, variables: list[tf.Variable], factor: Any
) -> list[list[Any]]:
    """Return the gradients of each `LossPart` with respect to the variables, times the factor.

    Args:
      parts: those of the present micro-batch.
      loss: the total, in which the parts have values without gradients. Its derivative with
        respect to them says how much each counts: loss weights, replicas, the loss scale.
    """
    found = []
    for part in parts:
        values, stand_ins = (list(column) for column in zip(*part.losses, strict=True))
        shares = tf.gradients(loss, stand_ins, unconnected_gradients="zero")
        gradients = tf.gradients(values, variables, grad_ys=shares)
        found.append([times(gradient, factor) for gradient in gradients])
    return found


def with_zeros(pairs: list[Any], parts: list[list[Any]]) -> list[Any]:
    """Give a variable that only parts have a gradient of one of zeros."""
    reached = [any(g is not None for g in gradients) for gradients in zip(*parts, strict=True)]
    return [
        (tf.zeros(v.shape, v.dtype) if g is None and wanted else g, v)
        for (g, v), wanted in zip(pairs, reached, strict=True)
    ]


def mean_of(groups: list[list[tf.Tensor]], weights: tf.Tensor) -> list[tf.Tensor]:
    """Return, for each variable, the total of each group's sum over the group's weight.

    A group without weight adds nothing.
    """
    shares = tf.unstack(tf.math.reciprocal_no_nan(weights))
    return [
        tf.add_n([times(tf.convert_to_tensor(s), f) for s, f in zip(own, shares, strict=True)])
        for own in zip(*groups, strict=True)
    ]
