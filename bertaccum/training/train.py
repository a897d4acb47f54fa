"""Training: from options to a run under way, or to one that goes on."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import tensorflow as tf

from bertaccum.bert.model_source import find_model
from bertaccum.config import TrainConfig
from bertaccum.data.data_folder import read_labels, tsvs_to_train_on
from bertaccum.data.tokenizing import open_store
from bertaccum.distribution.exchange import told_by_chief
from bertaccum.distribution.topology import Topology, make_topology, replicas_to_come
from bertaccum.distribution.watchdog import Watch
from bertaccum.errors import ConfigError, InputError
from bertaccum.planning.batch_plan import largest_share, make_plan
from bertaccum.planning.device_memory import announce_limit, claim_memory
from bertaccum.planning.planner import Subject, make_report
from bertaccum.progress import Progress
from bertaccum.reporting.model_card import write_card
from bertaccum.settings import AUTO, size_in_bytes, timeout_seconds
from bertaccum.stopping import Stopping
from bertaccum.training.checkpoints import Position, read_position, saved_states
from bertaccum.training.events import Event, Finished
from bertaccum.training.initial_model import build_model
from bertaccum.training.resume import (
    check_agreement,
    check_inputs,
    is_deterministic,
    read_mark,
    resumed_config,
)
from bertaccum.training.run import Run
from bertaccum.training.run_folder import Bystander, RunFolder
from bertaccum.training.run_plan import Parts


def train(
    config: TrainConfig,
    progress: Progress,
    stopping: Stopping | None = None,
    named: dict[str, Any] | None = None,
) -> Iterator[Event]:
    """Trains one run; it goes on as long as the events are taken.

    Everything that can be wrong with the input is found before the run folder is made. Several
    workers that are started again with the same --out go on with that run: a cluster's manager
    knows one command.

    Args:
      config: the whole recipe.
      progress: called during long preparations with what, how much is done, and the total.
      stopping: what to ask, and be told by, whether to stop.
      named: the options that were given; by default those that are not at their defaults.

    Yields:
      `Started`, then `Updated` and `Evaluated` as they happen, then `Finished` or `Stopped`.

    Raises:
      ConfigError, InputError: an option or file cannot be used.
      RunError: it came to an end that it was not meant to have.
    """
    stopping = stopping or Stopping()
    named = named_options(config) if named is None else named
    _plan_apart(config, progress)
    topology = _connect(config, stopping)
    watch = Watch(topology)
    if topology.workers == 1:
        yield from _begin(config, named, topology, watch, progress, stopping)
        return
    if config.out is None:
        raise ConfigError(
            "--strategy multi-worker needs --out",
            "name the run folder: the same command, started again, goes on with it",
        )
    with watch.watched():
        path = Path(config.out)
        if told_by_chief(topology, lambda: (path / "config.yaml").is_file()):
            asked = {name: value for name, value in named.items() if name != "out"}
            yield from _go_on(path, asked, topology, watch, progress, stopping)
        else:
            yield from _begin(config, named, topology, watch, progress, stopping)


def named_options(config: TrainConfig) -> dict[str, Any]:
    """The options that are not at their defaults."""
    own = {f.name: (getattr(config, f.name), f.default) for f in fields(config)}
    return {name: value for name, (value, default) in own.items() if value != default}


def resume(
    path: Path, asked: dict[str, Any], progress: Progress, stopping: Stopping | None = None
) -> Iterator[Event]:
    """Goes on with a run from the last state that it saved, as `train`.

    Args:
      path: the run folder; of several workers only the chief reads it.
      asked: options to change; only such as change no update.
      progress, stopping: as for `train`.
    """
    # `latest` may be another run's by the time that this one ends.
    path = path.parent / path.readlink() if path.is_symlink() else path
    there = (path / "config.yaml").is_file()
    config = resumed_config(path, asked) if there else TrainConfig(**asked)
    stopping = stopping or Stopping()
    if there:
        _plan_apart(config, progress)
    topology = _connect(config, stopping)
    watch = Watch(topology)
    with watch.watched():
        # Before its lock is looked for: there has to be a run.
        told_by_chief(topology, lambda: dataclasses.asdict(resumed_config(path, asked)))
        yield from _go_on(path, asked, topology, watch, progress, stopping)


def _plan_apart(config: TrainConfig, progress: Progress) -> None:
    """Plans before the workers meet; what it finds is kept, and taken again when they have met.

    Planning needs the device for itself, and may take longer than the others wait.
    """
    local, workers = replicas_to_come(config.strategy, config.replicas)
    if workers > 1 and config.micro_batch == AUTO:
        _plan(_subject(config, progress), local, workers, progress)


def _connect(config: TrainConfig, stopping: Stopping) -> Topology:
    """Sets the memory limit, which TensorFlow heeds when it starts, and finds the devices."""
    limit = size_in_bytes("--memory-limit", config.memory_limit)
    announce_limit(limit, config.replicas or 1)
    timeout = timeout_seconds(config.collective_timeout)
    topology = make_topology(config.strategy, config.replicas, timeout)
    claim_memory()
    # TensorFlow's server has a use of its own for SIGTERM.
    stopping.hear_again()
    return topology


def _begin(
    config: TrainConfig,
    named: Iterable[str],
    topology: Topology,
    watch: Watch,
    progress: Progress,
    stopping: Stopping,
) -> Iterator[Event]:
    path = Path(told_by_chief(topology, lambda: str(RunFolder.new_path(config.out))))
    folder = RunFolder(path) if topology.chief else Bystander(path)
    parts = _prepare(config, topology, watch, progress)
    run = Run(parts, folder, stopping, progress)
    told_by_chief(topology, lambda: run.create_folder(named))
    with folder.locked():
        yield from _events(run)


def _events(run: Run) -> Iterator[Event]:
    """Yield a run's events; when it is finished, its model card is there."""
    for event in run.events():
        if isinstance(event, Finished) and run.topology.chief:
            # What a run has come to does not depend on its description.
            with contextlib.suppress(InputError, OSError):
                write_card(run.folder.path)
        yield event


