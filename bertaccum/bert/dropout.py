"""Dropout with one mask per example, independent of how a window is split into micro-batches.

For each update, a pool of mask rows is drawn from the seed. The row for a token depends only on the
seed, the dropout layer, the position of the token in its example, and the position of the example
in the window. The masks therefore stay the same if a window is split differently, padded to another
length, run again after running out of memory, or recomputed. Looking up rows is also faster than
drawing them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
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
# Key with which TensorFlow turns a seed into the state of a generator.
_SCRAMBLE = 0x02461E293EC8F720
# The dropout layers of adapters have this number or a higher one.
ADAPTER_SITE = 1000
# Masks are drawn as 16-bit numbers, so rates are accurate to 1e-5.
_LEVELS = 2**16


@dataclass(frozen=True)
class Masks:
    """The masks of one update, or of a micro-batch."""

    seed: tf.Tensor  # Seed from which the pools and offsets are drawn, two integers.
    pools: dict[float, tf.Tensor]  # Booleans [rows, width] for each rate, true for values to keep.
    sites: list[int]  # Numbers of the dropout layers.
    # Offsets into the rows of a pool for each of these layers, [sites, 3, width] int32: one for the
    # layer, one for each index of the second axis of its inputs, which includes the layer's, and
    # one for each index of the third axis.
    of_sites: tf.Tensor
    positions: tf.Tensor  # Positions of the examples in the window, [examples] int32.
    offsets: tf.Tensor  # Offset of each example into the rows of a pool, [examples] int32.
    # "example" for one mask per example, "micro-batch" for fresh masks per micro-batch.
    stream: str = "example"

    def of_micro_batch(self, first: Any, examples: Any) -> Masks:
        """Return the masks of the micro-batch of `examples` examples that starts at `first`."""
        positions, offsets = (
            tf.slice(x, [first], [examples]) for x in (self.positions, self.offsets)
        )
        of_sites = self.of_sites
        if self.stream == "micro-batch":
            [seed] = fold_in(self.seed, [positions[0]])
            of_sites = _of_sites(seed, self.sites, of_sites.shape[-1])
        return dataclasses.replace(self, of_sites=of_sites, positions=positions, offsets=offsets)

    def of_passages(self, examples: tf.Tensor, numbers: tf.Tensor) -> Masks:
        """Return the masks of passages, of which the first in each example has the example's masks.

        Args:
          examples: Index of each passage's example, [passages] int32.
          numbers: Number of each passage in its example, counted from 0, [passages] int32.
        """
        offsets = tf.gather(self.offsets, examples) + numbers * _PASSAGE
        return dataclasses.replace(self, offsets=offsets)


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
      site: Number of this dropout layer in the model; layers with different numbers use different
        rows.
      width: Largest possible size of any axis of the inputs except the first.
    """

    def __init__(self, rate: float, site: int, width: int, **kwargs: Any) -> None:
        super().__init__(rate, **kwargs)
        self.site, self.width = site, width

    def call(
        self, inputs: tf.Tensor, training: bool | None = None, length: Any = None
    ) -> tf.Tensor:
        """Apply dropout in training.

        Args:
          inputs: Floats [examples, ..., width]; with `length`, [examples x length, width].
          length: Size of the second axis of inputs whose first two axes are one.
        """
        if not self.rate or not training:
            return tf.identity(inputs)
        if length is None:
            _, *axes, width = tf.unstack(tf.shape(inputs))
            return _dropped(inputs, *self.keep(axes, width))
        keep, scale = self.keep([length], inputs.shape[-1])
        return _dropped(inputs, tf.reshape(keep, [-1, inputs.shape[-1]]), scale)

    def keep(self, axes: Sequence[Any], width: Any) -> tuple[tf.Tensor | None, float]:
        """Return the mask and the scale of the kept values, for callers that apply them themselves.

        Returns:
          Booleans [examples, *axes, width], true for values to keep, or None if the rate is 0; and
          the factor that multiplies the kept values.

        Raises:
          RuntimeError: The call is outside of a `dropout_masks` context.
        """
        if not self.rate:
            return None, 1.0
        masks = present_masks()
        if masks is None:
            raise RuntimeError("a forward pass in training needs a dropout_masks context")
        pool = tf.slice(masks.pools[float(self.rate)], [0, 0], [_ROWS, width])
        keep = tf.gather(pool, self._rows(masks, axes))
        return keep, 1 / (1 - round(self.rate * _LEVELS) / _LEVELS)

    def _rows(self, masks: Masks, axes: Sequence[Any]) -> tf.Tensor:
        """Return the index of each token's row in the pool, [examples, *axes] int32."""
        # It is a sum of random offsets, one per axis.
        own = masks.of_sites[masks.sites.index(self.site)]  # [3, width]
        rows = masks.offsets if axes else masks.offsets + own[0, 0]
        for axis, size in enumerate(axes, 1):
            rows = rows[..., tf.newaxis] + tf.slice(own, [axis, 0], [1, size])
        return tf.bitwise.bitwise_and(rows, _ROWS - 1)


