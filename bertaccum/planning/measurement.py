"""Requests to the planner, and the process that measures training steps, which may crash.

The process runs `step_measurement`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bertaccum.bert.precision import candidate_precisions, resolved_precision
from bertaccum.data.run_inputs import RunInputs
from bertaccum.distribution import device_memory
from bertaccum.options.adapting import unused_options
from bertaccum.options.cards import Card
from bertaccum.options.commands import StepConfig
from bertaccum.options.fields import AUTO, field_names, size_in_bytes
from bertaccum.options.offload_rungs import OFFLOAD, OFFLOAD_NONE
from bertaccum.options.pretraining import PretrainConfig, train_config
from bertaccum.planning.plan import Shape
from bertaccum.system import machine
from bertaccum.system.child_process import ChildProcess
from bertaccum.system.machine import usable_cores
from bertaccum.system.progress import Progress
from bertaccum.version import __version__

# Increase this number when a change of the code gives other measurements or plans for the same
# request.
_FORMAT = 9
_PACKAGES = ("tensorflow", "tf_keras", "tf-models-official")


@dataclass(frozen=True)
class PlanRequest:
    """A request for the fastest plan with given options, model and data.

    Args:
      config: Options of the training step.
      inputs: Model and data; without TSVs, all examples are assumed to have the maximum length.
      memory_bytes: Memory for tensors of a GPU that this machine does not have; None to plan for
        this machine's device.
      card: That GPU, for which times are calculated.
      devices: Number of devices of this process; the plan must fit the smallest one.
      shared: Whether each window is one replica's share of a larger window.
    """

    config: StepConfig
    inputs: RunInputs
    memory_bytes: int | None = None
    card: Card | None = None
    devices: int = 1
    shared: bool = False

    @functools.cached_property
    def limit_bytes(self) -> int | None:
        """The memory limit; None if a GPU's whole memory may be used.

        By default, tensors on a CPU may use half of the machine's memory.

        Raises:
          ConfigError: The limit is too small.
        """
        named = size_in_bytes("memory_limit", self.config.memory_limit)
        limit = self.memory_bytes or named
        if limit is None and device_memory.device_name() == "CPU":
            limit = machine.machine_bytes() // 2
        if limit is not None:
            device_memory.check_limit(limit)
        return limit

    @property
    def precisions(self) -> list[str]:
        """The precisions to compare, the default one first."""
        if self.card is not None and self.config.precision == AUTO:
            return [self.card.precision]
        found = candidate_precisions(self.config.precision)
        # A run measures nothing if `micro_batch` is set, so its plan must not depend on speeds.
        return found if self.config.micro_batch == AUTO else found[:1]

    @property
    def timed_on(self) -> str:
        """Description of the windows on which speeds are measured."""
        tsvs, corpus = self.inputs.tsvs, self.inputs.corpus
        if corpus is not None:
            return f"windows of {corpus.files[0]}"
        return f"windows of {tsvs[0].parent}" if tsvs else "full-length windows"

    def in_precision(self, name: str) -> PlanRequest:
        """Return the same request with another `precision`."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, precision=name))

    def job(self, offload: str, limit: int | None, accumulation_steps: int) -> dict[str, Any]:
        """Return what a measurement process builds, as values of JSON.

        Args:
          offload: What is offloaded, one of `OFFLOAD`.
          limit: Memory limit in bytes; None for a GPU's whole memory.
          accumulation_steps: Number of micro-steps; with 1 there are no accumulators.
        """
        source, options = self.inputs.source, self.config
        config = train_config({name: getattr(options, name) for name in field_names(StepConfig)})
        recompute = "layer" if options.recompute == "layer" else "none"
        config = dataclasses.replace(config, offload=offload, recompute=recompute)
        if self.card is not None and config.precision == "mixed_float16":
            # CPUs emulate float16 slowly, and tensors in bfloat16 have the same size.
            config = dataclasses.replace(config, precision="mixed_bfloat16")
        return {
            "config": dataclasses.asdict(config),
            "encoder": dataclasses.asdict(source.encoder),
            "labels": dataclasses.asdict(self.inputs.labels),
            "vocabulary": source.vocabulary and dataclasses.asdict(source.vocabulary),
            "tsvs": [str(tsv) for tsv in self.inputs.tsvs],
            "corpus": self._corpus(),
            "unlabelled": self._unlabelled(),
            "limit_bytes": limit,
            "accumulation_steps": accumulation_steps,
            "devices": self.devices,
        }

    def _corpus(self) -> dict[str, Any] | None:
        """Return the arguments of `cached_stores` for pretraining, else None."""
        if not isinstance(self.config, PretrainConfig):
            return None
        (digest,), length = self.inputs.store_digests, self.config.max_seq_length
        return {"digest": digest, "length": length, "apart": self.config.apart}

    def _unlabelled(self) -> dict[str, str] | None:
        """Return the path and the digest of the store of unlabeled texts, if there are any."""
        found = self.inputs.unlabelled
        return None if found is None else {"path": str(found.path), "digest": found.store_digest}

    def digest(self, *ignored: str) -> str:
        """Return a digest of what decides measurements and plan, except for `ignored` options."""
        names = field_names(StepConfig) - set(ignored)
        # Other parts of the digest contain what these options select.
        names -= {"data", "task", "model", "bert_config", "init_checkpoint", "vocab"}
        names -= {"memory_limit", "precision"}
        # The folder only decides where host tensors are, and the search does not compile.
        names -= {"offload_folder", "compile"}
        names -= unused_options(self.config)
        parts = [
            _FORMAT,
            __version__,
            {name: importlib.metadata.version(name) for name in _PACKAGES},
            self.inputs.source.name,
            dataclasses.asdict(self.inputs.source.encoder),
            [self.inputs.labels.task, self.inputs.labels.outputs],
            {name: getattr(self.config, name) for name in sorted(names)},
            resolved_precision(self.config.precision),
            [
                *self.inputs.store_digests,
                *([u.store_digest] if (u := self.inputs.unlabelled) else []),
            ],
            self.limit_bytes,
            None if self.card is None else dataclasses.asdict(self.card),
            [self.devices, self.shared],
            [device_memory.device_name(), usable_cores()],
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Measurement:
    """The duration of an update in seconds, and memory in bytes: its peak, and before it began."""

    seconds: float
    peak_bytes: float
    resting_bytes: float = 0.0


@dataclass(frozen=True)
class MeasurementRequest:
    """One update to run and measure.

    Args:
      micro_batches: For each micro-batch, the shapes of its examples.
      recompute, offload: Fields of `Saving`. Tensors in host memory stay there.
      accumulate: Whether to use accumulators.
      thorough: Whether to also evaluate and save a checkpoint, as a run does between updates.
      padded: Rows and length to which each micro-batch is padded; the step is then compiled. None
        for a step that is not compiled.
    """

    micro_batches: Sequence[Sequence[Shape]]
    recompute: str
    offload: str = "none"
    accumulate: bool = True
    thorough: bool = False
    padded: Sequence[Shape] | None = None


class StepMeasurer(Protocol):
    """An object that runs training steps and measures them."""

    def run(self, request: MeasurementRequest) -> Measurement | None:
        """Run one update and return its measurement; None if it ran out of memory."""


class MeasurementProcess(ChildProcess):
    """A process that runs updates and measures them; it restarts after a crash.

    Its `environment` consists of variables to set besides those of this process.

    Raises:
      RunError: The process would use the GPU, of which this process leaves too little memory.
    """

    def __init__(self, progress: Progress, environment: dict[str, str]) -> None:
        if "CUDA_VISIBLE_DEVICES" not in environment:
            hint = ", or set `micro_batch` and `compile` off"
            device_memory.check_gpu_is_free("nothing can be measured", hint)
        self._job: dict[str, Any] = {}
        self._windows, self._offload = 0, OFFLOAD_NONE
        super().__init__(
            "bertaccum.training.step_measurement", "measurement", progress, environment
        )

    def __enter__(self) -> MeasurementProcess:
        return self

    def build(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """Build what `PlanRequest.job` says, and return a description; None if it does not fit.

        Raises:
          BertAccumError: The data or the model cannot be used.
        """
        self._job, self._offload = job, job["config"].get("offload", OFFLOAD_NONE)
        answer = self.ask(job)
        if "out_of_memory" in answer:
            self.end()
            return None
        return answer

    def run(self, request: MeasurementRequest) -> Measurement | None:
        """Run one update and return its measurement; None if it ran out of memory.

        If it offloads less than an earlier one, the process is replaced by a new one.
        """
        if self.has_ended or OFFLOAD.index(request.offload) < OFFLOAD.index(self._offload):
            self.end()
            self.start()
            config = self._job["config"] | {"offload": request.offload}
            if self.build(self._job | {"config": config}) is None:
                return None
        self._offload = request.offload
        self._windows += 1
        self._progress("measurements of memory and speed", self._windows, None)
        answer = self.ask(dataclasses.asdict(request))
        return None if "out_of_memory" in answer else Measurement(**answer)
