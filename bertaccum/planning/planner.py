"""The planner: measures plans in a separate process and caches them.

Measurements are stored in the user's cache, keyed by a digest of everything they depend on.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from bertaccum.options.fields import AUTO
from bertaccum.planning.batch_plan import BatchPlan, PlanResult, Saving
from bertaccum.planning.measured_plan import measure_plan
from bertaccum.planning.plan_request import PlanRequest, learned_limits, limits_file, request_digest
from bertaccum.system.cache import cache_folder, evict, prepare_cache, read_cached, write_cached
from bertaccum.system.progress import Progress


def make_report(request: PlanRequest, progress: Progress, fresh: bool = False) -> PlanResult:
    """Return the plan for a request, from the cache if the same request was measured before.

    With `precision` auto on a GPU that supports half precision, this is the faster one of two
    plans: in half precision and in float32.

    Args:
      request: Request to the planner.
      progress: Called with the current activity.
      fresh: Whether to measure again, and forget which sizes ran out of memory.

    Raises:
      BertAccumError: The data or the model cannot be used.
    """
    found: dict[str, PlanResult] = {}
    for name in request.precisions:
        fits = any(result.plan for result in found.values())
        found[name] = _planned(request.in_precision(name), progress, fresh, keep_failure=fits)
    speeds = {name: result.values["examples_per_second"] for name, result in found.items()}
    best = max(found, key=lambda name: speeds[name] or 0.0)
    values = found[best].values | {
        "precisions": speeds,
        "why": found[best].values["why"] + _compared(found, best),
        "planning_seconds": sum(result.values["planning_seconds"] for result in found.values()),
    }
    cached = all(result.cached for result in found.values())
    return dataclasses.replace(found[best], values=values, cached=cached)


def agreed_precision(told: list[dict[str, float | None]]) -> str:
    """Return the precision in which a run is fastest; the slowest worker decides its speed.

    Args:
      told: For each worker, the speed in each precision that it can use, in examples/s; None if it
        was not measured, or if no plan fits.
    """
    common = [name for name in told[0] if all(name in speeds for speeds in told)]
    return max(common, key=lambda name: min(speeds[name] or 0.0 for speeds in told))


def _compared(found: dict[str, PlanResult], best: str) -> str:
    """Return the end of the reason for the best plan: how fast the other precision is."""
    other = next((name for name in found if name != best), None)
    if other is None or found[best].plan is None:
        return ""
    if found[other].plan is None:
        return f"; nothing fits in {other}"
    one, two = (found[name].values["examples_per_second"] for name in (best, other))
    # A plan that avoids sizes that ran out of memory before may never have been timed.
    return f"; {one:.1f} examples/s in {best}, {two:.1f} in {other}" if one and two else ""


def _planned(
    request: PlanRequest, progress: Progress, fresh: bool, keep_failure: bool
) -> PlanResult:
    """Return the plan for a request that names its precision.

    Args:
      request, progress, fresh: Arguments of `make_report`.
      keep_failure: Whether another precision fits, so that it is not measured again and again that
        nothing fits in this one.
    """
    path = cache_folder() / "plans" / f"{request_digest(request)}.json"
    values = None if fresh else read_cached(path, progress)
    if values is not None and values["micro_batch"] is None and not keep_failure:
        values = None
    cached = values is not None
    if values is None:
        prepare_cache(progress)
        values = measure_plan(request, progress)
        if fresh:
            evict(path)
            evict(limits_file(request))
        # Otherwise, do not cache that nothing fits: later, more memory may be free.
        if values["micro_batch"] is not None or keep_failure:
            write_cached(path, values, progress)
    if request.config.micro_batch == AUTO:
        values = _avoiding_learned_limits(values, learned_limits(request, progress))
    tsvs = request.inputs.tsvs
    timed_on = f"windows of {tsvs[0].parent}" if tsvs else "full-length windows"
    return PlanResult(values, cached, timed_on)


def _avoiding_learned_limits(values: dict[str, Any], learned: dict[str, int]) -> dict[str, Any]:
    """Return the plan, or the next best one if its size has run out of memory before."""
    if not learned or values["micro_batch"] is None:
        return values

    def too_large(candidate: dict[str, Any]) -> bool:
        saving = Saving(candidate["recompute"], candidate["offload"])
        return candidate["micro_batch"] >= learned.get(str(saving), math.inf)

    values = values | {"learned_limits": learned}
    if not too_large(values):
        return values
    left = [c for c in values["candidates"] if c["fits"] and not too_large(c)]
    if not left:
        return values  # If memory runs out again, training reduces the size.
    best = max(left, key=lambda c: (c["examples_per_second"] or 0.0, c["micro_batch"]))
    taken = {f.name: best[f.name] for f in dataclasses.fields(BatchPlan)}
    tried = ", ".join(f"{size} (`recompute` {kind})" for kind, size in learned.items())
    taken["examples_per_second"] = best["examples_per_second"]
    taken["peak_memory_bytes"] = best["measured_peak_bytes"]
    taken["why"] = (
        f"micro-batches of {tried} ran out of memory before; plan with `fresh` to retry them"
    )
    return values | taken
