"""Training: from options to a run under way, or to one that goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from bertaccum.bert.source import find_model
from bertaccum.config import AUTO, TrainConfig, size_in_bytes
from bertaccum.memory.device import limit_memory
from bertaccum.memory.plan import make_plan
from bertaccum.progress import Progress
from bertaccum.stopping import Stopping
from bertaccum.training.checkpoints import read_position, saved_states
from bertaccum.training.dataset import open_store, read_labels
from bertaccum.training.events import Event
from bertaccum.training.model import build_model
from bertaccum.training.planner import Subject, make_report
from bertaccum.training.resuming import (
    check_inputs,
    is_deterministic,
    read_mark,
    resumed_config,
)
from bertaccum.training.run import Parts, Run
from bertaccum.training.run_folder import RunFolder


def train(
    config: TrainConfig, progress: Progress, stopping: Stopping | None = None
) -> Iterator[Event]:
    """Trains one run; it goes on as long as the events are taken.

    Everything that can be wrong with the input is found before the run folder is made.

    Args:
      config: the whole recipe.
      progress: called during long preparations with what, how much is done, and the total.
      stopping: what to ask, and be told by, whether to stop.

    Yields:
      `Started`, then `Updated` and `Evaluated` as they happen, then `Finished` or `Stopped`.

    Raises:
      ConfigError, InputError: an option or file cannot be used.
      RunError: it came to an end that it was not meant to have.
    """
    folder = RunFolder(RunFolder.new_path(config.out))
    parts = _prepare(config, progress)
    run = Run(parts, folder, stopping or Stopping())
    run.create_folder()
    with folder.locked():
        yield from run.events()


def resume(
    path: Path, asked: dict[str, Any], progress: Progress, stopping: Stopping | None = None
) -> Iterator[Event]:
    """Goes on with a run from the last state that it saved, as `train`.

    Args:
      path: the run folder.
      asked: options to change; only such as change no update.
      progress, stopping: as for `train`.
    """
    # `latest` may be another run's by the time that this one ends.
    path = path.parent / path.readlink() if path.is_symlink() else path
    folder = RunFolder(path)
    config = resumed_config(path, asked)
    with folder.locked():
        folder.mark = read_mark(folder)
        states = saved_states(folder.checkpoints)
        position = read_position(states[-1], folder.mark) if states else None
        if position is not None:
            learned = {key: getattr(position, key) for key in ("micro_batch", "recompute")}
            kept = {key: value for key, value in learned.items() if key not in asked}
            config = dataclasses.replace(config, **kept)
        parts = _prepare(config, progress)
        check_inputs(folder, parts.subject)
        if "micro_batch" not in asked:
            # Why it is planned so was found out when it began.
            parts = dataclasses.replace(parts, planned=parts.planned | folder.read_plan())
        run = Run(parts, folder, stopping or Stopping())
        if position is None:
            folder.rewind(0, 0)
        else:
            run.restore(states[-1], position)
        yield from run.events()


def _prepare(config: TrainConfig, progress: Progress) -> Parts:
    limit_memory(size_in_bytes("--memory-limit", config.memory_limit))
    data = Path(config.data)
    labels = read_labels(data)
    source = find_model(config, progress)
    tsvs = [data / f"{split}.tsv" for split in ("train", "dev")]
    subject = Subject(config, source, labels, tsvs)
    planned = _plan(subject, progress)
    config = dataclasses.replace(
        config, micro_batch=planned["micro_batch"], recompute=planned["recompute"]
    )
    stores = [
        open_store(tsv, labels, source.vocabulary, config.max_seq_length, progress, digest)
        for tsv, digest in zip(tsvs, subject.store_digests, strict=True)
    ]
    if is_deterministic(config.deterministic):
        tf.config.experimental.enable_op_determinism()
    model = build_model(config, source, len(labels.values))
    return Parts(config, subject, planned, model, *stores)


def _plan(subject: Subject, progress: Progress) -> dict[str, Any]:
    """What goes into `plan.json`: as measured, or as the user said."""
    config = subject.config
    if config.micro_batch == AUTO:
        report = make_report(subject, progress)
        report.taken()
        return report.values
    kind = "none" if config.recompute == AUTO else config.recompute
    plan = make_plan(config.target_batch, int(config.micro_batch), kind, config.cut)
    return dataclasses.asdict(plan) | {"why": "as --micro-batch says"}
