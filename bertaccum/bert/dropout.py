"""Dropout with one mask per example, independent of how a window is split into micro-batches.

For each update, a pool of mask rows is drawn from the seed. The row for a token depends only on the
seed, the dropout layer, the position of the token in its example, and the position of the example
in the window. The masks therefore stay the same if a window is split differently, padded to another
length, run again after running out of memory, or recomputed. Looking up rows is also faster than
drawing them.
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

# Number of rows in the pool, a power of two. In a window of 32 reviews of 128 tokens each, every
# row serves one token per site on average.
_ROWS = 4096
# Distance in the pool between the rows of consecutive passages of a text. It is odd, so no two of
# the first 4096 passages share rows.
_PASSAGE = 2531
# Masks are drawn as 16-bit numbers, so rates are accurate to 1e-5.
_LEVELS = 2**16


@dataclass(frozen=True)
class Masks:
    """The masks of one update.

    Args:
      seed: Seed from which the pools and offsets are drawn, two integers.
      pools: Booleans [rows, width] for each rate, true for values to keep.
      positions: Positions of the examples in the window, [examples] int32.
      examples: Offset of each example into the rows of a pool, [examples] int32.
      first: Index of the micro-batch's first example in `examples`.
      stream: "example" for one mask per example, "micro-batch" for fresh masks per micro-batch.
    """

    seed: tf.Tensor
    pools: dict[float, tf.Tensor]
    positions: tf.Tensor
    examples: tf.Tensor
    first: Any = 0
    stream: str = "example"

    def of_micro_batch(self, first: Any) -> Masks:
        """Return the masks of the micro-batch that starts at example `first`."""
        seed = self.seed
        if self.stream == "micro-batch":
            seed = tf.random.experimental.stateless_fold_in(seed, self.positions[first])
        return dataclasses.replace(self, seed=seed, first=first)

    def of_passages(self, passages: tf.RaggedTensor) -> Masks:
        """Return the masks of passages, of which the first in each example has the example's masks.

        Args:
          passages: The passages of the examples of a micro-batch, [examples, (passages), ...].
        """
        numbers = tf.ragged.range(passages.row_lengths()) * _PASSAGE
        offsets = tf.gather(self.examples[self.first :], passages.value_rowids())
        offsets += tf.cast(numbers.values, tf.int32)
        return dataclasses.replace(self, examples=offsets, first=0)


_MASKS: ContextVar[Masks | None] = ContextVar("masks", default=None)


@contextmanager
def dropout_masks(masks: Masks | None) -> Iterator[None]:
    """Make every `ExampleDropout` called in this context use these masks."""
    token = _MASKS.set(masks)
    try:
        yield
    finally:
        _MASKS.reset(token)


def present_masks() -> Masks | None:
    """Return the masks of the innermost `dropout_masks` context, or None outside of any."""
    return _MASKS.get()


class ExampleDropout(tf_keras.layers.Dropout):
    """A dropout layer that uses the masks of the `dropout_masks` context.

    Args:
      rate: Fraction of values to drop.
      site: Number of this dropout layer in the model; layers with different numbers use different
        rows.
      width: Largest possible size of any axis of the inputs except the first.
      **kwargs: `name` and `dtype`, as for any Keras layer.
    """

    def __init__(self, rate: float, site: int, width: int, **kwargs: Any) -> None:
        super().__init__(rate, **kwargs)
        self.site, self.width = site, width

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Return `inputs` [examples, ..., width], with dropout applied in training."""
        if not self.rate or not training:
            return tf.identity(inputs)
        keep, scale = self.keep(tf.shape(inputs), inputs.shape.rank)
        assert keep is not None
        return _dropped(inputs, keep, scale)

    def keep(self, shape: tf.Tensor, rank: int) -> tuple[tf.Tensor | None, float]:
        """Return the mask and the scale of the kept values, for callers that apply them themselves.

        Args:
          shape: Shape [examples, ..., width] of the values, as a tensor [rank] int32.
          rank: Number of axes in `shape`.

        Returns:
          Booleans of that shape, true for values to keep, or None if the rate is 0; and the
          factor that multiplies the kept values.

        Raises:
          RuntimeError: The call is outside of a `dropout_masks` context.
        """
        if not self.rate:
            return None, 1.0
        masks = present_masks()
        if masks is None:
            raise RuntimeError("a forward pass in training needs a dropout_masks context")
        pool = masks.pools[float(self.rate)][:, : shape[-1]]
        keep = tf.gather(pool, self._rows(masks, shape, rank))
        return keep, 1 / (1 - round(self.rate * _LEVELS) / _LEVELS)

    def _rows(self, masks: Masks, shape: tf.Tensor, rank: int) -> tf.Tensor:
        """Return the index of each token's row in the pool, [examples, ...] int32.

        It is a sum of random offsets, one per axis.
        """
        own = tf.random.experimental.stateless_fold_in(masks.seed, self.site)
        # Drawing the maximum number of offsets makes them independent of the padding.
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
      model: Model whose dropout layers are `ExampleDropout`.
      seed: Seed of the update, two integers.
      examples: Number of examples in the window.
      positions: Positions in the window of the examples that this replica processes, [share]
        int32; None for all.
      stream: "example" or "micro-batch", as in `Masks`.

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
    """Return booleans [rows, width]; a fraction `rate` of them is false."""
    halves = tf.random.stateless_uniform([_ROWS, (width + 1) // 2], seed, None, None, tf.uint32)
    numbers = tf.reshape(tf.bitcast(halves, tf.uint16), [_ROWS, -1])[:, :width]
    return tf.cast(numbers, tf.int32) >= round(rate * _LEVELS)


@tf.autograph.experimental.do_not_convert
def _dropped(inputs: tf.Tensor, keep: tf.Tensor, scale: float) -> tf.Tensor:
    """Apply a mask, keeping only its booleans for the backward pass."""

    @tf.custom_gradient
    def run(inputs: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def scaled(x: tf.Tensor) -> tf.Tensor:
            # In bfloat16, multiplication is faster than `tf.where`.
            return x * (tf.cast(keep, x.dtype) * tf.constant(scale, x.dtype))

        return scaled(inputs), scaled

    return run(inputs)
