"""The examples of each update, as a pure function of its position in the run.

The order of an epoch's examples depends only on the seed and the epoch's number, and each window
consists of consecutive examples in this order. Any update's window can therefore be reconstructed
without the updates before it.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.bert.packed_tokens import example_shapes
from bertaccum.data import window_cuts
from bertaccum.data.padding import pad
from bertaccum.data.token_store import TokenStore

# Maximum number of tokens in a batch for prediction. Larger batches are no faster.
MAX_TOKENS = 2**14
# Maximum number of examples whose order is sorted, which needs memory for each of them.
_SORTED = 2**20
_ROUNDS = 8


@dataclass(frozen=True)
class Window:
    """The examples of one update, or a replica's share of them, split into micro-batches."""

    # Token IDs of the examples, concatenated, shortest example first, [tokens] int32.
    token_ids: np.ndarray
    # Start of each example in `token_ids`, and the end of the last one, [examples + 1] int64.
    row_splits: np.ndarray
    labels: np.ndarray  # Labels that the task's `encode` returned, [examples, *label_shape].
    # Start of each micro-batch in the examples, and the end of the last one, [micro_steps + 1]
    # int32.
    cuts: np.ndarray
    # Positions of the examples in the whole window, [examples] int32; None if the examples are the
    # whole window.
    share: np.ndarray | None = None
    # Number of examples in the whole window; None if `examples` is this number.
    whole: int | None = None
    # Weight of each example in the loss, [examples] float32; None if all are 1.
    weights: np.ndarray | None = None
    whole_weight: float | None = None  # Sum of the weights in the whole window; None if all are 1.
    # Rows and length to which each micro-batch is padded, [micro_steps, 2] int32; None for one row
    # per passage, and the length of the longest one.
    padded: np.ndarray | None = None

    @property
    def examples(self) -> int:
        return len(self.labels)

    @property
    def micro_steps(self) -> int:
        return len(self.cuts) - 1

    @property
    def positions(self) -> np.ndarray:
        """The positions of the examples in the whole window, [examples] int32."""
        return np.arange(self.examples, dtype=np.int32) if self.share is None else self.share

    @property
    def window_examples(self) -> int:
        """The number of examples in the whole window, over all replicas."""
        return self.examples if self.whole is None else self.whole

    @property
    def padded_tokens(self) -> int:
        """The number of tokens in the padded micro-batches."""
        padded = self.padded
        if padded is None:
            shapes = example_shapes(self.token_ids, self.row_splits)
            padded = window_cuts.least_shapes(shapes, self.cuts)
        return int(padded.prod(axis=1).sum())

    @functools.cached_property
    def tensors(self) -> tuple[tf.Tensor, ...]:
        """The `fields` as tensors in the host's memory, which are made at the first use."""
        with tf.device("CPU"):
            return tuple(map(tf.convert_to_tensor, fields(self)))


def empty_window(shape: tuple[int, int], labels: np.ndarray) -> Window:
    """Return a window without examples, for which an update only compiles a step."""
    return Window(
        token_ids=np.zeros(0, np.int32),
        row_splits=np.zeros(1, np.int64),
        labels=labels,
        cuts=np.zeros(2, np.int32),
        padded=np.array([shape], np.int32),
    )


@functools.lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, examples: int) -> np.ndarray:
    """Return the order of an epoch, [examples] int64, which is the same on every machine.

    The order comes from sorting raw random numbers, because NumPy guarantees that the numbers of a
    bit generator stay the same in new versions, but not the results of `Generator.permutation`.
    """
    raw = np.random.Philox(key=[seed, epoch]).random_raw(examples)
    return np.argsort(raw, kind="stable")


def scattered(seed: int, epoch: int, examples: int, positions: np.ndarray) -> np.ndarray:
    """Return the examples at some positions in the order of an epoch, without memory for the rest.

    The order is a Feistel network on the bits of the position, which is a permutation of the
    numbers below a power of 4. It is applied until the number is that of an example.
    """
    half = np.uint64(((examples - 1).bit_length() + 1) // 2)
    low = (np.uint64(1) << half) - np.uint64(1)
    keys = np.random.Philox(key=[seed, epoch]).random_raw(_ROUNDS)
    places, outside = positions.astype(np.uint64), np.ones(len(positions), bool)
    while outside.any():
        left, right = places[outside] >> half, places[outside] & low
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & low)
        places[outside] = left << half | right
        outside = places >= examples
    return places.astype(np.int64)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Mix the bits of each number, [numbers] uint64, as the generator SplitMix64 does."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ numbers >> np.uint64(shift)) * np.uint64(factor)
    return numbers ^ numbers >> np.uint64(31)


def updates_per_epoch(examples: int, target_batch: int) -> int:
    """Return the number of windows in an epoch; the last one may have fewer examples."""
    return math.ceil(examples / target_batch)


def scheduled_updates(epochs: float, per_epoch: int) -> int:
    """Return the number of updates that the learning rate schedule of a run covers."""
    # Round before `ceil`: in floating point, 1.1 * 50 is slightly more than 55, but 1.1 epochs of
    # 50 updates are 55 updates.
    return max(math.ceil(round(epochs * per_epoch, 6)), 1)


