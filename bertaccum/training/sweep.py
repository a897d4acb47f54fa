"""A grid search over options, in full or by successive halving.

Source: Jamieson and Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization", for successive halving.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from bertaccum.data.given_texts import read_unlabelled
from bertaccum.data.run_inputs import tsvs_to_train_on
from bertaccum.data.windows import scheduled_updates, updates_per_epoch
from bertaccum.distribution.device_memory import gpus
from bertaccum.errors import ConfigError, DivergedError, InputError, RunError
from bertaccum.options.commands import PAPER, TrainConfig
from bertaccum.options.metrics import LOWER_IS_BETTER
from bertaccum.reporting.figures import write_heat_map
from bertaccum.system.atomic import write_text
from bertaccum.system.files import json_digest, json_text, read_mapping
from bertaccum.system.progress import Progress, silent
from bertaccum.system.stopping import Stopping
from bertaccum.tasks.prepared_labels import read_labels
from bertaccum.training.events import Event, Finished, Stopped
from bertaccum.training.inputs import run_inputs, with_commit
from bertaccum.training.resume import inputs_of
from bertaccum.training.seed_sweep import check_repeated, train_seeds
from bertaccum.training.train import plan_ahead
from data_prep.tables.tsv import read_tsv

# Fractions of a run's updates after which successive halving keeps the best third of the cells.
_ROUNDS = (1 / 9, 1 / 3, 1.0)
_KEPT = 1 / 3
RECORD = "sweep.json"
# Maximum number of bytes in the name of a cell's folder.
_LONGEST_NAME = 200
# Options that neither decide the inputs of a run nor have to suit its data, model or task.
_INDEPENDENT = {
    *("target_batch", "epochs", "learning_rate", "warmup_fraction", "weight_decay", "clip_norm"),
    "dropout",
}
Grid: TypeAlias = Mapping[str, Sequence[Any]]


@dataclass
class Cell:
    """A combination of the grid's values.

    Args:
      options: The values.
      rounds: For each round that has ended, a dict for each seed: `score` (the best dev metric;
        None if unknown), `updates` and `seconds` of the run so far. Keyed by the fraction of the
        updates at which the round ends.
      failed: Why a run failed; None if none did.
      diverged: Whether it failed because it diverged, and would fail again.
    """

    options: dict[str, Any]
    rounds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failed: str | None = None
    diverged: bool = False

    @property
    def name(self) -> str:
        """The name of the folder of its runs: at most 255 bytes, without the slashes of paths."""
        name = ",".join(f"{name}={value}" for name, value in self.options.items())
        encoded = name.replace("/", "_").encode(errors="surrogateescape")
        if "/" not in name and len(encoded) <= _LONGEST_NAME:
            return name
        start = encoded[: _LONGEST_NAME - 50].decode(errors="ignore")
        return f"{start}-{json_digest(self.options)[:12]}"

    @property
    def fraction(self) -> float:
        """The fraction of its updates that have been made."""
        return max(map(float, self.rounds), default=0.0)

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The values of the last round."""
        return self.rounds[max(self.rounds, key=float)] if self.rounds else []

    @property
    def scores(self) -> list[float]:
        """The scores of the last round; empty if one is unknown or a run failed."""
        scores = [run["score"] for run in self.runs]
        return [] if self.failed or None in scores else scores

    def record(self) -> dict[str, Any]:
        """Return the fields and the last round's statistics as a dict."""
        scores = self.scores
        return dataclasses.asdict(self) | {
            "fraction": self.fraction,
            "runs": len(self.runs),
            "mean": statistics.fmean(scores) if scores else None,
            "std": statistics.stdev(scores) if len(scores) > 1 else 0.0,
            "updates": sum(run["updates"] for run in self.runs),
            "seconds": sum(run["seconds"] for run in self.runs),
        }


def cells_of(config: TrainConfig, grid: Grid) -> list[Cell]:
    """Return all different combinations of the grid's values.

    Raises:
      ConfigError: A value is invalid, or an option cannot be in a grid.
    """
    # Scores of different data, tasks or metrics cannot be ranked, and a process sets up TensorFlow
    # only once.
    fixed = {"out", "data", "seed", "max_updates", "task", "best_by"}
    fixed |= {"strategy", "replicas", "memory_limit", "deterministic"}
    if wrong := fixed & grid.keys():
        raise ConfigError(
            f"`{min(wrong)}` cannot be in a grid", "set it as an option of the whole sweep"
        )
    if not grid or not all(len(values) for values in grid.values()):
        raise ConfigError("the grid has no values", "give each option a list of values")
    cells = dict[str, Cell]()
    for values in itertools.product(*grid.values()):
        checked = dataclasses.replace(config, **dict(zip(grid, values, strict=True)))
        cell = Cell({name: getattr(checked, name) for name in grid})
        cells.setdefault(cell.name, cell)  # For example, 5e-5 and 0.00005 are the same value.
    return [*cells.values()]


