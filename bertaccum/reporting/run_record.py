"""One run as its folder tells it: configuration, plan, updates, evaluations, results."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertaccum.config import TrainConfig
from bertaccum.errors import ConfigError, InputError, reason
from bertaccum.files import read_mapping, read_text
from bertaccum.metrics import metric_of
from bertaccum.reporting.run_paths import RUNS, RunPaths

FINISHED, RUNNING, STOPPED = "finished", "running", "stopped"


@dataclass(frozen=True)
class Record:
    """A run that is over, under way, or was stopped.

    Args:
      paths: its folder.
      config: what it was asked to do.
      plan: how windows are cut; empty if it is not known.
      updates: lines of `metrics.jsonl`, one an update.
      events: its other lines: windows that ran out of memory.
      evaluations: lines of `eval.jsonl`.
      summary: of a run that is over; else None.
      status: finished, running or stopped.
    """

    paths: RunPaths
    config: TrainConfig
    plan: dict[str, Any]
    updates: list[dict[str, Any]]
    events: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    summary: dict[str, Any] | None
    status: str

    @property
    def name(self) -> str:
        """The folder's own name, also of a link to it."""
        return self.paths.path.resolve().name

    @property
    def inputs(self) -> dict[str, Any]:
        """What the run began with, by `inputs.json`; empty if it is not there, or damaged."""
        return read_mapping(self.paths.inputs) or {}

    @property
    def best(self) -> dict[str, Any] | None:
        """The evaluation of the model in `best/`, as training marked it; None before the first."""
        return next((e for e in reversed(self.evaluations) if e.get("best")), None)

    @property
    def best_metric(self) -> dict[str, Any] | None:
        """Name, value and update of the metric that selected the model in `best/`."""
        return metric_of(self.best, self.config.best_by)

    @property
    def seconds(self) -> float:
        """Of the whole run, or of its updates if it is not over."""
        if self.summary is not None:
            return float(self.summary["total_seconds"])
        return float(sum(update["seconds"] for update in self.updates))


def read_record(path: Path) -> Record:
    """Reads a run folder, whatever the run is doing meanwhile.

    Raises:
      InputError: there is no run, or its configuration is damaged.
    """
    paths = RunPaths(path)
    config = read_run_config(path)
    lines = whole_lines(paths.metrics)
    summary = read_mapping(paths.summary)
    status = FINISHED if summary else RUNNING if _locked(paths.lock) else STOPPED
    return Record(
        paths=paths,
        config=config,
        plan=read_mapping(paths.plan) or {},
        updates=[line for line in lines if "loss" in line],
        events=[line for line in lines if "loss" not in line],
        evaluations=whole_lines(paths.eval),
        summary=summary,
        status=status,
    )


def find_records(folder: Path = RUNS) -> Iterator[Record | InputError]:
    """The runs in a folder, oldest first; in place of a damaged one, what is wrong with it.

    Raises:
      InputError: there is no such folder.
    """
    if not folder.is_dir():
        raise InputError("there is no such folder", "train first", path=folder)
    found = [p for p in folder.iterdir() if (p / "config.yaml").is_file() and not p.is_symlink()]
    for path in sorted(found, key=lambda path: (path / "config.yaml").stat().st_mtime):
        try:
            yield read_record(path)
        except InputError as error:
            yield error


def read_run_config(run: Path) -> TrainConfig:
    """The configuration of an existing run.

    Raises:
      InputError: there is no run, or its configuration is damaged.
    """
    import yaml

    path = RunPaths(run).config
    if not path.is_file():
        raise InputError(
            "there is no run here",
            "train first, or check the path: `bertaccum runs` lists what there is",
            path=run,
        )
    try:
        return TrainConfig(**yaml.safe_load(read_text(path)))
    except (yaml.YAMLError, ConfigError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"is not a run's configuration ({reason(error)})", path=path) from None


@contextmanager
def undamaged(run: Path) -> Iterator[None]:
    """Inside, the files of a run are taken to hold what training writes.

    Raises:
      InputError: one does not.
    """
    damage = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
    try:
        yield
    except damage as error:
        raise InputError(
            f"its files are damaged ({type(error).__name__}: {error})",
            "leave this run out, or train it anew",
            path=run,
        ) from error


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a log, up to a line that is torn or damaged; none if there is no log."""
    found = []
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    for line in raw.splitlines(keepends=True):
        try:
            record = json.loads(line)
            if not (line.endswith(b"\n") and isinstance(record["update"], int)):
                break
        except (ValueError, KeyError, TypeError, RecursionError):
            break  # Nobody wrote anything after a torn line.
        found.append(record)
    return found


def _locked(path: Path) -> bool:
    """Whether a process trains into the folder."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # There is none, or it is not ours to read.
    return False
