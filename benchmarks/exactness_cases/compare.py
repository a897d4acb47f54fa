"""Compares trained weights, and builds the cells of the table."""

from __future__ import annotations

from typing import Any

import numpy as np

from exactness_cases.cases import Case, start_weights
from exactness_cases.columns import Column
from exactness_cases.tables import NOT_APPLICABLE

Result = dict[str, Any]
Weights = list[list[float]]
Trained = dict[tuple[str, str, str, int], Result]  # framework, dtype, training, case

# Training must change the weights by at least this much for a difference to be meaningful.
MOVED = 1e-4


def relative_difference(weights: Weights, reference: Weights) -> float:
    """Return the maximum over all variables of max |w - w_reference| / max |w_reference|."""
    return max(
        float(np.abs(np.subtract(mine, theirs)).max() / np.abs(theirs).max())
        for mine, theirs in zip(weights, reference, strict=True)
    )


def cell(trained: Trained, column: Column, cases: list[Case], number: int) -> dict[str, Any]:
    """Return the result of a column for a case, as written to the JSON file."""
    case = cases[number]
    place = {
        "row": case.row,
        "detail": case.detail or case.optimizer,
        "column": column.title,
        "dtype": column.dtype,
        "bound": case.bound(column.dtype),
    }
    if not case.allows(column.dtype):
        return place | {"outcome": NOT_APPLICABLE, "within": None}

    def of(training: str) -> Result:
        return trained[column.framework, column.dtype, training, number]

    note: dict[str, Any] = {}
    result, reference = of(column.training), of(column.reference)
    if (
        column.legacy
        and "error" in result
        and of(column.legacy).get("not_supported") != "not available"
    ):
        result, reference = of(column.legacy), of("legacy large batch")
        note |= {"note": "legacy optimizer: the new one crashed"}
    outcome = compared(result, reference, case.bound(column.dtype))
    if column.controls and case.mixed:
        exact = of("float32 large batch")["weights"]
        of_both = {"accumulated": result["weights"], "large batch": reference["weights"]}
        note["to_float32"] = {k: relative_difference(v, exact) for k, v in of_both.items()}
    return place | outcome | note


def compared(result: Result, reference: Result, bound: float | None) -> dict[str, Any]:
    """Return the difference from the reference, or the reason why it is missing."""
    if "not_supported" in result:
        outcome, message = result["not_supported"], result["message"]
        return {"outcome": outcome, "message": message, "within": None}
    if "error" in result:
        return {
            "outcome": f"crash: {result['error']}",
            "message": result["message"],
            "within": False,
        }
    weights = reference["weights"]
    start = [w.tolist() for w in start_weights([(len(w),) for w in weights])]
    moved = relative_difference(start, weights)
    difference = relative_difference(result["weights"], weights)
    if not np.isfinite(difference):
        return {"outcome": "not finite", "within": False}
    if not moved > MOVED:
        return {"outcome": "the large batch did not move", "within": False}
    return {
        "outcome": "trained",
        "difference": difference,
        "moved": moved,
        "within": None if bound is None else difference <= bound,
    }
