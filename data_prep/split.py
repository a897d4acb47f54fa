"""Which training rows are held out, and in what order the rest is written."""

from __future__ import annotations

import numpy as np


def split_rows(rows: int, dev_fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Shuffles row numbers and cuts off the development set.

    The order is that of one random number a row, drawn from Philox's raw
    stream: NumPy promises that stream, but not what `Generator.permutation`
    makes of it, so the split stays the same over NumPy versions.

    Args:
      rows: how many there are, at least 2.
      dev_fraction: share to hold out, above 0 and below 1.
      seed: of the shuffle.

    Returns:
      (train, dev): row numbers from 0, each in one of the two, in shuffled
      order; both have at least one.
    """
    order = np.argsort(np.random.Philox(key=seed).random_raw(rows), kind="stable").tolist()
    held_out = min(max(round(rows * dev_fraction), 1), rows - 1)
    return order[held_out:], order[:held_out]


def duplicates(texts: list[bytes], train: list[int], dev: list[int]) -> int:
    """Counts development rows whose text is also in the training set.

    Args:
      texts: every row's text.
      train: row numbers of the training set.
      dev: row numbers of the development set.

    Returns:
      The number of such rows.
    """
    held_out = {texts[row] for row in dev}
    shared = {texts[row] for row in train if texts[row] in held_out}
    return sum(texts[row] in shared for row in dev)
