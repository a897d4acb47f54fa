"""Repeating a run with several seeds, to measure how much its metrics vary by chance."""

from __future__ import annotations

import dataclasses
import gc
import math
import statistics
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tf_keras

from bertaccum.data.run_inputs import RunInputs
from bertaccum.distribution.topology import replicas_to_come
from bertaccum.errors import ConfigError
from bertaccum.options.commands import TrainConfig
from bertaccum.options.metrics import METRICS
from bertaccum.runs.folder import RunFolder
from bertaccum.runs.paths import RunPaths
from bertaccum.runs.record import read_run_config
from bertaccum.system.atomic import write_text
from bertaccum.system.files import json_text, read_mapping
from bertaccum.system.progress import Progress
from bertaccum.system.stopping import Stopping
from bertaccum.training.events import Event, Finished, RunResult, Stopped, collect
from bertaccum.training.inputs import run_inputs, with_commit
from bertaccum.training.resume import (
    LONGER,
    check_inputs,
    check_same_options,
    check_unchanged,
    inputs_of,
    resumed_config,
)
from bertaccum.training.train import resume, train

# Fields of the summaries that are averaged over the runs.
_FIGURES = (
    *(f"best_dev_{metric}" for metric in METRICS),
    *(f"final_dev_{metric}" for metric in METRICS),
    "final_loss",
    "total_seconds",
)


def train_seeds(
    config: TrainConfig,
    out: Path,
    seeds: int,
    named: dict[str, Any],
    progress: Progress,
    stopping: Stopping | None = None,
    known: dict[str, Any] | None = None,
) -> Generator[Event, None, None]:
    """Train one run for each of `seeds` consecutive seeds, starting with `config.seed`.

    Repeating the call resumes a stopped run and skips finished ones.

    Args:
      config: Options of the runs, except `out`.
      out: Folder that contains their run folders, `seed-N`.
      seeds: Number of runs.
      named: Options that the user set.
      progress: Reports preparations and evaluations.
      stopping: Records requests to stop, and passes them on to the runs.
      known: Inputs of the sweep to which the runs belong, as `inputs_of` returns them; None if they
        belong to none.

    Yields:
      The events of each run. A run that had already finished yields only `Finished`.

    Raises:
      ConfigError: The environment describes several workers, or the folder contains runs with other
        options.
      InputError: The data or the model have changed since a run in the folder, or the sweep, began.
    """
    if replicas_to_come(config.strategy, config.replicas)[1] > 1:
        raise ConfigError(
            "`seeds` is for one process, but the environment describes several workers",
            "run each `seed` separately, with its own `out`",
        )
    config = with_commit(config, out, progress)
    asked = {name: getattr(config, name) for name in named if name not in ("out", "seed")}
    check_repeated(config, out, seeds, progress)
    for seed in range(config.seed, config.seed + seeds):
        path = RunPaths(seed_folder(out, seed))
        if (summary := _finished_summary(path, asked)) is not None:
            yield Finished(summary)
            continue
        if path.config.exists():
            run = resume(path.path, asked, progress, stopping)
        else:
            # Files may have been changed while the earlier runs were trained.
            inputs = check_repeated(config, out, seeds, progress, known)
            own = dataclasses.replace(config, seed=seed, out=str(path.path))
            run = train(own, progress, stopping, asked | {"seed": seed}, inputs)
        for event in run:
            yield event
            if isinstance(event, Stopped):
                return
        free_models()


def check_repeated(
    config: TrainConfig,
    out: Path,
    seeds: int,
    progress: Progress,
    known: dict[str, Any] | None = None,
) -> RunInputs | None:
    """Check that the runs in a folder, even finished ones, are those that `config` describes.

    Args:
      known: Inputs of the sweep to which the runs belong, as for `train_seeds`.

    Returns:
      Their inputs; None if no run has begun and `known` is None.

    Raises:
      ConfigError: A run has other options.
      InputError: The data or the model have changed since a run, or the sweep, began.
    """
    owns = [dataclasses.replace(config, seed=config.seed + number) for number in range(seeds)]
    folders = [(RunFolder(seed_folder(out, own.seed)), own) for own in owns]
    begun = [(folder, own) for folder, own in folders if folder.config.exists()]
    for folder, own in begun:
        check_same_options(folder.path, own)
    if not begun and known is None:
        return None
    inputs = run_inputs(config, progress)
    for folder, _ in begun:
        check_inputs(folder, inputs)
    if known is not None:
        check_unchanged(known, inputs_of(inputs), "sweep", out)
    return inputs


def free_models() -> None:
    """Free the memory of earlier models, before the next one is built."""
    tf_keras.backend.clear_session()
    gc.collect()


def seed_folder(out: Path, seed: int) -> Path:
    """Return the run folder for a seed."""
    return out / f"seed-{seed}"


def _finished_summary(path: RunPaths, asked: dict[str, Any]) -> dict[str, Any] | None:
    """Return the summary of a finished run that the requested options do not extend, else None."""
    summary = read_mapping(path.summary)
    if summary is None:
        return None
    began, now = read_run_config(path.path), resumed_config(path.path, asked)
    return summary if all(getattr(now, n) == getattr(began, n) for n in LONGER) else None


def write_spread(out: Path, summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Compute statistics of the metrics of several runs, and write them to `seeds.json`.

    Returns:
      `runs` (their number), `best_by` (the metric that selected each best checkpoint), and for each
        metric its `mean`, `std` (sample standard deviation, 0 for a single run), `min` and
        `max`. Values that are not finite are left out.
    """
    result: dict[str, Any] = {"runs": len(summaries), "best_by": summaries[0]["best_by"]}
    for name in _FIGURES:
        known = [found for summary in summaries if (found := summary.get(name)) is not None]
        values = [value for value in known if math.isfinite(value)]
        if not values:  # For example, if no run's last loss is finite.
            continue
        result[name] = {
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else 0.0,
            "min": min(values),
            "max": max(values),
        }
    write_text(out / "seeds.json", json_text(result))
    return result


@dataclass(frozen=True)
class SeedsResult:
    """Runs that differ only in their seeds.

    Args:
      folder: Folder that contains the run folders.
      finished: Whether all runs finished. If a signal stopped one, repeat the call to continue.
      runs: One result for each seed that was started.
      spread: Mean, standard deviation, minimum and maximum of each metric; None if the runs were
        stopped.
    """

    folder: Path
    finished: bool
    runs: list[RunResult]
    spread: dict[str, Any] | None


def collect_seeds(
    config: TrainConfig,
    out: Path,
    seeds: int,
    events: Iterator[Event],
    callback: Callable[[Event], None] | None,
) -> SeedsResult:
    """Consume the events of several runs, write statistics of their metrics, and return both.

    Raises:
      BertAccumError: A run failed.
    """
    runs = []
    for seed in range(config.seed, config.seed + seeds):
        result = collect(events, callback)
        # A run that had already finished yields only its summary, so its folder is set here.
        runs.append(dataclasses.replace(result, folder=seed_folder(out, seed)))
        if not result.finished:
            return SeedsResult(out, False, runs, None)
    spread = write_spread(out, [run.summary for run in runs if run.summary is not None])
    return SeedsResult(out, True, runs, spread)
