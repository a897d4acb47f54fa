"""The same run with several seeds, one after the other: how much a result owes to chance."""

from __future__ import annotations

import dataclasses
import gc
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tf_keras

from bertaccum.atomic import write_text
from bertaccum.config import TrainConfig
from bertaccum.distribution.topology import replicas_to_come
from bertaccum.errors import ConfigError
from bertaccum.files import json_text, read_mapping
from bertaccum.reporting.run_paths import RunPaths
from bertaccum.reporting.run_record import read_run_config
from bertaccum.training.events import Event, Finished, Stopped
from bertaccum.training.resume import resumed_config

# With which a run that is over may go on.
_LONGER = ("max_updates", "patience")
# What of the summaries is averaged.
_FIGURES = (
    "best_dev_accuracy",
    "best_dev_loss",
    "best_dev_matthews_correlation",
    "best_dev_macro_f1",
    "final_dev_accuracy",
    "final_loss",
    "total_seconds",
)


def train_seeds(
    config: TrainConfig,
    seeds: int,
    named: dict[str, Any],
    start: Callable[[TrainConfig, dict[str, Any]], Iterator[Event]],
    resume: Callable[[Path, dict[str, Any]], Iterator[Event]],
) -> Iterator[Event]:
    """Trains with `seeds` seeds, from `config.seed` on, into folders `seed-N` in `config.out`.

    The same call, made again, goes on where it was stopped, and passes over runs that are over.

    Args:
      config: of the runs; its `out` is a folder for all of them.
      seeds: how many runs.
      named: options that the user named.
      start: trains a new run, given its configuration and the options that were named.
      resume: continues a run, given its folder and the options to change.

    Yields:
      The events of each run, whose `Finished` ends it; that of a run that was over before, too.

    Raises:
      ConfigError: several workers are described, or the folder holds runs with other options.
    """
    assert config.out is not None  # check_seeds
    if replicas_to_come(config.strategy, config.replicas)[1] > 1:
        raise ConfigError(
            "`seeds` is for one process, and workers are described",
            "train once for each `seed`, into another `out`",
        )
    asked = {name: value for name, value in named.items() if name not in ("out", "seed")}
    for seed in range(config.seed, config.seed + seeds):
        path = RunPaths(seed_folder(Path(config.out), seed))
        if (summary := _over(path, asked)) is not None:
            yield Finished(summary)
            continue
        if path.config.exists():
            run = resume(path.path, asked)
        else:
            own = dataclasses.replace(config, seed=seed, out=str(path.path))
            run = start(own, asked | {"seed": seed})
        for event in run:
            yield event
            if isinstance(event, Stopped):
                return
        # Before the next model, the memory of this one.
        tf_keras.backend.clear_session()
        gc.collect()


def seed_folder(out: Path, seed: int) -> Path:
    """Return the folder of one of several runs."""
    return out / f"seed-{seed}"


def _over(path: RunPaths, asked: dict[str, Any]) -> dict[str, Any] | None:
    """The summary of a run that has nothing left to do for what is asked of it.

    Raises:
      ConfigError: it was another run.
    """
    summary = read_mapping(path.summary)
    if summary is None:
        return None
    began, now = read_run_config(path.path), resumed_config(path.path, asked)
    return summary if all(getattr(now, n) == getattr(began, n) for n in _LONGER) else None


def write_spread(out: Path, summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Averages runs, and keeps that as `seeds.json`.

    Args:
      out: the folder of all runs.
      summaries: of each.

    Returns:
      `runs` (how many), `best_by` (the metric that selected each run's best checkpoint), and for
      each figure `mean`, `spread` (standard deviation of a sample; 0 of one), `least` and `most`
      of those that are numbers.
    """
    result: dict[str, Any] = {
        "runs": len(summaries),
        "best_by": summaries[0].get("best_by", "accuracy"),
    }
    for name in _FIGURES:
        known = [found for summary in summaries if (found := summary.get(name)) is not None]
        values = [value for value in known if math.isfinite(value)]
        if not values:  # The loss of a last window that was skipped, say.
            continue
        result[name] = {
            "mean": statistics.fmean(values),
            "spread": statistics.stdev(values) if len(values) > 1 else 0.0,
            "least": min(values),
            "most": max(values),
        }
    write_text(out / "seeds.json", json_text(result))
    return result