def updates_between(every: int | float | None, per_epoch: int) -> int:
    """Return the evaluation interval in updates; a float counts epochs, and None is one epoch."""
    if isinstance(every, int):
        return every
    return max(round((1.0 if every is None else every) * per_epoch), 1)


def window_rows(update: int, examples: int, target_batch: int, seed: int) -> tuple[int, np.ndarray]:
    """Return an update's epoch and the row numbers of its window; all numbers start at 0."""
    epoch, position = divmod(update, updates_per_epoch(examples, target_batch))
    start = position * target_batch
    end = min(start + target_batch, examples)
    if examples > _SORTED:
        return epoch, scattered(seed, epoch, examples, np.arange(start, end))
    return epoch, permutation(seed, epoch, examples)[start:end]


def make_window(
    store: TokenStore,
    rows: np.ndarray,
    micro_batch: int,
    cut: window_cuts.Cut = window_cuts.cut_by_count,
    replica: int = 0,
    replicas: int = 1,
    allowed: window_cuts.Shapes = (),
    prices: window_cuts.Prices = window_cuts.PRICES,
) -> Window:
    """Return a replica's share of a window, sorted by length to reduce padding.

    Args:
      allowed: Shapes to which micro-batches may be padded, which must include one for each
        micro-batch that `cut` returns; empty for those of the micro-batches.
      prices: Prices that select the cheapest of several allowed shapes.
    """
    whole, share = len(rows), shares(len(rows), replicas)[replica]
    total = float(store.weights[rows].sum(dtype=np.float64))
    rows = by_length(store, rows)[share]
    lengths, shapes = store.lengths(rows), store.shapes[rows]
    cuts = (cut(shapes, micro_batch) if len(rows) else np.zeros(1)).astype(np.int32)
    starts = store.offsets[rows]
    tokens = [store.token_ids[a : a + n] for a, n in zip(starts, lengths, strict=True)]
    return Window(
        token_ids=np.concatenate([store.token_ids[:0], *tokens]),
        row_splits=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        labels=store.labels[rows],
        weights=store.weights[rows],
        whole_weight=total,
        cuts=cuts,
        share=share,
        whole=whole,
        padded=window_cuts.fitting(shapes, cuts, allowed, prices)
        if allowed
        else window_cuts.least_shapes(shapes, cuts),
    )


def shares(examples: int, replicas: int) -> list[np.ndarray]:
    """Return the positions of each replica's examples in a sorted window, [share] int32.

    Examples are dealt out back and forth, so that all replicas get about the same number of
    tokens. Some replicas may get one example more than others, or none at all.
    """
    turn = np.arange(examples) % (2 * replicas)
    dealt = np.minimum(turn, 2 * replicas - 1 - turn)
    return [np.flatnonzero(dealt == replica).astype(np.int32) for replica in range(replicas)]


def by_length(store: TokenStore, rows: np.ndarray) -> np.ndarray:
    """Return `rows` with the shortest examples first."""
    return rows[np.argsort(store.lengths(rows), kind="stable")]


def batches_by_length(store: TokenStore, batch: int) -> list[np.ndarray]:
    """Return the numbers of all rows, in batches of similar lengths for prediction.

    A batch has at most as many tokens, including padding, as `batch` of the longest passages, and
    at most `MAX_TOKENS`. A text with more tokens than that is a batch by itself.
    """
    order = by_length(store, np.arange(len(store)))
    passages = np.concatenate([[0], np.cumsum(store.shapes[order, 0], dtype=np.int64)])
    lengths = store.shapes[order, 1]
    max_tokens = min(batch * int(lengths[-1]), MAX_TOKENS) if len(order) else 0

    def tokens(end: int) -> int:
        return int((passages[end] - passages[start]) * lengths[end - 1])

    batches, start = [], 0
    while start < len(order):
        ends = range(start + 1, len(order) + 1)
        batches.append(order[start : start + max(bisect_right(ends, max_tokens, key=tokens), 1)])
        start += len(batches[-1])
    return batches


def signature(label_shape: tuple[int | None, ...], label_dtype: Any) -> list[tf.TensorSpec]:
    """Return the shapes and dtypes of `fields`, with all sizes unknown.

    All windows of a run therefore share one trace.
    """
    return [
        tf.TensorSpec([None, 5], tf.int32, name="micro_batches"),
        tf.TensorSpec([None], tf.int32, name="tokens"),
        tf.TensorSpec([None, 3], tf.int32, name="passages"),
        tf.TensorSpec([None], tf.int32, name="positions"),
        tf.TensorSpec([None, *label_shape], label_dtype, name="labels"),
        tf.TensorSpec([None], tf.float32, name="weights"),
        tf.TensorSpec([], tf.int32, name="window_examples"),
        tf.TensorSpec([], tf.float32, name="window_weight"),
    ]


def fields(window: Window) -> tuple[Any, ...]:
    """Return the fields of a padded window that an update takes as input, as in `signature`."""
    padded = pad(window.token_ids, window.row_splits, window.cuts, window.padded)
    weights, total = window.weights, window.whole_weight
    return (
        padded.micro_batches,
        padded.tokens,
        padded.passages,
        padded.of_rows(window.positions),
        padded.of_rows(window.labels),
        padded.of_rows(np.ones(window.examples, np.float32) if weights is None else weights),
        np.int32(window.window_examples),
        np.float32(window.window_examples if total is None else total),
    )
