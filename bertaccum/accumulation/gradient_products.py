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
from bertaccum.accumulation.offload.host_memory import HostArray, on_host
from bertaccum.accumulation.replicas import alike, here

# Number of buckets. An inner product has an error of about sqrt(2 / _BUCKETS), 1.6%, of the product
# of the norms, in another direction for each pair of gradients.
_BUCKETS = 8192
# Weight of a window in the mean of earlier windows, relative to the window after it.
_DECAY = 0.9


class GradientProducts(tf.Module):
    """Squared norms of windows' mean gradients, and their products with those of earlier windows.

    Create it in the scope of the strategy. It is an `observer` of a `WindowOptimizer`.

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
        self._earlier = alike(tf.zeros([count, _BUCKETS]), tf.float32, "earlier_gradients")
        self._weight = alike(0.0, tf.float32, "earlier_weight")
        self.square = alike(tf.zeros([count]), tf.float32, "gradient_square")
        self.product = alike(tf.zeros([count]), tf.float32, "gradient_product")

    @property
    def kept(self) -> list[tf.Variable]:
        """The variables that later values depend on."""
        return [self._earlier, self._weight]

    def __call__(self, sums: Mapping[int, Any], factor: tf.Tensor, agreed: tf.Tensor) -> tf.Tensor:
        """Compute the values of a window on this replica; all replicas have the same gradients.

        Args:
          sums: Summed gradients, keyed by the positions of their variables.
          factor: Factor that turns the sums into mean gradients, a float64 scalar.
          agreed: Whether all replicas agree to the update, a bool scalar.

        Returns:
          A tensor that is available once the gradients have been read.
        """
        groups = range(self.square.shape[0])
        sketches: list[list[tf.Tensor]] = [[] for _ in groups]
        rests = [[tf.zeros([1])] for _ in groups]
        done = [factor]
        for number, total in sums.items():
            # Reading a variable may copy it, so read one at a time.
            with tf.control_dependencies(done):
                done = (
                    _of_host(total, number) if isinstance(total, HostArray) else _of(total, number)
                )
            *whole, rest = done
            sketches[self._groups[number]] += whole
            rests[self._groups[number]].append(rest)
        for group in groups:
            sketches[group].append(_of_rests(rests[group], group))
        sketch = tf.stack([tf.add_n(own) for own in sketches]) * tf.cast(factor, tf.float32)
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


def _of(total: tf.Tensor, number: int) -> list[tf.Tensor]:
    """Return the sketch [buckets] float32 of a gradient, if it is large enough, and the rest.

    The gradient's numbers are the rows of a matrix with a column for each bucket. The rest is what
    does not fill a row. It is sketched together with the rests of other gradients, because most
    variables have fewer numbers than there are buckets.
    """
    rows, rest = divmod(math.prod(total.shape), _BUCKETS)
    flat = tf.reshape(tf.cast(total, compute_dtype(total)), [-1])
    if not rows:
        return [tf.cast(flat, tf.float32)]
    matrix, rest = tf.split(flat, [rows * _BUCKETS, rest])
    sketch = _signed_sum(tf.reshape(matrix, [rows, _BUCKETS]), _signs(rows, 0, number))
    return [tf.cast(sketch, tf.float32), tf.cast(rest, tf.float32)]


def _of_host(array: HostArray, number: int) -> list[tf.Tensor]:
    size = math.prod(array.shape)
    rows = size // _BUCKETS
    signs = _signs(rows, 0, number)

    def both() -> np.ndarray:
        flat = array.values.reshape(-1)
        sketch = signs @ flat[: rows * _BUCKETS].reshape(rows, _BUCKETS)
        return np.concatenate([sketch, flat[rows * _BUCKETS :]]).astype(np.float32)

    found = on_host(both, [], tf.float32)
    found.set_shape([_BUCKETS + size - rows * _BUCKETS])
    return [found[:_BUCKETS], found[_BUCKETS:]]


def _of_rests(rests: list[tf.Tensor], group: int) -> tf.Tensor:
    flat = tf.concat(rests, axis=0)
    rows = math.ceil(flat.shape[0] / _BUCKETS)
    padded = tf.pad(flat, [[0, rows * _BUCKETS - flat.shape[0]]])
    return _signed_sum(tf.reshape(padded, [rows, _BUCKETS]), _signs(rows, 1, group))


def _signed_sum(matrix: tf.Tensor, signs: np.ndarray) -> tf.Tensor:
    return tf.matmul(tf.cast(signs[np.newaxis], matrix.dtype), matrix)[0]


def _signs(count: int, kind: int, number: int) -> np.ndarray:
    """Return random signs [count] float32, the same on every machine."""
    raw = np.random.Philox(key=[kind, number]).random_raw(count)
    return np.where(raw % 2, 1, -1).astype(np.float32)
