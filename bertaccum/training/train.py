"""Starting and resuming runs: these functions take options and yield events."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bertaccum import _tf_compat
from bertaccum.data.run_inputs import RunInputs
from bertaccum.distribution.collectives import broadcast
from bertaccum.distribution.topology import Topology, replicas_to_come
from bertaccum.errors import ConfigError
from bertaccum.options.commands import TrainConfig
from bertaccum.options.fields import AUTO, ON, field_names, named_options
from bertaccum.options.pretraining import PretrainConfig, train_config
from bertaccum.runs.folder import RunFolder
from bertaccum.runs.paths import target_of
from bertaccum.system.atomic import recover_folder
from bertaccum.system.files import read_mapping
from bertaccum.system.progress import Progress, tell
from bertaccum.system.stopping import Stopping
from bertaccum.training import checkpoints
from bertaccum.training.agreed_plan import agree_on_plan, find_plan
from bertaccum.training.compilation import Compilation, decide
from bertaccum.training.events import Event
from bertaccum.training.inputs import run_inputs
from bertaccum.training.loop import Run
from bertaccum.training.resume import (
    changed_plan_options,
    check_inputs,
    check_logs,
    check_same_options,
    check_start,
    deciding_options,
    inputs_of,
    named_by_user,
    read_mark,
    recorded_compilation,
    resolved_config,
    resumed_config,
    rounding_note,
    write_changes,
)
from bertaccum.training.setup import Session, connect, set_up
from bertaccum.training.teacher import recorded_logits
from bertaccum.training.teacher_logits import open_logits


def train(
    config: TrainConfig,
    progress: Progress,
    stopping: Stopping | None = None,
    named: dict[str, Any] | None = None,
    inputs: RunInputs | None = None,
) -> Generator[Event, None, None]:
    """Start a run, and yield its events.

    All input errors are raised before the run folder is created. If several workers are started
    again with the same `out`, they resume that run, because a cluster manager restarts a job with
    the same command.

    Args:
      config: Options of the run.
      progress: Reports preparations and evaluations.
      stopping: Records requests to stop, and passes them on to the run.
      named: Options that the user set; by default, those that differ from their default values.
      inputs: Inputs of the run; None to find them.

    Yields:
      `Started`, then `Updated` and `Evaluated` as they happen, then `Finished` or `Stopped`.

    Raises:
      ConfigError, InputError: An option or file cannot be used.
      RunError: Training failed.
    """
    named = named_options(config) if named is None else named
    inputs = _prepare_before_connecting(config, inputs, progress)
    session = connect(config, stopping, progress)
    topology = session.topology
    several = topology.workers > 1
    if several and config.out is None:
        raise ConfigError(
            "`strategy` multi-worker needs `out`",
            "set it to the run folder, so that the same command can resume the run",
        )
    with session.watch.watched(), _tf_compat.forgetting_custom_gradients():
        path = Path(config.out or "")
        if several and broadcast(topology, (path / "config.yaml").is_file):
            broadcast(topology, lambda: check_same_options(path, config))
            asked = {name: value for name, value in named.items() if name != "out"}
            yield from _continue(path, asked, session)
            return
        folder = RunFolder(Path(broadcast(topology, lambda: str(RunFolder.new_path(config.out)))))
        run = Run(
            set_up(config, session, inputs), folder, checkpoints.Position(secrets.token_hex(8))
        )
        broadcast(topology, lambda: _create_folder(run, named))
        with _locked(folder, session):
            yield from run.events()


def _seen_by_the_chief(asked: dict[str, Any]) -> TrainConfig:
    """Return the options to connect with, in a worker that cannot read the run."""
    return TrainConfig(**{n: v for n, v in asked.items() if n in field_names(TrainConfig)})


def resume(
    path: Path,
    asked: dict[str, Any],
    progress: Progress,
    stopping: Stopping | None = None,
    inputs: RunInputs | None = None,
) -> Generator[Event, None, None]:
    """Resume a run from its last checkpoint, and yield its events as `train` does.

    Args:
      path: Run folder; with several workers, only the chief reads it.
      asked: Options that the user set. Those that affect the updates must have their old values.
      progress: Reports preparations and evaluations.
      stopping: Records requests to stop, and passes them on to the run.
      inputs: Inputs of the run; None to find them.
    """
    path = target_of(path)
    there = (path / "config.yaml").is_file()
    config = resumed_config(path, asked) if there else _seen_by_the_chief(asked)
    if there:
        inputs = _prepare_before_connecting(config, inputs, progress, recorded_logits(path))
    session = connect(config, stopping, progress)
    with session.watch.watched(), _tf_compat.forgetting_custom_gradients():
        # A missing run must be reported before its lock file is opened.
        broadcast(session.topology, lambda: dataclasses.asdict(resumed_config(path, asked)))
        yield from _continue(path, asked, session, inputs)


def _prepare_before_connecting(
    config: TrainConfig,
    inputs: RunInputs | None,
    progress: Progress,
    recorded: list[str] | None = None,
) -> RunInputs | None:
    """Compute the teacher's logits and, for several workers, plan; then both are in the cache.

    This needs exclusive use of the device, and may take longer than workers wait for each other.

    Args:
      recorded: Names of the teacher's logits when the run began, if it is resumed.

    Raises:
      ConfigError: No plan can be measured before the workers connect.
    """
    local, workers = replicas_to_come(config.strategy, config.replicas)
    plans = workers > 1 and config.micro_batch == AUTO
    if plans and isinstance(config, PretrainConfig):
        # Windows are measured on tokens, and TensorFlow, which makes them, could not connect then.
        what = "`micro_batch` auto cannot be measured for pretraining on several workers"
        raise ConfigError(what, "set `micro_batch`")
    if plans or config.teacher is not None:
        inputs = inputs or run_inputs(config, progress, recorded=recorded)
    if inputs is not None and inputs.teacher is not None:
        open_logits(config, inputs, progress)
    if inputs is not None and plans:
        find_plan(config, inputs, local, workers, progress)
    return inputs


def plan_ahead(config: TrainConfig, progress: Progress) -> None:
    """Measure and compute what a run on a GPU needs from the cache before it uses the GPU.

    Raises:
      BertAccumError: An input cannot be used, or no plan fits.
    """
    inputs = _prepare_before_connecting(config, None, progress) or run_inputs(config, progress)
    alone = Topology(local_replicas=replicas_to_come(config.strategy, config.replicas)[0])
    config, request, planned = agree_on_plan(config, inputs, alone, progress)
    decide(config, request, planned, progress)


def _continue(
    path: Path, asked: dict[str, Any], session: Session, inputs: RunInputs | None = None
) -> Iterator[Event]:
    """Continue a run from its last checkpoint, or from the start if it has none."""
    topology, folder = session.topology, RunFolder(path)

    def read() -> dict[str, Any]:
        config, states = resumed_config(path, asked), checkpoints.saved_states(folder.checkpoints)
        if not states:
            check_start(folder)
        mark = read_mark(folder)
        changed = changed_plan_options(folder, config, topology.replicas)
        if note := rounding_note(config, changed):
            tell(session.progress, note)
        return {
            "config": dataclasses.asdict(config),
            "changed": changed,
            "mark": mark,
            "logits": recorded_logits(path),
            "cutting": recorded_compilation(folder, config).numbers(),
            "checkpoint": str(states[-1]) if states else None,
            "saved": checkpoints.read_saved(states[-1], mark) if states else None,
        }

    with _locked(folder, session):
        begun = broadcast(topology, read)
        config, saved = train_config(begun["config"]), begun["saved"] or {}
        position = checkpoints.Position.of(saved) if saved else checkpoints.Position(begun["mark"])
        if config.max_updates is not None and config.max_updates < position.update:
            what = f"`max_updates` {config.max_updates} is less than the {position.update} updates"
            raise ConfigError(f"{what} of the checkpoint", "choose a larger number")
        free = asked.keys() - deciding_options(config).keys()
        plan = {key: saved[key] for key in checkpoints.CUT if key in saved and key not in free}
        compilation = Compilation(config.compile == ON).with_numbers(begun["cutting"])
        # Keep the plan's values from when the run began, such as the reason for it, unless the
        # user now changes the plan.
        keep_plan = topology.chief and not begun["changed"]
        earlier = read_mapping(folder.plan) if keep_plan else None
        if inputs is None and begun["logits"]:
            inputs = run_inputs(config, session.progress, recorded=begun["logits"])
        setup = set_up(dataclasses.replace(config, **plan), session, inputs, compilation, earlier)
        broadcast(topology, lambda: check_inputs(folder, setup.inputs))
        run = Run(setup, folder, position)
        if saved:
            broadcast(topology, lambda: _restore(run, Path(begun["checkpoint"])))
            run.checkpoints.share(topology)
        else:
            broadcast(topology, lambda: _start_over(folder))
        if asked:
            lasting = resolved_config(config, setup.inputs.source.name)
            broadcast(topology, lambda: write_changes(folder, lasting, asked))
        yield from run.events()


def _locked(folder: RunFolder, session: Session) -> contextlib.AbstractContextManager[None]:
    if not session.topology.chief:
        return contextlib.nullcontext()
    return folder.locked(partial(tell, session.progress))


def _create_folder(run: Run, named: dict[str, Any]) -> None:
    """Create the run folder with the run's configuration and inputs."""
    setup = run.setup
    stores = {"train.tsv": setup.train_store, "dev.tsv": setup.dev_store}
    rows = {"train.tsv": setup.labeled_examples, "dev.tsv": len(setup.dev_store)}
    if setup.inputs.unlabelled is not None:
        rows["unlabelled"] = len(setup.train_store) - setup.labeled_examples
    inputs = inputs_of(setup.inputs) | {
        "mark": run.position.run,
        "options": deciding_options(setup.config),
        "cutting": setup.compilation.numbers(),
        "replicas": setup.session.topology.replicas,
        "rows": rows,
        "truncation": {
            name: dataclasses.asdict(store.truncation)
            for name, store in stores.items()
            if store.truncation
        },
        "named": named_by_user(named),
    }
    run.folder.create(setup.config, inputs)


def _restore(run: Run, checkpoint: Path) -> None:
    """Restore a checkpoint, and the model that was best when the checkpoint was saved.

    Logs are changed last, so an error leaves them as they are.
    """
    folder, position = run.folder, run.position
    interval = run.setup.updates_between_evaluations
    check_logs(folder, position.update, position.evaluated, interval)
    recover_folder(folder.best)
    best, current = position.best, checkpoints.best_evaluation(folder)
    if best is not None and best != current:
        of_best = checkpoints.state_of(folder.checkpoints, best.update)
        checkpoints.read_saved(of_best, position.run)
        run.checkpoints.restore(of_best)
        if current is not None:
            folder.set_aside_best(current.update)
        run.evaluator.save(best)
    run.checkpoints.restore(checkpoint)
    if best is None and current is not None:
        folder.set_aside_best(current.update)
    folder.rewind(position.update, position.evaluated, position.shrinkings)


def _start_over(folder: RunFolder) -> None:
    """Undo everything, before the first checkpoint; a best model is kept under another name."""
    recover_folder(folder.best)
    if (current := checkpoints.best_evaluation(folder)) is not None:
        folder.set_aside_best(current.update)
    folder.rewind(0, 0)
