"""Checks of the user's files and options that run before TensorFlow is imported.

Importing TensorFlow takes seconds, so these checks report mistakes sooner. Training repeats them,
because workers may see different files.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

from bertaccum.bert.model_finder import find_dimensions, find_model
from bertaccum.data.run_inputs import tsvs_to_plan_with, tsvs_to_train_on
from bertaccum.distribution.cluster import describes_workers
from bertaccum.errors import ConfigError
from bertaccum.options.commands import PlanConfig, TrainConfig
from bertaccum.options.fields import AUTO
from bertaccum.runs.folder import RunFolder
from bertaccum.runs.paths import RunPaths
from bertaccum.runs.record import read_run_config
from bertaccum.system.files import check_writable
from bertaccum.system.progress import Progress, tell
from bertaccum.tasks.head_mapping import head_mapping
from bertaccum.tasks.prepared_labels import read_labels
from bertaccum.training.task_options import check_task_options


def check_run(config: TrainConfig, progress: Progress) -> None:
    """Check the run folder, the data and the model of a new run; download the model if needed.

    Args:
      config: Options of the run.
      progress: Called while the model is downloaded.

    Raises:
      ConfigError, InputError: A file, folder or option cannot be used.
    """
    if describes_workers(config.strategy):
        return  # Do not check in a worker: if it failed now, the other workers would wait for it.
    RunFolder.new_path(config.out)
    _check_inputs(config, progress)


def check_seeds(config: TrainConfig, seeds: int, progress: Progress) -> None:
    """Check the folder, the data and the model of several runs, as `check_run` does for one.

    Args:
      config: Options of the runs; `out` is the folder that contains their run folders.
      seeds: Number of runs.
      progress: Called while the model is downloaded.

    Raises:
      ConfigError, InputError: A file, folder or option cannot be used.
    """
    if config.out is None:
        raise ConfigError("several runs need `out`", "set it to a folder for them")
    if RunPaths(Path(config.out)).config.exists():
        raise ConfigError(f"`out` {config.out} is a run folder", "choose another folder")
    dataclasses.replace(config, seed=config.seed + seeds - 1)  # This checks the last seed.
    _check_inputs(config, progress)


def check_resumed(run: Path, options: dict[str, Any], progress: Progress) -> None:
    """Check that the run to resume exists, and that its data and model still exist.

    Args:
      run: Run folder.
      options: The options that the user set.
      progress: Called while a model is downloaded.

    Raises:
      ConfigError, InputError: The run, its data or its model cannot be used.
    """
    if not describes_workers(options.get("strategy", AUTO)):
        moved = {name: options[name] for name in ("data", "vocab") if name in options}
        _check_inputs(dataclasses.replace(read_run_config(run), **moved), progress)


def check_plan(config: PlanConfig, progress: Progress) -> None:
    """Check `out`, the data and the model of a plan.

    Args:
      config: Options of the plan.
      progress: Called while a model is downloaded.

    Raises:
      ConfigError, InputError: A file, folder or option cannot be used.
    """
    check_writable(Path(config.out), "`out`")
    tsvs_to_plan_with(config)
    find_dimensions(config, progress)


def _check_inputs(config: TrainConfig, progress: Progress) -> None:
    data = Path(config.data)
    tsvs_to_train_on(data)
    labels = read_labels(data, config.task, partial(tell, progress))
    check_task_options(config, labels)
    head_mapping(find_model(config, progress), labels, config.keep_head)
