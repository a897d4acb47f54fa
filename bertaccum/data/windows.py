"""Which examples make up each update, and how they are cut: a pure function of the position.

Nothing here is drawn as the run goes along: the order of an epoch follows from the
seed and the epoch's number, a window from its place in the epoch. So any update can
be found again without those before it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.data.token_store import TokenStore
from bertaccum.data.window_cuts import Cut, cut_by_count


@dataclass(frozen=True)
class Window:
    """The examples of one update, or a replica's share of them, and where they are cut.

    Args:
      token_ids: [tokens] int32, the examples' tokens one after the other, shortest first.
      row_splits: [examples + 1] int64, where each example's tokens start.
      labels: [examples] int32.
      cuts: [micro_steps + 1] int32, the first example of each micro-batch, and the end.
      share: [examples] where they stand in the whole window; None if they are all of it.
      whole: examples in the whole window; None if these are all.
    """

    token_ids: np.ndarray
    row_splits: np.ndarray
    labels: np.ndarray
    cuts: np.ndarray
    share: np.ndarray | None = None
    whole: int | None = None

    @property
    def examples(self) -> int:
        return len(self.labels)

    @property
    def micro_steps(self) -> int:
        return len(self.cuts) - 1

    @property
    def positions(self) -> np.ndarray:
        """[examples] int32, where they stand in the whole window."""
        return np.arange(self.examples, dtype=np.int32) if self.share is None else self.share

    @property
    def window_examples(self) -> int:
        """Examples in the whole window, those of all replicas."""
        return self.examples if self.whole is None else self.whole

    @property
    def padded_tokens(self) -> int:
        """Tokens that are computed: each micro-batch is padded to its longest, its last."""
        lengths = np.diff(self.row_splits)
        return int((np.diff(self.cuts) * lengths[self.cuts[1:] - 1]).sum())


@functools.lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, examples: int) -> np.ndarray:
    """The order of an epoch: [examples] int64, the same on every machine and numpy.

    Sorting raw random numbers, because numpy promises the bits of a bit generator but
    not the order that `Generator.permutation` makes of them.
    """
    raw = np.random.Philox(key=[seed, epoch]).random_raw(examples)
    return np.argsort(raw, kind="stable")


def updates_per_epoch(examples: int, target_batch: int) -> int:
    """Windows in an epoch; the last may be short, and is weighted exactly."""
    return math.ceil(examples / target_batch)


def updates_between(every: int | float | None, per_epoch: int) -> int:
    """The updates from one evaluation to the next: a number, or with a point, of epochs."""
    if isinstance(every, int):
        return every
    return max(round((1.0 if every is None else every) * per_epoch), 1)


def window_rows(update: int, examples: int, target_batch: int, seed: int) -> tuple[int, np.ndarray]:
    """The epoch (from 0) and the rows of update number `update` (from 0)."""
    epoch, position = divmod(update, updates_per_epoch(examples, target_batch))
    start = position * target_batch
    return epoch, permutation(seed, epoch, examples)[start : start + target_batch]


def make_window(
    store: TokenStore,
    rows: np.ndarray,
    micro_batch: int,
    cut: Cut = cut_by_count,
    replica: int = 0,
    replicas: int = 1,
) -> Window:
    """Gathers `rows`, sorted by length so that each micro-batch pads to its own longest.

    The order inside a window does not matter to its update, so sorting costs nothing
    in exactness and saves most of the padding.

    Args:
      store: the examples.
      rows: of the window.
      micro_batch: as `cut` takes it.
      cut: a function of the sorted lengths and the micro-batch, to where micro-batches start.
      replica, replicas: whose share of the rows to take, of how many.
    """
    whole, share = len(rows), shares(len(rows), replicas)[replica]
    rows = by_length(store, rows)[share]
    lengths = store.lengths(rows)
    starts = store.offsets[rows]
    tokens = [store.token_ids[a : a + n] for a, n in zip(starts, lengths, strict=True)]
    return Window(
        token_ids=np.concatenate([store.token_ids[:0], *tokens]),
        row_splits=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        labels=store.labels[rows],
        cuts=(cut(lengths, micro_batch) if len(rows) else np.zeros(1)).astype(np.int32),
        share=share,
        whole=whole,
    )


def shares(examples: int, replicas: int) -> list[np.ndarray]:
    """Which examples of a window, sorted by length, each replica gets: [share] int32.

    Dealt out back and forth, so that all get about as many tokens; some get one example more
    than others, or none.
    """
    turn = np.arange(examples) % (2 * replicas)
    dealt = np.minimum(turn, 2 * replicas - 1 - turn)
    return [np.flatnonzero(dealt == replica).astype(np.int32) for replica in range(replicas)]


def by_length(store: TokenStore, rows: np.ndarray) -> np.ndarray:
    """The same rows, shortest examples first."""
    return rows[np.argsort(store.lengths(rows), kind="stable")]


def batches_by_length(store: TokenStore, batch: int) -> list[np.ndarray]:
    """The rows of all examples, by length, so many at a time: for what needs no order."""
    order = by_length(store, np.arange(len(store)))
    return [order[start : start + batch] for start in range(0, len(store), batch)]


# [tokens], [examples + 1], [examples], [micro_steps + 1], [examples], []: what `fields` gives.
# Every size is open, so that all windows share one trace.
SIGNATURE = [
    tf.TensorSpec([None], tf.int32),
    tf.TensorSpec([None], tf.int64),
    tf.TensorSpec([None], tf.int32),
    tf.TensorSpec([None], tf.int32),
    tf.TensorSpec([None], tf.int32),
    tf.TensorSpec([], tf.int32),
]


def fields(window: Window) -> tuple[Any, ...]:
    """What the update is given of a window: as in `SIGNATURE`."""
    return (
        window.token_ids,
        window.row_splits,
        window.labels,
        window.cuts,
        window.positions,
        np.int32(window.window_examples),
    )
