"""What training returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertaccum.config import TrainConfig
from bertaccum.training.events import Evaluated, Event, Finished, Started, Stopped, Updated
from bertaccum.training.seed_sweep import seed_folder, write_spread


@dataclass(frozen=True)
class RunResult:
    """A run that has finished or was stopped.

    Args:
      folder: the run folder; None in a worker that is not the chief and never began.
      finished: False if a signal stopped the run; it can be resumed.
      updates: number of updates done.
      best: the evaluation that selected the best checkpoint; None before the first one.
      summary: what summary.json holds; None if the run was stopped.
    """

    folder: Path
    finished: bool
    updates: int
    best: Evaluated | None
    summary: dict[str, Any] | None


@dataclass(frozen=True)
class SeedsResult:
    """Runs that differ in their seeds.

    Args:
      folder: the folder that holds the run folders.
      finished: False if a signal stopped one of the runs; the same call continues.
      runs: one result for each seed that was begun.
      spread: mean, standard deviation, least and most of each figure of the summaries; None if
        the runs were stopped.
    """

    folder: Path
    finished: bool
    runs: list[RunResult]
    spread: dict[str, Any] | None


def collect(events: Iterator[Event], callback: Callable[[Event], None] | None) -> RunResult:
    """Take a run's events until its end.

    Args:
      events: of the run; those of later runs are left.
      callback: called with each event.

    Raises:
      BertAccumError: as the run does.
    """
    folder, updates, best = Path(), 0, None
    for event in events:
        if callback is not None:
            callback(event)
        if isinstance(event, Started):
            folder, updates = event.folder, event.done
        elif isinstance(event, Updated):
            updates = event.update
        elif isinstance(event, Evaluated) and event.best:
            best = event
        elif isinstance(event, Stopped):
            return RunResult(event.folder, False, event.update, best, None)
        elif isinstance(event, Finished):
            found = event.summary.get("best_evaluation")
            best = Evaluated(**found) if found else best
            return RunResult(folder, True, event.summary["updates"], best, event.summary)
    return RunResult(folder, False, updates, best, None)


def collect_seeds(
    config: TrainConfig,
    seeds: int,
    events: Iterator[Event],
    callback: Callable[[Event], None] | None,
) -> SeedsResult:
    """Take the events of several runs, and write the spread of their figures.

    Args:
      config: of the runs; its `out` is the folder that holds theirs.
      seeds: number of runs.
      events: of all runs, one after the other.
      callback: called with each event.

    Raises:
      BertAccumError: as the runs do.
    """
    out, runs = Path(str(config.out)), []
    for seed in range(config.seed, config.seed + seeds):
        result = collect(events, callback)
        # A run that was finished before says no more than its summary.
        runs.append(dataclasses.replace(result, folder=seed_folder(out, seed)))
        if not result.finished:
            return SeedsResult(out, False, runs, None)
    spread = write_spread(out, [run.summary for run in runs if run.summary is not None])
    return SeedsResult(out, True, runs, spread)
