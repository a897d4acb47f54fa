"""The inputs of runs, found and checked before TensorFlow is imported, which takes seconds."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

from bertaccum.bert.model_finder import find_dimensions, find_model
from bertaccum.data.run_inputs import RunInputs, read_inputs, tsvs_to_plan_with, tsvs_to_train_on
from bertaccum.distribution.cluster import describes_workers
from bertaccum.errors import ConfigError
from bertaccum.options.commands import PlanConfig, TrainConfig
from bertaccum.options.fields import AUTO
from bertaccum.runs.folder import RunFolder
from bertaccum.runs.paths import RunPaths
from bertaccum.runs.record import read_run_config
from bertaccum.system.files import check_writable
from bertaccum.system.progress import Note, Progress, ignore_note, tell
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.prepared_labels import read_labels
from bertaccum.training.task_options import check_task_options


def run_inputs(config: TrainConfig, progress: Progress, note: Note = ignore_note) -> RunInputs:
    """Return the data, the labels and the model of a run; download the model if needed.

    Raises:
      ConfigError, InputError: A file or an option cannot be used.
    """
    data = Path(config.data)
    tsvs, labels = tsvs_to_train_on(data), read_labels(data, config.task, note)
    check_task_options(config, labels)
    return read_inputs(find_model(config, progress), make_task(labels), tsvs, config)


def check_run(config: TrainConfig, progress: Progress) -> RunInputs | None:
    """Check the folder of a new run, and return its inputs; None in a worker.

    If a worker failed now, the other workers would wait for it.

    Raises:
      ConfigError, InputError: A file, folder or option cannot be used.
    """
    if describes_workers(config.strategy):
        return None
    RunFolder.new_path(config.out)
    return run_inputs(config, progress, partial(tell, progress))


def check_seeds(config: TrainConfig, seeds: int, progress: Progress) -> Path:
    """Check the inputs of several runs, and return the folder for their run folders.

    Raises:
      ConfigError, InputError: A file, folder or option cannot be used.
    """
    if config.out is None:
        raise ConfigError("several runs need `out`", "set it to a folder for them")
    if RunPaths(Path(config.out)).config.exists():
        raise ConfigError(f"`out` {config.out} is a run folder", "choose another folder")
    dataclasses.replace(config, seed=config.seed + seeds - 1)  # This checks the last seed.
    run_inputs(config, progress, partial(tell, progress))
    return Path(config.out)


def check_resumed(run: Path, options: dict[str, Any], progress: Progress) -> RunInputs | None:
    """Return the inputs of the run to resume; None in a worker.

    Raises:
      ConfigError, InputError: The run, its data or its model cannot be used.
    """
    if describes_workers(options.get("strategy", AUTO)):
        return None
    moved = {name: options[name] for name in ("data", "vocab") if name in options}
    config = dataclasses.replace(read_run_config(run), **moved)
    return run_inputs(config, progress, partial(tell, progress))


def check_plan(config: PlanConfig, progress: Progress) -> None:
    """Check `out`, the data and the model of a plan.

    Raises:
      ConfigError, InputError: A file, folder or option cannot be used.
    """
    check_writable(Path(config.out), "`out`")
    tsvs_to_plan_with(config)
    find_dimensions(config, progress)