def _go_on(
    path: Path,
    asked: dict[str, Any],
    topology: Topology,
    watch: Watch,
    progress: Progress,
    stopping: Stopping,
) -> Iterator[Event]:
    folder = RunFolder(path) if topology.chief else Bystander(path)

    def find() -> dict[str, Any]:
        config = resumed_config(path, asked)
        states = saved_states(folder.checkpoints)
        position = read_position(states[-1], read_mark(folder)) if states else None
        return {
            "config": dataclasses.asdict(config),
            "mark": read_mark(folder),
            "state": str(states[-1]) if states else None,
            "position": position and dataclasses.asdict(position),
        }

    with folder.locked():
        told = told_by_chief(topology, find)
        config, position = TrainConfig(**told["config"]), Position.of(told["position"])
        folder.mark = told["mark"]
        if position is not None:
            learned = {key: getattr(position, key) for key in ("micro_batch", "recompute")}
            kept = {key: value for key, value in learned.items() if key not in asked}
            config = dataclasses.replace(config, **kept)
        parts = _prepare(config, topology, watch, progress)
        told_by_chief(topology, lambda: check_inputs(folder, parts.subject))
        if "micro_batch" not in asked:
            # Why it is planned so was found out when it began.
            parts = dataclasses.replace(parts, planned=parts.planned | folder.read_plan())
        run = Run(parts, folder, stopping, progress)
        if position is None:
            folder.rewind(0, 0)
        else:
            told_by_chief(topology, lambda: run.restore(Path(told["state"]), position))
            run.share_state(position)
        yield from _events(run)


def _prepare(config: TrainConfig, topology: Topology, watch: Watch, progress: Progress) -> Parts:
    subject = _subject(config, progress)
    source, labels, tsvs = subject.source, subject.labels, subject.tsvs
    check_agreement(topology, config, subject)
    watch.doing("planning")
    planned = _plan(subject, topology.local_replicas, topology.workers, progress)
    config = dataclasses.replace(
        config, micro_batch=planned["micro_batch"], recompute=planned["recompute"]
    )
    watch.doing("reading data and weights")
    train_store, dev_store = (
        open_store(tsv, labels, source.vocabulary, config.max_seq_length, progress, digest)
        for tsv, digest in zip(tsvs, subject.store_digests, strict=True)
    )
    if is_deterministic(config.deterministic):
        tf.config.experimental.enable_op_determinism()
    with topology.strategy.scope():
        model = build_model(config, source, len(labels.values), subject.takes_head)
    return Parts(config, subject, planned, model, train_store, dev_store, topology, watch)


def _subject(config: TrainConfig, progress: Progress) -> Subject:
    data = Path(config.data)
    tsvs = tsvs_to_train_on(data)
    labels, source = read_labels(data), find_model(config, progress)
    return Subject(config, source, labels, tsvs)


def _plan(
    subject: Subject, local_replicas: int, workers: int, progress: Progress
) -> dict[str, Any]:
    """What goes into `plan.json`: as measured, or as the user said."""
    config, whole = subject.config, subject.config.target_batch
    replicas = local_replicas * workers
    if config.micro_batch == AUTO:
        # Each replica has its share of the window, and on each worker's card as fits there.
        if replicas > 1:
            share = largest_share(config.target_batch, replicas)
            config = dataclasses.replace(config, target_batch=share)
            subject = dataclasses.replace(
                subject, config=config, devices=local_replicas, shared=True
            )
        report = make_report(subject, progress)
        report.taken()
        return report.values | {"target_batch": whole, "replicas": replicas}
    kind = "none" if config.recompute == AUTO else config.recompute
    size = int(config.micro_batch)
    plan = make_plan(config.target_batch, size, kind, config.cut, replicas)
    return dataclasses.asdict(plan) | {"why": "as --micro-batch says"}
