"""The candidates of a plan as rows of a table, in the terminal and on the report page."""

from __future__ import annotations

from typing import Any

from bertaccum.sizes import format_size, known_size

_SAVING = ("recompute", "offload")
COLUMNS = ("micro-batch", "steps", *_SAVING, "predicted", "measured", "examples/s", "fits")
# The columns to leave out first if there is no room for all.
LEAST = ("predicted", "steps", *_SAVING, "measured")


def candidate_cells(row: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """Return the cells of a candidate, one per column; `*` marks the chosen candidate.

    Args:
      row: The candidate; those in the plans of earlier versions lack some keys.
      plan: The plan, with the chosen micro-batch size and savings.
    """
    chosen = all(row.get(key) == plan.get(key) for key in ("micro_batch", "recompute", "offload"))
    speed = row.get("examples_per_second")
    return [
        f"{row.get('micro_batch')}{' *' * chosen}",
        f"{row.get('accumulation_steps')}",
        str(row.get("recompute")),
        str(row.get("offload", "none")),
        format_size(row.get("predicted_peak_bytes") or 0),
        known_size(row.get("measured_peak_bytes")),
        f"{speed:.1f}" if speed else "",
        "yes" if row.get("fits") else "no",
    ]
