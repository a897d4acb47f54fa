"""Starting and resuming runs: these functions take options and yield events."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.bert.model_finder import find_model
from bertaccum.bert.precision import candidate_precisions, length_multiple
from bertaccum.bert.tokenization import tokenization_of
from bertaccum.data.run_inputs import RunInputs, read_inputs, tsvs_to_train_on
from bertaccum.data.token_store import TokenStore
from bertaccum.data.tokenizing import open_store
from bertaccum.distribution.collectives import all_gather, broadcast
from bertaccum.distribution.device_memory import announce_limit, claim_memory
from bertaccum.distribution.topology import Topology, make_topology, replicas_to_come
from bertaccum.distribution.watchdog import Watch
from bertaccum.errors import ConfigError, InputError, RunError
from bertaccum.options.commands import TrainConfig
from bertaccum.options.fields import AUTO, OFF, ON, named_options, size_in_bytes, timeout_seconds
from bertaccum.options.offload_rungs import OFFLOAD
from bertaccum.planning.measurement import PlanRequest
from bertaccum.planning.plan import Saving, largest_share, make_plan
from bertaccum.planning.plan_result import PlanResult
from bertaccum.planning.planner import agreed_precision, find_fastest_plan
from bertaccum.reporting.model_card import write_card
from bertaccum.runs.folder import Bystander, RunFolder
from bertaccum.runs.paths import target_of
from bertaccum.system.progress import Progress
from bertaccum.system.stopping import Stopping
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.prepared_labels import read_labels
from bertaccum.tasks.task import Task
from bertaccum.training.checkpoints import CUT, Position, read_saved, saved_states
from bertaccum.training.compilation import decide
from bertaccum.training.events import Event, Finished, OutOfMemory, Updated
from bertaccum.training.initial_model import build_model
from bertaccum.training.recipe import Schedule
from bertaccum.training.resume import (
    check_agreement,
    check_inputs,
    check_start,
    is_deterministic,
    read_mark,
    recorded_compilation,
    resolved_config,
    resumed_config,
)
from bertaccum.training.run import Run
from bertaccum.training.run_setup import Compilation, RunSetup, Session
from bertaccum.training.task_options import check_task_options, weighted


def train(
    config: TrainConfig,
    progress: Progress,
    stopping: Stopping | None = None,
    named: dict[str, Any] | None = None,
) -> Generator[Event, None, None]:
    """Start a run, and yield its events.

    All input errors are raised before the run folder is created. If several workers are started
    again with the same `out`, they resume that run, because a cluster manager restarts a job with
    the same command.

    Args:
      config: Options of the run.
      progress: Called during long preparations with the activity, the amount done, and the total.
      stopping: Records requests to stop, and passes them on to the run.
      named: Options that the user set; by default, those that differ from their default values.

    Yields:
      `Started`, then `Updated` and `Evaluated` as they happen, then `Finished` or `Stopped`.

    Raises:
      ConfigError, InputError: An option or file cannot be used.
      RunError: Training failed.
    """
    named = named_options(config) if named is None else named
    _plan_apart(config, progress)
    session = _connect(config, stopping, progress)
    several = session.topology.workers > 1
    if several and config.out is None:
        raise ConfigError(
            "`strategy` multi-worker needs `out`",
            "set it to the run folder, so that the same command can resume the run",
        )
    with session.watch.watched():
        path = Path(str(config.out))
        if several and broadcast(session.topology, (path / "config.yaml").is_file):
            asked = {name: value for name, value in named.items() if name != "out"}
            yield from _go_on(path, asked, session)
        else:
            yield from _begin(config, named, session)


def resume(
    path: Path, asked: dict[str, Any], progress: Progress, stopping: Stopping | None = None
) -> Generator[Event, None, None]:
    """Resume a run from its last checkpoint, and yield its events as `train` does.

    Args:
      path: Run folder; with several workers, only the chief reads it.
      asked: Options that the user set. Those that affect the updates must have their old values.
      progress, stopping: Arguments of `train`.
    """
    path = target_of(path)
    there = (path / "config.yaml").is_file()
    config = resumed_config(path, asked) if there else TrainConfig(**asked)
    if there:
        _plan_apart(config, progress)
    session = _connect(config, stopping, progress)
    with session.watch.watched():
        # A missing run must be reported before its lock file is opened.
        broadcast(session.topology, lambda: dataclasses.asdict(resumed_config(path, asked)))
        yield from _go_on(path, asked, session)


def endless_updates(
    config: TrainConfig, schedule: Schedule, progress: Progress
) -> Generator[OutOfMemory | Updated, None, None]:
    """Train with another learning rate schedule, without a run folder, evaluations or an end.

    Args:
      config: Options of the run, which must be in one process.
      schedule: Learning rate schedule.
      progress: Argument of `train`.

    Yields:
      The events of each update.

    Raises:
      ConfigError, InputError, RunError: As for `train`.
    """
    if config.compile == AUTO:
        config = dataclasses.replace(config, compile=OFF)
    session = _connect(config, None, progress)
    with _tf_compat.forgetting_custom_gradients():
        run = _prepare(config, session, Bystander(Path()), schedule=schedule)
        with contextlib.closing(run.updater):
            for number in itertools.count():
                yield from run.updater.run(number, lambda _: True)


def _plan_apart(config: TrainConfig, progress: Progress) -> None:
    """Plan before the workers connect; the cached plan is used once they are connected.

    Planning needs exclusive use of the device, and may take longer than workers wait for each
    other.
    """
    local, workers = replicas_to_come(config.strategy, config.replicas)
    if workers > 1 and config.micro_batch == AUTO:
        _plan(config, _inputs(config, progress), local, workers, progress)


def _connect(config: TrainConfig, stopping: Stopping | None, progress: Progress) -> Session:
    """Set the memory limit before TensorFlow starts, then connect the devices."""
    limit = size_in_bytes("memory_limit", config.memory_limit)
    announce_limit(limit, config.replicas or 1)
    timeout = timeout_seconds(config.collective_timeout)
    topology = make_topology(config.strategy, config.replicas, timeout)
    claim_memory()
    # TensorFlow's server has replaced the handler for SIGTERM.
    stopping = stopping or Stopping()
    stopping.reinstall()
    return Session(topology, Watch(topology), stopping, progress)


def _begin(config: TrainConfig, named: Iterable[str], session: Session) -> Iterator[Event]:
    topology = session.topology
    path = Path(broadcast(topology, lambda: str(RunFolder.new_path(config.out))))
    folder = RunFolder(path) if topology.chief else Bystander(path)
    with _tf_compat.forgetting_custom_gradients():
        run = _prepare(config, session, folder)
        broadcast(topology, lambda: run.create_folder(named))
        with folder.locked():
            folder.point_latest()
            yield from _events(run)


def _events(run: Run) -> Iterator[Event]:
    """Yield a run's events, and write its model card before the last one."""
    for event in run.events():
        if isinstance(event, Finished) and run.topology.chief:
            # A model card that cannot be written does not invalidate the run.
            with contextlib.suppress(InputError, OSError):
                write_card(run.folder.path)
        yield event


