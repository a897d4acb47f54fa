"""Inner products of the gradients of different windows, which separate the gradient from its noise.

The mean gradients of two windows have independent noise. The expected value of their inner product
is therefore the squared norm of the true gradient, while the squared norm of one mean gradient also
contains the noise. `bertaccum.training.noise_scale` computes the noise scale from the two.

A mean gradient is as large as the model, so earlier ones cannot be kept. Their sketches can: the
numbers of a gradient are added up, with random signs, in a few thousand buckets. The expected inner
product of two sketches is that of the gradients.

Source: Alon, Matias and Szegedy 1999, "The Space Complexity of Approximating the Frequency
Moments".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.accumulation.gradient_tensors import compute_dtype
from bertaccum.accumulation.host_memory import HostArray, on_host
from bertaccum.accumulation.replicas import alike, here, replicated

# Number of buckets. An inner product has an error of about sqrt(2 / _BUCKETS), 1.6%, of the product
# of the norms, in another direction for each pair of gradients.
_BUCKETS = 8192
# Number of buckets between the first buckets of consecutive variables.
_STRIDE = 1009
# Weight of a window in the mean of earlier windows, relative to the window after it.
_DECAY = 0.9


class GradientProducts(tf.Module):
    """Squared norms of windows' mean gradients, and their products with those of earlier windows.

    Create it in the scope of the strategy. It is an `observer` of an `AccumulatingOptimizer`.

    Args:
      groups: Number of the group of each of the model's variables, counted from 0. Each group has
        its own values.

    Attributes:
      square: Squared norm of the last window's mean gradient, [groups] float32.
      product: Its inner product with the mean of earlier windows' mean gradients, in which recent
        windows weigh more, [groups] float32; NaN if there was none.
    """

    def __init__(self, groups: Sequence[int]) -> None:
        super().__init__(name="gradient_products")
        self._groups, count = groups, max(groups) + 1
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self._earlier = replicated(tf.zeros([count, _BUCKETS]), first, "earlier_gradients")
        self._weight = alike(0.0, tf.float32, "earlier_weight")
        self.square = replicated(tf.zeros([count]), first, "gradient_square")
        self.product = replicated(tf.zeros([count]), first, "gradient_product")

    @property
    def kept(self) -> list[tf.Variable]:
        """The variables that later values depend on."""
        return [self._earlier, self._weight]

    def __call__(self, sums: Mapping[int, Any], factor: tf.Tensor, agreed: tf.Tensor) -> tf.Tensor:
        """Compute the values of a window on this replica; all replicas have the same gradients.

        Args:
          sums, factor, agreed: Arguments of an `Observer`.

        Returns:
          A tensor that is available once the gradients have been read.
        """
        own = [[tf.zeros([_BUCKETS])] for _ in range(self.square.shape[0])]
        done = [factor]
        for number, total in sums.items():
            # Reading a variable may copy it, so read one at a time.
            with tf.control_dependencies(done):
                done = [_sketch(total, number)]
            own[self._groups[number]] += done
        sketch = tf.stack([tf.add_n(part) for part in own]) * tf.cast(factor, tf.float32)
        earlier, weight = (here(kept).read_value() for kept in self.kept)
        square = tf.reduce_sum(tf.square(sketch), axis=1)
        self.square.assign(square)
        self.product.assign(tf.reduce_sum(sketch * earlier, axis=1) / weight)
        counts = agreed & tf.reduce_all(tf.math.is_finite(square))
        self._earlier.assign(tf.where(counts, _DECAY * earlier + sketch, earlier))
        self._weight.assign(tf.where(counts, _DECAY * weight + 1, weight))
        return square


def weight_of_last(last: int, windows: int) -> float:
    """Return the weight of the last windows in the mean of earlier windows.

    Args:
      last: Number of windows whose total weight to return.
      windows: Number of all earlier windows, at least 1.
    """
    return (1 - _DECAY**last) / (1 - _DECAY**windows)


def _sketch(total: Any, number: int) -> tf.Tensor:
    """Return the sketch of a variable's gradient, [buckets] float32.

    A bucket contains every `_BUCKETS`-th number. Each variable has its own signs, and starts with
    another bucket, so that small variables do not share buckets.
    """
    size = math.prod(total.shape)
    whole = size // _BUCKETS
    raw = np.random.Philox(key=[0, number]).random_raw(whole + 1)
    signs = np.where(raw % 2, 1, -1).astype(np.float32)
    first = number * _STRIDE % _BUCKETS
    if isinstance(total, HostArray):
        sketch = on_host(lambda: _of_array(total.values, signs), [], tf.float32)
        sketch.set_shape([_BUCKETS])
        return tf.roll(sketch, first, axis=0)
    flat = tf.reshape(tf.cast(total, compute_dtype(total)), [-1])
    rest = tf.cast(flat[whole * _BUCKETS :], tf.float32) * signs[-1]
    rest = tf.pad(rest, [[0, (whole + 1) * _BUCKETS - size]])
    if whole:
        rows = tf.reshape(flat[: whole * _BUCKETS], [whole, _BUCKETS])
        rest += tf.cast(tf.matmul(tf.cast(signs[tf.newaxis, :-1], rows.dtype), rows)[0], tf.float32)
    return tf.roll(rest, first, axis=0)


def _of_array(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
    flat, whole = values.reshape(-1), len(signs) - 1
    sketch = signs[:-1] @ flat[: whole * _BUCKETS].reshape(whole, _BUCKETS)
    rest = flat[whole * _BUCKETS :]
    sketch[: len(rest)] += signs[-1] * rest
    return sketch.astype(np.float32)
