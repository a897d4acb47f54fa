"""Micro-batch sizes that ran out of memory, remembered for later plans."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
from pathlib import Path

from bertaccum.atomic import write_text
from bertaccum.cache import cache_folder
from bertaccum.config import StepConfig
from bertaccum.files import json_text, read_mapping
from bertaccum.planning import device_memory
from bertaccum.planning.batch_plan import Saving
from bertaccum.planning.plan_request import PlanRequest
from bertaccum.settings import field_names
from bertaccum.version import __version__

# Increase this number when a change of the code gives other measurements or plans for the same
# request.
_FORMAT = 3


_PACKAGES = ("tensorflow", "tf_keras", "tf-models-official")


def remember_out_of_memory(request: PlanRequest, micro_batch: int, saving: Saving) -> None:
    """Remember that a micro-batch size ran out of memory, for all later plans.

    Args:
      request: Request whose plan ran out of memory.
      micro_batch: Number of examples in the micro-batch.
      saving: What the plan did to save memory.
    """
    path = limits_file(request)
    values = read_mapping(path) or {}
    values[str(saving)] = min(micro_batch, values.get(str(saving), micro_batch))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json_text(values))


def learned_limits(request: PlanRequest) -> dict[str, int]:
    """Return, for each `Saving` as a string, the smallest micro-batch that ran out of memory."""
    return read_mapping(limits_file(request)) or {}


def request_digest(request: PlanRequest, *ignored: str) -> str:
    """Return a digest of everything that decides the measurements and the plan.

    Args:
      request: Request to the planner.
      *ignored: Names of options to leave out.
    """
    names = field_names(StepConfig) - set(ignored)
    # Other parts of the digest contain what these options select.
    names -= {"data", "task", "model", "bert_config", "init_checkpoint", "vocab", "memory_limit"}
    names -= {"offload_folder"}  # It decides where on the host, which matters little.
    parts = [
        _FORMAT,
        __version__,
        {name: importlib.metadata.version(name) for name in _PACKAGES},
        request.inputs.source.name,
        dataclasses.asdict(request.inputs.source.encoder),
        [request.inputs.labels.task, request.inputs.outputs],
        {name: getattr(request.config, name) for name in sorted(names)},
        request.inputs.store_digests,
        request.limit_bytes,
        request.memory_bytes is not None,
        [request.devices, request.shared],
        [device_memory.device_name(), os.cpu_count()],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def limits_file(request: PlanRequest) -> Path:
    key = request_digest(request, "target_batch", "micro_batch", "recompute", "offload")
    return cache_folder() / "plans" / f"{key}.learned.json"