def _go_on(path: Path, asked: dict[str, Any], session: Session) -> Iterator[Event]:
    topology = session.topology
    folder = RunFolder(path) if topology.chief else Bystander(path)

    def find() -> dict[str, Any]:
        config = resumed_config(path, asked)
        states = saved_states(folder.checkpoints)
        if not states:
            check_start(folder)
        saved = read_saved(states[-1], read_mark(folder)) if states else None
        return {
            "config": dataclasses.asdict(config),
            "mark": read_mark(folder),
            "cutting": recorded_compilation(folder, config).deciding(),
            "state": str(states[-1]) if states else None,
            "saved": saved,
        }

    with folder.locked(), _tf_compat.forgetting_custom_gradients():
        told = broadcast(topology, find)
        config, saved = TrainConfig(**told["config"]), told["saved"]
        folder.mark = told["mark"]
        if saved is not None:
            kept = {key: saved[key] for key in CUT if key in saved and key not in asked}
            config = dataclasses.replace(config, **kept)
        # Keep the plan's values from when the run began, such as the reason for it, unless the
        # user now sets another micro-batch size.
        earlier = {} if "micro_batch" in asked else folder.read_plan()
        compilation = Compilation(config.compile == ON).with_numbers(told["cutting"])
        run = _prepare(config, session, folder, earlier, compilation)
        broadcast(topology, lambda: check_inputs(folder, run.inputs))
        if saved is None:
            broadcast(topology, run.start_over)
        else:
            position = Position.of(saved)
            broadcast(topology, lambda: run.restore(Path(told["state"]), position))
            run.share_state(position)
        if asked:
            lasting = resolved_config(TrainConfig(**told["config"]), run.source.name)
            broadcast(topology, lambda: folder.write_config(lasting))
        folder.point_latest()
        yield from _events(run)


