"""Dropout whose masks belong to the examples: of an update, whatever its micro-batches are.

For each update a pool of mask rows is drawn from the seed. Which row an example's token gets,
at each place in the model, follows from the example's position in the window, so that a window
may be cut anywhere, padded to any length, run again after a lack of memory, and computed a
second time by recomputation: the masks stay the same. Looking rows up is also faster than
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

# Rows in the pool: a power of two. In a window of 32 reviews of 128 tokens each serves one token
# at each place, on average.
_ROWS = 4096
# Numbers that decide about keeping are of 16 bits: rates are right to 1e-5.
_LEVELS = 2**16


@dataclass(frozen=True)
class Masks:
    """The masks of one update.

    Args:
      seed: [2] integers, that all follows from.
      pools: for each rate, [rows, width] booleans, true where something is kept.
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
        """Those of the micro-batch that begins with this example."""
        seed = self.seed
        if self.stream == "micro-batch":
            seed = tf.random.experimental.stateless_fold_in(seed, self.positions[first])
        return dataclasses.replace(self, seed=seed, first=first)


_MASKS: ContextVar[Masks | None] = ContextVar("masks", default=None)


@contextmanager
def dropout_masks(masks: Masks | None) -> Iterator[None]:
    """Inside, forward passes of models that `seed_dropout` was given drop by these masks."""
    token = _MASKS.set(masks)
    try:
        yield
    finally:
        _MASKS.reset(token)


def present_masks() -> Masks | None:
    """What the innermost `dropout_masks` was given."""
    return _MASKS.get()


def seed_dropout(model: tf_keras.Model, width: int) -> None:
    """Makes every dropout layer of a model ask for masks; each has rows of its own.

    Args:
      model: the model.
      width: the most that a last or middle axis of what is dropped from can have.
    """
    for site, layer in enumerate(_dropouts(model)):
        layer._random_generator = _SeededMasks(site, width)


def keep_mask(
    layer: tf_keras.layers.Dropout, shape: tf.Tensor, rank: int
) -> tuple[tf.Tensor | None, float]:
    """What a dropout layer is to keep in training, for code that does the rest itself.

    Args:
      layer: if `seed_dropout` was not given its model, it is drawn each time.
      shape: [rank] integers, the shape [examples, ..., width] of what is dropped from.
      rank: its length.

    Returns:
      Booleans of that shape, or None if there is nothing to drop; and by how much to
      multiply what is kept.
    """
    if not layer.rate:
        return None, 1.0
    if isinstance(_generator(layer), _SeededMasks):
        return _generator(layer).keep(shape, rank, layer.rate)
    return tf.random.uniform(shape) >= layer.rate, 1 / (1 - layer.rate)


def draw_masks(
    model: tf_keras.Model,
    seed: tf.Tensor,
    examples: tf.Tensor,
    positions: tf.Tensor | None = None,
    stream: str = "example",
) -> Masks:
    """The masks of an update.

    Args:
      model: what `seed_dropout` was given.
      seed: [2] integers.
      examples: how many there are in the window.
      positions: [share] int32, of those that are dropped from here; by default all.
      stream: what a mask belongs to, "example" or "micro-batch".
    """
    layers = [part for part in _dropouts(model) if isinstance(_generator(part), _SeededMasks)]
    width = max((_generator(layer).width for layer in layers), default=0)
    pools = {
        float(rate): _pool(tf.random.experimental.stateless_fold_in(seed, number), rate, width)
        for number, rate in enumerate(sorted({layer.rate for layer in layers if layer.rate}))
    }
    own = tf.random.experimental.stateless_fold_in(seed, -1)
    offsets = tf.random.stateless_uniform([examples], own, 0, _ROWS, tf.int32)
    if positions is None:
        positions = tf.range(examples)
    return Masks(seed, pools, positions, tf.gather(offsets, positions), stream=stream)


def _dropouts(model: tf_keras.Model) -> list[tf_keras.layers.Dropout]:
    return [part for part in model.submodules if isinstance(part, tf_keras.layers.Dropout)]


def _generator(layer: tf_keras.layers.Dropout) -> Any:
    return layer._random_generator


def _pool(seed: tf.Tensor, rate: float, width: int) -> tf.Tensor:
    """[rows, width] booleans, of which a share of `rate` is false."""
    halves = tf.random.stateless_uniform([_ROWS, (width + 1) // 2], seed, None, None, tf.uint32)
    numbers = tf.reshape(tf.bitcast(halves, tf.uint16), [_ROWS, -1])[:, :width]
    return tf.cast(numbers, tf.int32) >= round(rate * _LEVELS)


@tf.autograph.experimental.do_not_convert
def _dropped(inputs: tf.Tensor, keep: tf.Tensor, scale: float) -> tf.Tensor:
    """Products, as selecting is slow in bfloat16; of the mask only the booleans are kept."""

    @tf.custom_gradient
    def run(inputs: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def scaled(x: tf.Tensor) -> tf.Tensor:
            return x * (tf.cast(keep, x.dtype) * tf.constant(scale, x.dtype))

        return scaled(inputs), scaled

    return run(inputs)


class _SeededMasks:
    """Stands in for the generator of a Keras dropout layer."""

    def __init__(self, site: int, width: int) -> None:
        self.site, self.width = site, width

    def dropout(
        self, inputs: tf.Tensor, rate: float, noise_shape: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Inputs [examples, ..., width], of which a share of `rate` is dropped."""
        if noise_shape is not None:
            raise ValueError("dropout with a noise shape has no masks of examples")
        keep, scale = self.keep(tf.shape(inputs), inputs.shape.rank, rate)
        return _dropped(inputs, keep, scale)

    def keep(self, shape: tf.Tensor, rank: int, rate: float) -> tuple[tf.Tensor, float]:
        """Where to keep [examples, ..., width], `shape`; and what to scale that with."""
        masks = _MASKS.get()
        if masks is None:
            raise RuntimeError("a forward pass in training needs dropout_masks")
        keep = tf.gather(masks.pools[float(rate)][:, : shape[-1]], self._rows(masks, shape, rank))
        return keep, 1 / (1 - round(rate * _LEVELS) / _LEVELS)

    def _rows(self, masks: Masks, shape: tf.Tensor, rank: int) -> tf.Tensor:
        """[examples, ...] which row of the pool each gets: sums of random offsets."""
        own = tf.random.experimental.stateless_fold_in(masks.seed, self.site)
        # As many as there can ever be, so that they do not depend on how far it is padded.
        offsets = tf.random.stateless_uniform([rank, self.width], own, 0, _ROWS, tf.int32)
        rows = masks.examples[masks.first : masks.first + shape[0]] + offsets[0, 0]
        for axis in range(1, rank - 1):
            rows = rows[..., tf.newaxis] + offsets[axis, : shape[axis]]
        return tf.bitwise.bitwise_and(rows, _ROWS - 1)