def draw_masks(
    model: tf_keras.Model,
    seed: tf.Tensor,
    examples: tf.Tensor,
    positions: tf.Tensor | None = None,
    stream: str = "example",
    run: Callable[[Callable[[], Any]], Any] = lambda draw: draw(),
) -> Masks:
    """Return the masks of an update for the examples at `positions`.

    Args:
      seed: Seed of the update, two integers.
      positions: Positions in the window of the examples that this replica processes, [share] int32;
        None for all.
      stream: "example" or "micro-batch", as in `Masks`.
      run: Calls the function that draws what does not depend on the examples; it may compile it.
    """
    layers = [part for part in model.submodules if isinstance(part, ExampleDropout) and part.rate]
    width = max((layer.width for layer in layers), default=0)
    sites = [layer.site for layer in layers]
    # A rate that only adapters have comes last, so that it does not change the other pools.
    own = {float(layer.rate) for layer in layers if layer.site < ADAPTER_SITE}
    rates = [*sorted(own), *sorted({float(layer.rate) for layer in layers} - own)]

    def draw() -> tuple[dict[float, tf.Tensor], tf.Tensor]:
        seeds = fold_in(seed, range(len(rates))) if rates else []
        pools = {r: _pool(own, r, width) for r, own in zip(rates, seeds, strict=True)}
        return pools, _of_sites(seed, sites, width)

    pools, of_sites = run(draw)
    [own] = fold_in(seed, [-1])
    # A window without examples, for which steps are only compiled, has rows of padding.
    offsets = _offsets([tf.maximum(examples, 1)], own)
    if positions is None:
        positions = tf.range(examples)
    of_examples = tf.gather(offsets, positions)
    return Masks(seed, pools, sites, of_sites, positions, of_examples, stream)


def fold_in(seed: tf.Tensor, numbers: Sequence[Any]) -> list[tf.Tensor]:
    """Return the seed that `stateless_fold_in` makes with Philox, for each of several numbers."""
    first = _integers([], seed, tf.int32)
    seeds = tf.stack([tf.fill([len(numbers)], first), tf.stack(numbers)], axis=1)
    return tf.unstack(tf.cast(seeds, tf.uint64))


def _of_sites(seed: tf.Tensor, sites: list[int], width: int) -> tf.Tensor:
    """Return offsets [sites, 3, width] int32 into the rows of a pool."""
    # Their number depends on the maximum width, which makes them independent of the padding.
    if not sites:
        return tf.zeros([0, 3, width], tf.int32)
    drawn = tf.stack([_offsets([3, width], own) for own in fold_in(seed, sites)])
    return drawn + drawn[:, :1, :1] * [[0], [1], [0]]


def _pool(seed: tf.Tensor, rate: float, width: int) -> tf.Tensor:
    """Return booleans [rows, width]; a fraction `rate` of them is false."""
    halves = _integers([_ROWS, (width + 1) // 2], seed, tf.uint32)
    numbers = tf.reshape(tf.bitcast(halves, tf.uint16), [_ROWS, -1])[:, :width]
    return tf.cast(numbers, tf.int32) >= round(rate * _LEVELS)


def _offsets(shape: list[Any], seed: tf.Tensor) -> tf.Tensor:
    """Return random rows of a pool, [*shape] int32."""
    return tf.raw_ops.StatelessRandomUniformIntV2(
        shape=shape, minval=0, maxval=_ROWS, **_philox(seed)
    )


def _integers(shape: list[int], seed: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return integers [*shape] that are drawn from all integers of a dtype."""
    return tf.raw_ops.StatelessRandomUniformFullIntV2(shape=shape, dtype=dtype, **_philox(seed))


def _philox(seed: tf.Tensor) -> dict[str, Any]:
    """Return the algorithm of random numbers, and its state for a seed of two integers."""
    # By default, compiled code uses another algorithm, and another state for negative integers. The
    # functions of `tf.random` accept the algorithm, but then run many more operations.
    algorithm = tf.random.Algorithm.PHILOX.value
    state = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[2],
        key=tf.constant([_SCRAMBLE], tf.uint64),
        counter=tf.cast(seed, tf.uint64),
        dtype=tf.uint64,
        alg=algorithm,
    )
    return {"key": state[:1], "counter": state * [0, 1], "alg": algorithm}


@tf.autograph.experimental.do_not_convert
def _dropped(inputs: tf.Tensor, keep: tf.Tensor | None, scale: float) -> tf.Tensor:
    """Apply a mask, keeping only its booleans for the backward pass."""

    @tf.custom_gradient
    def run(inputs: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def scaled(x: tf.Tensor) -> tf.Tensor:
            # In bfloat16, multiplication is faster than `tf.where`.
            return x * (tf.cast(keep, x.dtype) * tf.constant(scale, x.dtype))

        return scaled(inputs), scaled

    return run(inputs)
