"""Dropout whose masks belong to the examples of an update, whatever its micro-batches are.

For each update a pool of mask rows is drawn from the seed. The row of an example's token, at
each site in the model, follows from the example's position in the window. So the masks stay the
same when a window is cut anywhere, padded to any length, run again after running out of memory,
or computed a second time by recomputation. Looking rows up is also faster than drawing them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

# Rows in the pool: a power of two. In a window of 32 reviews of 128 tokens, each row serves one
# token at each site, on average.
_ROWS = 4096
# Masks are drawn as 16-bit numbers, so rates are right to 1e-5.
_LEVELS = 2**16


@dataclass(frozen=True)
class Masks:
    """The masks of one update.

    Args:
      seed: [2] integers; all the rest follows from them.
      pools: for each rate, [rows, width] booleans, true where a value is kept.
      positions: [examples] int32, where examples stand in the window.
      examples: [examples] int32, each example's own offset into the rows.
      first: the number of the micro-batch's first example among these.
      stream: "example", or "micro-batch" for masks that belong to micro-batches instead.
    """

    seed: tf.Tensor
    pools: dict[float, tf.Tensor]
    positions: tf.Tensor
    examples: tf.Tensor
    first: Any = 0
    stream: str = "example"

    def of_micro_batch(self, first: Any) -> Masks:
        """Return the masks of the micro-batch that begins with example `first`."""
        seed = self.seed
        if self.stream == "micro-batch":
            seed = tf.random.experimental.stateless_fold_in(seed, self.positions[first])
        return dataclasses.replace(self, seed=seed, first=first)


_MASKS: ContextVar[Masks | None] = ContextVar("masks", default=None)


@contextmanager
def dropout_masks(masks: Masks | None) -> Iterator[None]:
    """Let every `ExampleDropout` inside drop by these masks."""
    token = _MASKS.set(masks)
    try:
        yield
    finally:
        _MASKS.reset(token)


def present_masks() -> Masks | None:
    """Return the masks of the innermost `dropout_masks`."""
    return _MASKS.get()


class ExampleDropout(tf_keras.layers.Dropout):
    """Dropout by the masks of `dropout_masks`.

    Args:
      rate: share of values that are dropped.
      site: number of the layer in its model; each has rows of its own.
      width: the largest size that an axis of the inputs, the first aside, can have.
      **kwargs: name and dtype, as of any Keras layer.
    """

    def __init__(self, rate: float, site: int, width: int, **kwargs: Any) -> None:
        super().__init__(rate, **kwargs)
        self.site, self.width = site, width

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Drop from `inputs` [examples, ..., width] in training."""
        if not self.rate or not training:
            return tf.identity(inputs)
        keep, scale = self.keep(tf.shape(inputs), inputs.shape.rank)
        assert keep is not None
        return _dropped(inputs, keep, scale)

    def keep(self, shape: tf.Tensor, rank: int) -> tuple[tf.Tensor | None, float]:
        """Return which values are kept in training, for code that applies the mask itself.

        Args:
          shape: [rank] int32, the shape [examples, ..., width] of what is dropped from.
          rank: its length.

        Returns:
          Booleans of that shape, or None if the rate is 0; and the factor of values that are
          kept.

        Raises:
          RuntimeError: there are no `dropout_masks`.
        """
        if not self.rate:
            return None, 1.0
        masks = present_masks()
        if masks is None:
            raise RuntimeError("a forward pass in training needs dropout_masks")
        pool = masks.pools[float(self.rate)][:, : shape[-1]]
        keep = tf.gather(pool, self._rows(masks, shape, rank))
        return keep, 1 / (1 - round(self.rate * _LEVELS) / _LEVELS)

    def _rows(self, masks: Masks, shape: tf.Tensor, rank: int) -> tf.Tensor:
        """Return [examples, ...] int32, the pool's row for each: sums of random offsets."""
        own = tf.random.experimental.stateless_fold_in(masks.seed, self.site)
        # As many as there can ever be, so that they do not depend on the padding.
        offsets = tf.random.stateless_uniform([rank, self.width], own, 0, _ROWS, tf.int32)
        rows = masks.examples[masks.first : masks.first + shape[0]] + offsets[0, 0]
        for axis in range(1, rank - 1):
            rows = rows[..., tf.newaxis] + offsets[axis, : shape[axis]]
        return tf.bitwise.bitwise_and(rows, _ROWS - 1)


def draw_masks(
    model: tf_keras.Model,
    seed: tf.Tensor,
    examples: tf.Tensor,
    positions: tf.Tensor | None = None,
    stream: str = "example",
) -> Masks:
    """Draw the masks of an update.

    Args:
      model: a model whose dropout layers are `ExampleDropout`.
      seed: [2] integers.
      examples: the number of examples in the window.
      positions: [share] int32, of the examples that are computed here; by default all.
      stream: what a mask belongs to, "example" or "micro-batch".

    Returns:
      The masks of the examples at `positions`.
    """
    layers = [part for part in model.submodules if isinstance(part, ExampleDropout)]
    width = max((layer.width for layer in layers), default=0)
    pools = {
        float(rate): _pool(tf.random.experimental.stateless_fold_in(seed, number), rate, width)
        for number, rate in enumerate(sorted({layer.rate for layer in layers if layer.rate}))
    }
    own = tf.random.experimental.stateless_fold_in(seed, -1)
    offsets = tf.random.stateless_uniform([examples], own, 0, _ROWS, tf.int32)
    if positions is None:
        positions = tf.range(examples)
    return Masks(seed, pools, positions, tf.gather(offsets, positions), stream=stream)


def _pool(seed: tf.Tensor, rate: float, width: int) -> tf.Tensor:
    """Return [rows, width] booleans, of which a share of `rate` is false."""
    halves = tf.random.stateless_uniform([_ROWS, (width + 1) // 2], seed, None, None, tf.uint32)
    numbers = tf.reshape(tf.bitcast(halves, tf.uint16), [_ROWS, -1])[:, :width]
    return tf.cast(numbers, tf.int32) >= round(rate * _LEVELS)


@tf.autograph.experimental.do_not_convert
def _dropped(inputs: tf.Tensor, keep: tf.Tensor, scale: float) -> tf.Tensor:
    """Apply a mask; the backward pass keeps its booleans only."""

    @tf.custom_gradient
    def run(inputs: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def scaled(x: tf.Tensor) -> tf.Tensor:
            # A product, as selecting is slow in bfloat16.
            return x * (tf.cast(keep, x.dtype) * tf.constant(scale, x.dtype))

        return scaled(inputs), scaled

    return run(inputs)
