"""A request to the planner."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from bertaccum import machine_memory
from bertaccum.config import StepConfig, TrainConfig
from bertaccum.data.run_inputs import RunInputs
from bertaccum.planning import device_memory
from bertaccum.settings import field_names, size_in_bytes


@dataclass(frozen=True)
class PlanRequest:
    """A request for the fastest plan with given options, model and data.

    Args:
      config: Options of the training step.
      inputs: Model and data; without TSVs, all examples are assumed to have the maximum length.
      memory_bytes: Memory for tensors, in bytes, of the GPU to plan for if this machine does not
        have it; None to plan for this machine's device.
      devices: Number of devices of this process; the plan must fit the smallest one.
      shared: Whether each window is one replica's share of a larger window.
    """

    config: StepConfig
    inputs: RunInputs
    memory_bytes: int | None = None
    devices: int = 1
    shared: bool = False

    @functools.cached_property
    def limit_bytes(self) -> int | None:
        """The memory limit in bytes; None if a GPU's whole memory may be used.

        By default, tensors on a CPU may use half of the machine's memory.

        Raises:
          ConfigError: The limit is too small.
        """
        named = size_in_bytes("memory_limit", self.config.memory_limit)
        limit = self.memory_bytes or named
        if limit is None and device_memory.device_name() == "CPU":
            limit = machine_memory.machine_bytes() // 2
        if limit is not None:
            device_memory.check_limit(limit)
        return limit

    def step_config(self) -> TrainConfig:
        """Return the options as the configuration of a run."""
        return TrainConfig(**{name: getattr(self.config, name) for name in field_names(StepConfig)})