class Sweep:
    """A grid search, whose runs are in the folder `out`.

    Repeating a sweep resumes it: it skips what `sweep.json` says is done, and cells that diverged.

    Args:
      config: Options of all runs, except `out`.
      out: Folder of the sweep.
      grid: Values of the options to combine.
      seeds: Number of runs for each cell.
      halving: Whether to train all cells a little, and only the best ones to the end.
      rows: Number of rows that a run trains on, keyed by its `unlabelled`.
      named: Options that the user set.

    Raises:
      ConfigError: The grid is invalid, or the folder contains another sweep.
      InputError: The record of the sweep in the folder is damaged.
    """

    def __init__(
        self,
        config: TrainConfig,
        out: Path,
        grid: Grid,
        seeds: int,
        halving: bool,
        rows: Mapping[str | None, int],
        named: dict[str, Any],
    ) -> None:
        self.cells, self.best_by = cells_of(config, grid), ""
        self._config, self._seeds, self._rows, self._named = config, seeds, rows, named
        self._rounds = _ROUNDS if halving else (1.0,)
        self._folder = out
        # For each cell, its options, whose models stay the same, and its inputs.
        self._own, self._inputs = dict[str, TrainConfig](), dict[str, dict[str, Any]]()
        asked = {name: value for name, value in named.items() if name != "out"}
        self._asked = {"grid": self.grid, "seeds": seeds, "halving": halving, "options": asked}
        if (saved := read_mapping(self._folder / RECORD)) is not None:
            self._continue(saved)

    @property
    def grid(self) -> dict[str, list[Any]]:
        """The different values of each option, as the cells contain them."""
        return {
            name: [*dict.fromkeys(cell.options[name] for cell in self.cells)]
            for name in self.cells[0].options
        }

    def _continue(self, saved: dict[str, Any]) -> None:
        if saved.get("asked") != json.loads(json_text(self._asked)):
            raise ConfigError(
                f"`out` {self._folder} contains a sweep with another grid or other options",
                "choose another folder, or repeat that sweep to continue it",
            )
        try:
            self._load_results(saved)
            self.result()
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            remedy = "delete it and repeat the sweep"
            if len(self._rounds) > 1:  # Some runs may have made the updates of later rounds.
                remedy = "restore it"
            raise InputError(
                f"is damaged ({type(error).__name__}: {error})",
                f"{remedy}, or choose another `out`",
                path=self._folder / RECORD,
            ) from None

    def _load_results(self, saved: dict[str, Any]) -> None:
        """Load the results that an earlier call saved."""
        self.best_by = saved["best_by"]
        done = {json_text(one["options"]): one for one in saved["cells"]}
        for cell in self.cells:
            if (one := done.get(json_text(cell.options))) is not None:
                cell.rounds, cell.diverged = one["rounds"], one["diverged"]
                cell.failed = one["failed"] if cell.diverged else None

    def events(
        self, progress: Progress, stopping: Stopping | None = None
    ) -> Generator[Event, None, None]:
        """Train, and yield the events of all runs.

        Raises:
          ConfigError, InputError: An option or file cannot be used, or has changed since a run, or
            the sweep, began.
        """
        inputs = dict[str, dict[str, Any]]()
        for cell in self.cells:
            own = dataclasses.replace(self._config, **cell.options)
            self._own[cell.name] = own = with_commit(own, self._folder, progress)
            check_repeated(
                self._in_round(cell, 1.0), self._folder / cell.name, self._seeds, progress
            )
            options = cell.options.items()
            key = json_text({name: v for name, v in options if name not in _INDEPENDENT})
            if key not in inputs:
                inputs[key] = inputs_of(run_inputs(own, progress))
            self._inputs[cell.name] = inputs[key]
        self._plan_ahead(progress)
        left = self.cells
        for fraction in self._rounds:
            for cell in left:
                if cell.failed is None and _key(fraction) not in cell.rounds:
                    for event in self._train(cell, fraction, progress, stopping):
                        yield event
                        if isinstance(event, Stopped):
                            return
            left = self._kept(left, fraction)

    def _plan_ahead(self, progress: Progress) -> None:
        """Plan all runs on a GPU before the first one, which keeps its memory until the end."""
        if not gpus():
            return
        first = self._rounds[0]
        left = [one for one in self.cells if one.failed is None and _key(first) not in one.rounds]
        for cell in left:
            own = self._in_round(cell, first)
            if own.memory_limit is None:
                try:
                    plan_ahead(own, progress)
                except RunError as error:
                    self._fail(cell, error)

    def _in_round(self, cell: Cell, fraction: float) -> TrainConfig:
        """Return the options of a cell's runs in a round."""
        own, halving = self._own[cell.name], len(self._rounds) > 1
        most = self._updates(cell, fraction) if halving else own.max_updates
        return dataclasses.replace(own, max_updates=most)

    def _fail(self, cell: Cell, error: RunError) -> None:
        cell.failed, cell.diverged = str(error), isinstance(error, DivergedError)
        self._write()

    def _train(
        self, cell: Cell, fraction: float, progress: Progress, stopping: Stopping | None
    ) -> Iterator[Event]:
        own, out = self._in_round(cell, fraction), self._folder / cell.name
        named, known = self._named | cell.options, self._inputs[cell.name]
        if own.max_updates is not None:
            named |= {"max_updates": own.max_updates}
        runs: list[dict[str, Any]] = []
        try:
            for event in train_seeds(own, out, self._seeds, named, progress, stopping, known):
                yield event
                if isinstance(event, Stopped):
                    return
                if isinstance(event, Finished):
                    self.best_by = event.summary["best_by"]
                    runs.append(_run(event.summary))
            cell.rounds[_key(fraction)] = runs
            self._write()
        except RunError as error:
            self._fail(cell, error)

    def _write(self) -> None:
        """Write the results so far to the record."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_text(self._folder / RECORD, json_text(self.result() | {"asked": self._asked}))

    def _updates(self, cell: Cell, fraction: float) -> int:
        """Return the number of updates of a run of a cell at the end of a round."""
        own = dataclasses.replace(self._config, **cell.options)
        per_epoch = updates_per_epoch(self._rows[own.unlabelled], own.target_batch)
        whole = scheduled_updates(own.epochs, per_epoch)
        most = whole if own.max_updates is None else min(whole, own.max_updates)
        return max(math.ceil(most * fraction), min(most, 1))

    def _badness(self, scores: Sequence[float]) -> float:
        """Return a number that is lower for better scores of a cell's runs."""
        return statistics.fmean(scores) * (1 if self.best_by in LOWER_IS_BETTER else -1)

    def _kept(self, cells: Sequence[Cell], fraction: float) -> list[Cell]:
        """Return the cells that continue after a round: the best third.

        After few updates, many models predict a single class and have the same score. Equal scores
        are no reason to prefer a cell: if not all cells with the same score fit in the third, only
        the better ones continue, or all with that score if there is no better one.
        """
        key = _key(fraction)
        runs = [([run["score"] for run in c.rounds.get(key, [])], c) for c in cells]
        scored = [(self._badness(s), cell) for s, cell in runs if s and None not in s]
        scored.sort(key=lambda one: one[0])
        count, scores = max(math.ceil(len(cells) * _KEPT), 1), [score for score, _ in scored]
        if len(scored) > count and (limit := scores[count]) == scores[count - 1]:
            count = scores.index(limit) or scores.count(limit)
        return [cell for _, cell in scored[:count]]

    def result(self) -> dict[str, Any]:
        """Return the results so far.

        Returns:
          `best_by`; `cells`, as `Cell.record` returns them: those trained longest first, then the
          best first, then those that failed; `best`, the options of the first cell, or None;
          `updates` of all runs, and `grid_updates`, those of the whole grid; `seconds` of all runs.
        """
        known = [cell for cell in self.cells if cell.scores]
        ranked = sorted(known, key=lambda cell: (-cell.fraction, self._badness(cell.scores)))
        records = [c.record() for c in (*ranked, *(c for c in self.cells if c not in ranked))]
        return {
            "best_by": self.best_by,
            "cells": records,
            "best": ranked[0].options if ranked else None,
            "updates": sum(record["updates"] for record in records),
            "grid_updates": self._seeds * sum(self._updates(cell, 1.0) for cell in self.cells),
            "seconds": sum(record["seconds"] for record in records),
        }


