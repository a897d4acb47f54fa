"""What the planner is asked."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from bertaccum.config import StepConfig, TrainConfig
from bertaccum.data.run_inputs import RunInputs
from bertaccum.planning import device_memory
from bertaccum.settings import field_names, size_in_bytes


@dataclass(frozen=True)
class PlanRequest:
    """Options, a model and its data, to find the fastest plan for.

    Args:
      config: the options.
      inputs: model and data; without TSVs all examples are of full length.
      memory_bytes: memory for tensors of a device that is not here; None for this one.
      devices: number of devices of this process; the plan suits the smallest.
      shared: windows are shares of those that more than one replica update by.
    """

    config: StepConfig
    inputs: RunInputs
    memory_bytes: int | None = None
    devices: int = 1
    shared: bool = False

    @functools.cached_property
    def limit_bytes(self) -> int | None:
        """Bytes that the device may hand out; None for all of a GPU, which itself says how much.

        A CPU without limit is taken to have half of the machine's memory for tensors.

        Raises:
          ConfigError: the limit is too small.
        """
        named = size_in_bytes("memory_limit", self.config.memory_limit)
        limit = self.memory_bytes or named
        if limit is None and device_memory.device_name() == "CPU":
            limit = device_memory.machine_bytes() // 2
        if limit is not None:
            device_memory.check_limit(limit)
        return limit

    def step_config(self) -> TrainConfig:
        """Return the options as those of a run."""
        return TrainConfig(**{name: getattr(self.config, name) for name in field_names(StepConfig)})
