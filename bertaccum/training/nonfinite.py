"""Losses and gradients that are not finite: where they occurred, and what to change."""

from __future__ import annotations

import math

import numpy as np

from bertaccum.bert.precision import resolved_precision
from bertaccum.data.windows import Window
from bertaccum.errors import RunError


class NotFiniteError(RunError):
    """A loss or a gradient was not finite for too many updates in a row.

    Args:
      update: number of the last of these updates, from 1.
      in_a_row: how many there were.
      rows: [examples] of the whole window, in its order, counted from 0 in the token store.
      windows: this worker's shares of it.
      losses: of their micro-batches.
      precision: of the run, as the option.
    """

    def __init__(
        self,
        update: int,
        in_a_row: int,
        rows: np.ndarray,
        windows: list[Window],
        losses: list[list[float]],
        precision: str,
    ) -> None:
        what = "gradient of the window"
        for window, own in zip(windows, losses, strict=True):
            bad = [number for number, loss in enumerate(own) if not math.isfinite(loss)]
            if bad:
                what = f"loss of micro-batch {bad[0] + 1} of {window.micro_steps}"
                rows = rows[window.positions[window.cuts[bad[0]] : window.cuts[bad[0] + 1]]]
                break
        self.rows = rows
        super().__init__(
            f"the {what} in update {update} is not finite, for {in_a_row} updates in a row",
            remedy(precision),
        )


def remedy(precision: str) -> str:
    """Return what to change after a loss or a gradient was not finite.

    Args:
      precision: of the run, as the option.
    """
    safer = {"mixed_float16": "mixed_bfloat16 or float32", "mixed_bfloat16": "float32"}
    safe = safer.get(resolved_precision(precision))
    return "lower `learning_rate`" + (f", or pass `precision` {safe}" if safe else "")
