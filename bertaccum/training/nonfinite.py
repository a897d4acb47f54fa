"""The error for losses and gradients that are not finite; it names the place and a remedy."""

from __future__ import annotations

import math

import numpy as np

from bertaccum.bert.precision import resolved_precision
from bertaccum.data.windows import Window
from bertaccum.errors import DivergedError

# Maximum number of rows that the error lists.
_NAMED_ROWS = 8


def not_finite(
    update: int,
    in_a_row: int,
    rows: np.ndarray,
    windows: list[Window],
    losses: list[list[float]],
    numbers: np.ndarray,
    precision: str,
) -> DivergedError:
    """Return the error for too many consecutive updates whose loss or gradient is not finite.

    Args:
      update: Number of the last of these updates, counted from 1.
      in_a_row: Number of these updates.
      rows: Indices in the token store of the window's examples, sorted by length, [examples] int.
      windows: This worker's shares of the window.
      losses: Losses of the micro-batches of each share.
      numbers: Row number in train.tsv of each example in the token store, [examples] int.
      precision: The run's `precision` option.
    """
    what = "gradient of the window"
    for window, own in zip(windows, losses, strict=True):
        bad = [number for number, loss in enumerate(own) if not math.isfinite(loss)]
        if bad:
            what = f"loss of micro-batch {bad[0] + 1} of {window.micro_steps}"
            rows = rows[window.positions[window.cuts[bad[0]] : window.cuts[bad[0] + 1]]]
            break
    named = ", ".join(map(str, numbers[rows[:_NAMED_ROWS]]))
    more = f" and {len(rows) - _NAMED_ROWS} more" if len(rows) > _NAMED_ROWS else ""
    often = f", as in each of the last {in_a_row} updates" if in_a_row > 1 else ""
    return DivergedError(
        f"the {what} in update {update} is not finite (train.tsv, rows {named}{more}){often}",
        remedy(precision),
    )


def remedy(precision: str) -> str:
    """Return a hint about what to change after a loss or a gradient was not finite."""
    safer = {"mixed_float16": "mixed_bfloat16 or float32", "mixed_bfloat16": "float32"}
    safe = safer.get(resolved_precision(precision))
    return "lower `learning_rate`" + (f", or set `precision` to {safe}" if safe else "")
