"""Whether a run compiles its steps, which is decided once and recorded."""

from __future__ import annotations

import dataclasses
import math

from bertaccum.config import TrainConfig
from bertaccum.data.window_cuts import Prices
from bertaccum.errors import RunError
from bertaccum.offload_names import offloads_sums
from bertaccum.planning.batch_plan import PlanResult
from bertaccum.planning.compile_cost import compile_cost
from bertaccum.planning.device_memory import device_name
from bertaccum.planning.plan_request import PlanRequest
from bertaccum.progress import Progress, tell
from bertaccum.settings import AUTO, OFF, ON
from bertaccum.training.run_setup import Compilation

# Compiling is measured, which takes about a minute, in runs that take at least this many seconds.
# On CPUs, compiled steps are rarely faster.
_WORTH_MEASURING = {"CPU": 3600.0, "GPU": 120.0}


def decide(
    config: TrainConfig, request: PlanRequest, planned: PlanResult, progress: Progress
) -> Compilation:
    """Decide whether a run compiles its steps, and measure if that can matter.

    Args:
      config: Options of the run.
      request: Request to the planner.
      planned: Its answer.
      progress: Called while it is measured.

    Raises:
      RunError: Compiling failed, and the options demand it.
    """
    plan, device = planned.taken(), "CPU" if device_name() == "CPU" else "GPU"
    prices = Prices(**planned.values.get("prices", {}))
    plain = Compilation(config.compile == ON, prices)
    measured = config.micro_batch == AUTO or device == "GPU"
    if config.compile == OFF or offloads_sums(plan.offload) or not measured:
        return plain
    rate, examples = (planned.values.get(k) for k in ("examples_per_second", "train_examples"))
    known = config.epochs * examples / rate if rate and examples else math.inf
    if config.compile == AUTO and known < _WORTH_MEASURING[device]:
        return plain
    try:
        cost = compile_cost(request, plan, prices, config.epochs, progress)
    except RunError as error:  # XLA needs files of CUDA that TensorFlow itself does not need.
        if config.compile == ON:
            raise
        tell(progress, f"steps are not compiled, because {error}")
        return plain
    if cost is None:
        return plain
    measured_cost = dataclasses.asdict(cost)
    if config.compile == AUTO and cost.saved_seconds <= 0:
        return dataclasses.replace(plain, cost=measured_cost)
    return Compilation(True, cost.prices, cost.compile_tokens, measured_cost)
