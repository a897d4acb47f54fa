"""Whether a run compiles its steps, which is decided once and recorded."""

from __future__ import annotations

import dataclasses

from bertaccum.data.window_cuts import Prices
from bertaccum.options.commands import TrainConfig
from bertaccum.options.fields import ON
from bertaccum.planning.compile_cost import should_compile
from bertaccum.planning.measurement import PlanRequest
from bertaccum.planning.plan_result import PlanResult
from bertaccum.system.progress import Progress
from bertaccum.training.run_setup import Compilation


def decide(
    config: TrainConfig,
    request: PlanRequest,
    planned: PlanResult,
    progress: Progress,
    workers: int = 1,
) -> Compilation:
    """Decide whether a run compiles its steps, and measure if that can matter.

    Args:
      config: Options of the run.
      request: Request to the planner.
      planned: Its answer.
      progress: Called while it is measured.
      workers: Number of workers. With several, nothing is measured, because their devices are in
        use, and because they do not wait for each other so long.

    Raises:
      BertAccumError: Compiling failed, and the options demand it.
    """
    plain = Compilation(config.compile == ON, Prices(**planned.values.get("prices", {})))
    if workers > 1:
        return plain
    limits = config.epochs, config.max_updates
    compile, cost = should_compile(request, planned, *limits, progress)
    measured = dataclasses.asdict(cost) if cost else None
    if cost is None or not compile:
        return dataclasses.replace(plain, compile=compile, cost=measured)
    return Compilation(True, cost.prices, cost.compile_tokens, measured)