def _prepare(
    config: TrainConfig,
    session: Session,
    folder: RunFolder,
    earlier: dict[str, Any] | None = None,
    compilation: Compilation | None = None,
    schedule: Schedule | None = None,
) -> Run:
    """Plan a run, read its data and weights, and return the run.

    Args:
      config: Options of the run.
      session, folder: Arguments of `Run`.
      earlier: Content of plan.json, if the run is resumed.
      compilation: What was decided when the run began, if the run is resumed.
      schedule: Learning rate schedule; None for that of the recipe.
    """
    topology, watch, progress = session.topology, session.watch, session.progress
    inputs = _inputs(config, progress)
    check_agreement(topology, config, inputs)
    watch.doing("planning")
    config, request, planned = _agreed_plan(config, inputs, topology, progress)
    batch = planned.require_plan()
    # Workers sum accumulators on the device and on the host in different ways.
    most = max(map(OFFLOAD.index, all_gather(topology, batch.offload)))
    if compilation is None:
        decided = decide(config, request, planned, workers=topology.workers, progress=progress)
        compilation = decided.with_numbers(broadcast(topology, decided.deciding))
    watch.doing("reading data and weights")
    task = make_task(inputs.labels, smoothing=config.label_smoothing)
    stores = _stores(config, inputs, task, progress)
    config = dataclasses.replace(
        resolved_config(config, inputs.source.name),
        micro_batch=batch.micro_batch,
        recompute=batch.recompute,
        offload=OFFLOAD[most],
        compile=ON if compilation.compile else OFF,
        task=inputs.labels.task,
        best_by=config.best_by or task.metrics[0],
    )
    plan_record = planned.values | compilation.record() | (earlier or {})
    if is_deterministic(config.deterministic):
        tf.config.experimental.enable_op_determinism()
    try:
        with topology.strategy.scope():
            model = build_model(config, inputs.source, inputs.labels.outputs, inputs.head)
    except tf.errors.ResourceExhaustedError:
        raise RunError(
            "the model does not fit in memory", "raise `memory_limit` or choose a smaller `model`"
        ) from None
    built = model, *stores, session, compilation, schedule
    setup = RunSetup(task, config, request, plan_record, *built)
    return Run(setup, folder)


def _stores(
    config: TrainConfig, inputs: RunInputs, task: Task, progress: Progress
) -> tuple[TokenStore, TokenStore]:
    """Return the token stores of train.tsv, with class weights and padding, and of dev.tsv."""
    source = inputs.source
    assert source.vocabulary is not None
    tokenization = tokenization_of(source.vocabulary, config)
    train_store, dev_store = (
        open_store(tsv, task, tokenization, progress, digest)
        for tsv, digest in zip(inputs.tsvs, inputs.store_digests, strict=True)
    )
    multiple = length_multiple(config.precision)
    most = source.encoder.max_position_embeddings
    return weighted(train_store, config, inputs).padded_to(multiple, most), dev_store


def _inputs(config: TrainConfig, progress: Progress) -> RunInputs:
    data = Path(config.data)
    tsvs = tsvs_to_train_on(data)
    labels, source = read_labels(data, config.task), find_model(config, progress)
    check_task_options(config, labels)
    return read_inputs(source, make_task(labels), tsvs, config)


def _agreed_plan(
    config: TrainConfig, inputs: RunInputs, topology: Topology, progress: Progress
) -> tuple[TrainConfig, PlanRequest, PlanResult]:
    """Plan in the same precision on all workers, and return the configuration that names it.

    If the user set the micro-batch size, no speeds are known, and the devices decide the precision.
    """
    local, workers = topology.local_replicas, topology.workers
    request, planned = _plan(config, inputs, local, workers, progress)
    unmeasured = dict.fromkeys(candidate_precisions(config.precision))
    told = all_gather(topology, planned.values.get("precisions", unmeasured))
    agreed = agreed_precision(told)
    config = dataclasses.replace(config, precision=agreed)
    if planned.values.get("precision", agreed) != agreed:
        # This worker has planned in each precision that it can use, so the plan is in the cache.
        planned = _plan(config, inputs, local, workers, progress)[1]
    return config, request.in_precision(agreed), planned


def _plan(
    config: TrainConfig, inputs: RunInputs, local_replicas: int, workers: int, progress: Progress
) -> tuple[PlanRequest, PlanResult]:
    """Return the request to the planner, and its answer.

    If the user set the micro-batch size, nothing is measured.
    """
    request, replicas = PlanRequest(config, inputs), local_replicas * workers
    if replicas > 1:
        # Each worker plans its replicas' shares for its own devices.
        share = largest_share(config.target_batch, replicas)
        shared = dataclasses.replace(config, target_batch=share, micro_batch=AUTO)
        request = PlanRequest(shared, inputs, devices=local_replicas, shared=True)
    if config.micro_batch != AUTO:
        given = (config.recompute, config.offload)
        saving = Saving(*("none" if value == AUTO else value for value in given))
        size = int(config.micro_batch)
        plan = make_plan(config.target_batch, size, saving, config.cut, replicas)
        return request, PlanResult(plan)
    planned = find_fastest_plan(request, progress)
    planned.require_plan()
    return request, planned.of_whole_window(config.target_batch, replicas)
