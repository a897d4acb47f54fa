"""Where the numbers ceased to be numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from bertaccum.bert.precision import resolved_precision
from bertaccum.data.windows import Window
from bertaccum.errors import RunError
from data_prep.tsv import read_tsv

# So many rows of a micro-batch are named.
_NAMED = 8


def not_finite(
    update: int,
    in_a_row: int,
    tsv: Path,
    rows: np.ndarray,
    windows: list[Window],
    losses: list[list[float]],
    precision: str,
) -> RunError:
    """Says which update, micro-batch and rows of a TSV it was.

    Args:
      update: number of the last update whose gradient was not finite, from 1.
      in_a_row: updates until then whose gradients were not finite.
      tsv: what was trained on.
      rows: [examples] of the whole window, in its order, counted from 0 in the store.
      windows: this worker's shares of it.
      losses: of their micro-batches.
      precision: of the run, as `precision`.
    """
    what = "gradient of the window"
    for window, own in zip(windows, losses, strict=True):
        bad = [number for number, loss in enumerate(own) if not math.isfinite(loss)]
        if bad:
            what = f"loss of micro-batch {bad[0] + 1} of {window.micro_steps}"
            rows = rows[window.positions[window.cuts[bad[0]] : window.cuts[bad[0] + 1]]]
            break
    lines = ", ".join(map(str, read_tsv(tsv)["row"].to_numpy()[rows[:_NAMED]]))
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return RunError(
        f"the {what} in update {update} is not finite ({tsv.name}, rows {lines}{more}),"
        f" for {in_a_row} updates in a row",
        remedy(precision),
    )


def remedy(precision: str) -> str:
    """Return what to change after a loss or a gradient was not finite.

    Args:
      precision: of the run, as `precision`.
    """
    safer = {"mixed_float16": "mixed_bfloat16 or float32", "mixed_bfloat16": "float32"}
    safe = safer.get(resolved_precision(precision))
    return "lower `learning_rate`" + (f", or pass `precision` {safe}" if safe else "")
