"""The candidates of a plan as rows of a table, in the terminal and on the report page."""

from __future__ import annotations

from typing import Any

from bertaccum.system.sizes import format_size, known_size


def candidate_cells(row: dict[str, Any], plan: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a candidate, by column; `*` marks the chosen candidate.

    Args:
      plan: The plan, with the chosen micro-batch size and savings.
    """
    chosen = all(row.get(key) == plan.get(key) for key in ("micro_batch", "recompute", "offload"))
    speed = row.get("examples_per_second")
    return {
        "micro-batch": f"{row.get('micro_batch')}{' *' * chosen}",
        "steps": f"{row.get('accumulation_steps')}",
        "recompute": str(row.get("recompute")),
        "offload": str(row.get("offload", "none")),
        "predicted": format_size(row.get("predicted_peak_bytes") or 0),
        "measured": known_size(row.get("measured_peak_bytes")),
        "examples/s": f"{speed:.1f}" if speed else "",
        "fits": "yes" if row.get("fits") else "no",
    }