def search(
    config: TrainConfig,
    out: Path,
    grid: Grid | None,
    seeds: int,
    halving: bool,
    named: dict[str, Any],
    progress: Progress,
    stopping: Stopping | None,
    callback: Callable[[Event], None] | None,
) -> dict[str, Any]:
    """Run a `Sweep`, by default with the grid of the BERT paper, and draw its heat map.

    Returns:
      What `Sweep.result` returns, and `figures`, the paths of the figures.

    Raises:
      ConfigError, InputError: An option or file cannot be used.
    """
    chosen: Grid = PAPER if grid is None else grid
    files = {cell.options.get("unlabelled", config.unlabelled) for cell in cells_of(config, chosen)}
    labeled = len(read_tsv(tsvs_to_train_on(Path(config.data))[0]))
    rows = dict.fromkeys(files, labeled)
    for file in filter(None, files):
        labels = read_labels(Path(config.data), config.task)
        rows[file] += len(read_unlabelled(Path(file), labels, silent)[0])
    sweep = Sweep(config, out, chosen, seeds, halving, rows, named)
    with contextlib.closing(sweep.events(progress, stopping)) as events:
        for event in events:
            if callback is not None:
                callback(event)
    found = sweep.result()
    return found | {"figures": write_heat_map(out, sweep.grid, found)}


def _key(fraction: float) -> str:
    return f"{fraction:.4f}"


def _run(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a run's values in `Cell.rounds`."""
    score = summary["best_metric"]["value"]
    return {
        "score": score if score is not None and math.isfinite(score) else None,
        "updates": summary["updates"],
        "seconds": summary["total_seconds"],
    }
