"""A request to the planner, and the micro-batch sizes that ran out of memory for such requests."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
from dataclasses import dataclass
from pathlib import Path

from bertaccum.bert.precision import candidate_precisions, resolved_precision
from bertaccum.data.run_inputs import RunInputs
from bertaccum.distribution import device_memory
from bertaccum.options.commands import StepConfig, TrainConfig
from bertaccum.options.fields import AUTO, field_names, size_in_bytes
from bertaccum.planning.batch_plan import Saving
from bertaccum.system import machine_memory
from bertaccum.system.cache import cache_folder, read_cached, write_cached
from bertaccum.system.machine_cores import usable_cores
from bertaccum.system.progress import Progress, silent
from bertaccum.version import __version__

# Increase this number when a change of the code gives other measurements or plans for the same
# request.
_FORMAT = 6
_PACKAGES = ("tensorflow", "tf_keras", "tf-models-official")


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

    @property
    def precisions(self) -> list[str]:
        """The precisions to compare, the default one first."""
        if self.memory_bytes is not None and self.config.precision == AUTO:
            return ["float32"]  # A simulated GPU computes on the CPU.
        found = candidate_precisions(self.config.precision)
        # A run measures nothing if `micro_batch` is set, so its plan must not depend on speeds.
        return found if self.config.micro_batch == AUTO else found[:1]

    def in_precision(self, name: str) -> PlanRequest:
        """Return the same request with another `precision`."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, precision=name))

    def step_config(self) -> TrainConfig:
        """Return the options as the configuration of a run."""
        return TrainConfig(**{name: getattr(self.config, name) for name in field_names(StepConfig)})


def remember_out_of_memory(request: PlanRequest, micro_batch: int, saving: Saving) -> None:
    """Remember that a micro-batch size ran out of memory, for all later plans.

    Args:
      request: Request whose plan ran out of memory.
      micro_batch: Number of examples in the micro-batch.
      saving: How the plan saved memory.
    """
    path = limits_file(request)
    values = read_cached(path, silent) or {}
    values[str(saving)] = min(micro_batch, values.get(str(saving), micro_batch))
    write_cached(path, values, silent)


def learned_limits(request: PlanRequest, progress: Progress = silent) -> dict[str, int]:
    """Return, for each `Saving` as a string, the smallest micro-batch that ran out of memory.

    Args:
      request: Request to the planner.
      progress: Told if the file of limits is damaged; they are then learned again.
    """
    return read_cached(limits_file(request), progress) or {}


def request_digest(request: PlanRequest, *ignored: str) -> str:
    """Return a digest of everything that decides the measurements and the plan.

    Args:
      request: Request to the planner.
      *ignored: Names of options to leave out.
    """
    names = field_names(StepConfig) - set(ignored)
    # Other parts of the digest contain what these options select.
    names -= {"data", "task", "model", "bert_config", "init_checkpoint", "vocab", "memory_limit"}
    # The folder only decides where host tensors are, and the search does not compile.
    names -= {"precision", "offload_folder", "compile"}
    parts = [
        _FORMAT,
        __version__,
        {name: importlib.metadata.version(name) for name in _PACKAGES},
        request.inputs.source.name,
        dataclasses.asdict(request.inputs.source.encoder),
        [request.inputs.labels.task, request.inputs.labels.outputs],
        {name: getattr(request.config, name) for name in sorted(names)},
        resolved_precision(request.config.precision),
        request.inputs.store_digests,
        request.limit_bytes,
        request.memory_bytes is not None,
        [request.devices, request.shared],
        [device_memory.device_name(), usable_cores()],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def limits_file(request: PlanRequest) -> Path:
    key = request_digest(request, "target_batch", "micro_batch", "recompute", "offload")
    return cache_folder() / "plans" / f"{key}.learned.json"
