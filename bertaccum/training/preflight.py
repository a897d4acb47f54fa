"""Checks of what the user named, before TensorFlow is imported, which takes seconds.

Training checks again, which costs little: workers may find different files.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bertaccum.bert.huggingface_folder import safetensors
from bertaccum.bert.model_source import find_dimensions, find_model
from bertaccum.config import EvalConfig, ExportConfig, PlanConfig, PredictConfig, TrainConfig
from bertaccum.data.data_folder import read_labels, tsvs_to_plan_with, tsvs_to_train_on
from bertaccum.distribution.cluster import describes_workers
from bertaccum.errors import ConfigError, InputError
from bertaccum.files import beside
from bertaccum.progress import Progress
from bertaccum.reporting.run_paths import RunPaths
from bertaccum.reporting.run_record import read_run_config
from bertaccum.training.run_folder import RunFolder
from data_prep.tsv import default_split


def check_run(config: TrainConfig, progress: Progress) -> None:
    """Check the run folder, the data and the model of a new run; download the model if needed.

    Args:
      config: the whole recipe.
      progress: called while the model is downloaded.

    Raises:
      ConfigError, InputError: one of them cannot be used.
    """
    if describes_workers(config.strategy):
        return  # One that stopped here would leave the others waiting.
    RunFolder.new_path(config.out)
    _check_inputs(config, progress)


def check_seeds(config: TrainConfig, seeds: int, progress: Progress) -> None:
    """Check the folder, the data and the model of several runs, as `check_run` does for one.

    Args:
      config: of the runs; its `out` is the folder that holds theirs.
      seeds: number of runs.
      progress: as for `check_run`.
    """
    if config.out is None:
        raise ConfigError("--seeds needs --out", "name the folder that all runs go to")
    if RunPaths(Path(config.out)).config.exists():
        raise ConfigError(f"--out {config.out} is a run's folder", "name another one for --seeds")
    dataclasses.replace(config, seed=config.seed + seeds - 1)  # Raises if the last is too large.
    _check_inputs(config, progress)


def check_resumed(run: Path, strategy: str, progress: Progress) -> None:
    """Check that a run is there to resume, and that its data and model still are.

    Args:
      run: its folder.
      strategy: as `--strategy`, for this process.
      progress: called while a model is downloaded.
    """
    if not describes_workers(strategy):
        _check_inputs(read_run_config(run), progress)


def check_plan(config: PlanConfig, progress: Progress) -> None:
    """Check `--out`, the data and the model of a plan.

    Raises:
      ConfigError, InputError: one of them cannot be used.
    """
    out = Path(config.out)
    if not out.parent.is_dir() or out.is_dir():
        raise ConfigError(f"--out {out} cannot be written", "name a file in an existing folder")
    tsvs_to_plan_with(config)
    find_dimensions(config, progress)


def evaluated_table(config: EvalConfig) -> Path:
    """Return the table that a run's best checkpoint is evaluated on.

    Raises:
      InputError: the run, its best checkpoint or the table is missing.
    """
    run = RunFolder(Path(config.run))
    data = Path(read_run_config(run.path).data)
    run.standing_best()
    split = config.split or default_split(data)
    table = Path(config.file) if config.file else data / f"{split}.tsv"
    if not table.exists():
        raise InputError("there is no such file", "choose another --split or --file", path=table)
    return table


def check_predict(config: PredictConfig) -> None:
    """Check that a run has a best checkpoint, and that the texts to predict are there.

    Raises:
      InputError: one of them is missing.
    """
    run = RunFolder(Path(config.run))
    read_run_config(run.path)
    run.standing_best()
    if config.file not in (None, "-") and not Path(config.file).exists():
        raise InputError("there is no such file", "check the path", path=config.file)


def check_export(config: ExportConfig) -> None:
    """Check that a run has a best checkpoint, and that `--out` can be made.

    Raises:
      ConfigError: `--out` exists or cannot be made, or safetensors is not installed.
      InputError: the run or its best checkpoint is missing.
    """
    run = RunFolder(Path(config.run))
    read_run_config(run.path)
    _check_new_folder(Path(config.folder))
    if config.format == "huggingface":
        safetensors()
    run.standing_best()


def _check_new_folder(path: Path) -> None:
    """Raise ConfigError if writing to `--out` would replace something or is not possible."""
    if not path.name:
        raise ConfigError(f"--out {path} is not a possible name", "name a new folder")
    try:
        parent = next(p for p in path.absolute().parents if p.exists())
        taken = path.is_symlink() or path.is_file() or (path.is_dir() and any(path.iterdir()))
    except OSError as error:
        raise ConfigError(f"--out {path} is not a possible name ({error.strerror})") from None
    if taken:
        raise ConfigError(f"--out {path} exists", "choose another folder")
    trial = beside(parent / path.name)
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        raise ConfigError(
            f"--out {path} cannot be made in {parent} ({error.strerror})", "choose another folder"
        ) from None


def _check_inputs(config: TrainConfig, progress: Progress) -> None:
    data = Path(config.data)
    tsvs_to_train_on(data)
    read_labels(data)
    find_model(config, progress)
