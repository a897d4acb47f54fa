"""Whether a run compiles its steps, which is decided once and recorded."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from bertaccum.data.window_cuts import PRICES, Prices
from bertaccum.options.commands import TrainConfig
from bertaccum.options.fields import ON
from bertaccum.planning.compile_cost import should_compile
from bertaccum.planning.measurement import PlanRequest
from bertaccum.planning.plan_result import PlanResult
from bertaccum.system.progress import Progress

# Time to compile a shape if it was not measured, in tokens: 5 seconds of a fast GPU.
_COMPILE_TOKENS = 1e6


@dataclass(frozen=True)
class Compilation:
    """Whether steps are compiled, and the prices by which windows are cut.

    Args:
      compile: Whether steps are compiled.
      prices: Prices of micro-steps.
      compile_tokens: Time to compile the steps for a shape, in tokens.
      cost: What was measured, as plan.json contains it; None if nothing was.
    """

    compile: bool
    prices: Prices = PRICES
    compile_tokens: float = _COMPILE_TOKENS
    cost: dict[str, Any] | None = None

    def with_numbers(self, values: dict[str, Any]) -> Compilation:
        """Return this with the numbers that `numbers` returned.

        Raises:
          ValueError, TypeError: The values are not those of `numbers`.
        """
        numbers = {name: float(value) for name, value in values.items()}
        if not all(0 < number < math.inf for number in numbers.values()):
            raise ValueError(f"a number is not positive and finite: {values}")
        tokens, prices = numbers.pop("compile_tokens"), Prices(**numbers)
        return dataclasses.replace(self, prices=prices, compile_tokens=tokens)

    def numbers(self) -> dict[str, float]:
        """Return the numbers that decide how windows are cut."""
        return dataclasses.asdict(self.prices) | {"compile_tokens": self.compile_tokens}

    def record(self) -> dict[str, Any]:
        """Return the values for plan.json."""
        values = {
            "prices": dataclasses.asdict(self.prices),
            "compile_tokens": self.compile_tokens,
            "compile_cost": self.cost,
        }
        if self.compile and self.cost:
            values["peak_memory_bytes"] = self.cost["peak_bytes"]
        return values


def decide(
    config: TrainConfig,
    request: PlanRequest,
    planned: PlanResult,
    progress: Progress,
    workers: int = 1,
) -> Compilation:
    """Decide whether a run compiles its steps, and measure if that can matter.

    Several workers measure nothing: their devices are in use, and they do not wait so long.

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
