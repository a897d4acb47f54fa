"""The plan of a run: measured in a process of its own, kept, and taken again.

What was measured is kept in the user's cache, under a digest of all that decides it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
from pathlib import Path
from typing import Any

from bertaccum.bert.download import cache_folder
from bertaccum.bert.model_source import find_dimensions
from bertaccum.config import PlanConfig, StepConfig
from bertaccum.data.data_folder import read_labels, tsvs_to_plan_with
from bertaccum.data.labels import Labels
from bertaccum.files import json_text, read_mapping, write_text
from bertaccum.planning import device_memory
from bertaccum.planning.batch_plan import BatchPlan, PlanResult
from bertaccum.planning.rehearsal import Subject, rehearse
from bertaccum.progress import Progress
from bertaccum.settings import AUTO, field_names, size_in_bytes
from bertaccum.version import __version__

# Raise when the same options would be measured or chosen otherwise.
_FORMAT = 2
_PACKAGES = ("tensorflow", "tf_keras", "tf-models-official")


def plan(config: PlanConfig, progress: Progress) -> PlanResult:
    """Plans for the options, and writes the plan to `config.out`.

    Without the default's data, or with a vocabulary that has yet to be downloaded, examples are
    taken to be of full length.

    Args:
      config: the options.
      progress: called with what is being done.

    Raises:
      ConfigError, InputError: the data or the model cannot be used.
    """
    out, data = Path(config.out), Path(config.data)
    tsvs = prepared = tsvs_to_plan_with(config)
    labels = read_labels(data) if prepared else Labels(["0", "1"], ["0", "1"])
    source = find_dimensions(config, progress)
    if not source.vocabulary:
        tsvs = []
    memory = size_in_bytes("--device-memory", config.device_memory)
    if memory is not None:
        memory = device_memory.memory_for_tensors(memory)
    report = make_report(Subject(config, source, labels, tsvs, memory), progress, config.fresh)
    write_text(out, json_text(report.values))
    if not tsvs:
        lacking = f"the vocabulary of {source.name}" if prepared else f"prepared data in {data}"
        timed_on = f"{report.timed_on}: there is no {lacking} yet"
        report = dataclasses.replace(report, timed_on=timed_on)
    return report


def make_report(subject: Subject, progress: Progress, fresh: bool = False) -> PlanResult:
    """Plans, or takes what was planned before for the same subject on the same machine.

    Args:
      subject: what to plan for.
      progress: called with what is being done.
      fresh: measure again, and forget what ran out of memory.

    Raises:
      BertAccumError: the data or the model cannot be used.
    """
    path = cache_folder() / "plans" / f"{_key(subject)}.json"
    learned = _learned_path(subject)
    if fresh:
        path.unlink(missing_ok=True)
        learned.unlink(missing_ok=True)
    values = read_mapping(path)
    cached = values is not None
    if values is None:
        values = rehearse(subject, progress)
        if values["micro_batch"] is not None:  # Another time there may be more memory free.
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json_text(values))
    if subject.config.micro_batch == AUTO:
        values = _heed(values, read_mapping(learned))
    tsvs = subject.tsvs
    timed_on = f"windows of {tsvs[0].parent}" if tsvs else "windows of full length"
    return PlanResult(values, cached, timed_on)


def remember_out_of_memory(subject: Subject, micro_batch: int, recompute: str) -> None:
    """Keeps in mind that so many examples were too many, for all plans to come."""
    path = _learned_path(subject)
    values = read_mapping(path) or {}
    values[recompute] = min(micro_batch, values.get(recompute, micro_batch))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json_text(values))


def learned_limits(subject: Subject) -> dict[str, int]:
    """The micro-batches that have run out of memory, by kind of recomputation."""
    return read_mapping(_learned_path(subject)) or {}


def _key(subject: Subject, *ignored: str) -> str:
    """A digest of all that decides what is measured and chosen."""
    names = field_names(StepConfig) - set(ignored)
    # What these mean is in the other parts.
    names -= {"data", "model", "bert_config", "init_checkpoint", "vocab", "memory_limit"}
    parts = [
        _FORMAT,
        __version__,
        {name: importlib.metadata.version(name) for name in _PACKAGES},
        subject.source.name,
        dataclasses.asdict(subject.source.encoder),
        len(subject.labels.values),
        {name: getattr(subject.config, name) for name in sorted(names)},
        subject.store_digests,
        subject.limit_bytes,
        subject.memory_bytes is not None,
        [subject.devices, subject.shared],
        [device_memory.device_name(), os.cpu_count()],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _learned_path(subject: Subject) -> Path:
    key = _key(subject, "target_batch", "micro_batch", "recompute")
    return cache_folder() / "plans" / f"{key}.learned.json"


# --- What was learned ---------------------------------------------------------------


def _heed(values: dict[str, Any], learned: dict[str, int] | None) -> dict[str, Any]:
    """The plan, or the next best one that is smaller than what has run out of memory."""
    if not learned or values["micro_batch"] is None:
        return values

    def too_large(candidate: dict[str, Any]) -> bool:
        return candidate["micro_batch"] >= learned.get(candidate["recompute"], math.inf)

    values = values | {"learned_limits": learned}
    if not too_large(values):
        return values
    left = [c for c in values["candidates"] if c["fits"] and not too_large(c)]
    if not left:
        return values  # What fails again will be cut smaller again.
    best = max(left, key=lambda c: (c["examples_per_second"] or 0.0, c["micro_batch"]))
    taken = {f.name: best[f.name] for f in dataclasses.fields(BatchPlan)}
    tried = ", ".join(f"{size} ({kind})" for kind, size in learned.items())
    return (
        values
        | taken
        | {
            "examples_per_second": best["examples_per_second"],
            "peak_memory_bytes": best["measured_peak_bytes"],
            "why": f"micro-batches of {tried} ran out of memory before; `bertaccum plan --fresh`"
            " forgets that",
        }
    )
