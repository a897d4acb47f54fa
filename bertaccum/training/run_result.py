"""Results of training, as the Python API returns them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertaccum.options.commands import TrainConfig
from bertaccum.training.events import Evaluated, Event, Finished, Started, Stopped, Updated
from bertaccum.training.seed_sweep import seed_folder, write_spread


@dataclass(frozen=True)
class RunResult:
    """A run that has finished or was stopped.

    Args:
      folder: Run folder; an empty path in a worker that stopped before the run began.
      finished: Whether the run finished. A run that a signal stopped can be resumed.
      updates: Number of completed updates.
      best: Evaluation of the best checkpoint; None if a signal stopped the run before this process
        found one.
      summary: Content of summary.json; None if the run was stopped.
    """

    folder: Path
    finished: bool
    updates: int
    best: Evaluated | None
    summary: dict[str, Any] | None


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


def collect(events: Iterator[Event], callback: Callable[[Event], None] | None) -> RunResult:
    """Consume the events of one run, and return the result.

    Raises:
      BertAccumError: The run failed.
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
            best = Evaluated.of(found) if found else best
            return RunResult(folder, True, event.summary["updates"], best, event.summary)
    return RunResult(folder, False, updates, best, None)


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
