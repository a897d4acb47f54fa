"""Records of runs, read from run folders: configuration, plan, updates, evaluations, results."""

from __future__ import annotations

import fcntl
import json
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertaccum.errors import ConfigError, InputError, reason
from bertaccum.options.commands import TrainConfig
from bertaccum.options.fields import field_names
from bertaccum.options.metrics import metric_of
from bertaccum.options.pretraining import hidden_options, train_config
from bertaccum.runs.paths import RunPaths
from bertaccum.system.files import open_input, read_mapping

FINISHED, RUNNING, STOPPED = "finished", "running", "stopped"
# Kinds of the lines in the logs.
UPDATED, EVALUATED, OUT_OF_MEMORY = "updated", "evaluated", "out_of_memory"
# Bytes in the longest line of a log that is read.
_LONGEST_LINE = 1 << 22

# Errors that unexpected contents of a file can cause.
_DAMAGE = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Record:
    """A run that has finished, is running or was stopped.

    Args:
      paths: The files of the run.
      config: The configuration of the run.
      plan: The content of plan.json, such as how windows are split; empty if unknown.
      updates: The lines of `metrics.jsonl` for updates.
      out_of_memory: Its lines for updates that ran out of memory.
      evaluations: The lines of `eval.jsonl`.
      summary: The summary of a finished run; None for other runs.
      status: `finished`, `running` or `stopped`.
    """

    paths: RunPaths
    config: TrainConfig
    plan: dict[str, Any]
    updates: list[dict[str, Any]]
    out_of_memory: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    summary: dict[str, Any] | None
    status: str

    @property
    def name(self) -> str:
        """The name of the run folder, even if `paths` names a link to the folder."""
        return self.paths.path.resolve().name

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs of the run from `inputs.json`; empty if the file is missing or damaged."""
        return read_mapping(self.paths.inputs) or {}

    @property
    def best(self) -> dict[str, Any] | None:
        """The evaluation of the model in `best/`; None before the first evaluation."""
        return next((e for e in reversed(self.evaluations) if e.get("best")), None)

    @property
    def best_metric(self) -> dict[str, Any] | None:
        """The name, value and update of the metric that selected the model in `best/`."""
        return metric_of(self.best, self.best_by)

    @property
    def best_by(self) -> str:
        """The name of that metric, which training saves in the configuration."""
        return self.config.best_by or "accuracy"

    @property
    def seconds(self) -> float:
        """The duration of a finished run, or of the updates so far, in seconds."""
        if self.summary is not None:
            return float(self.summary["total_seconds"])
        return float(sum(update["seconds"] for update in self.updates))


def read_record(path: Path) -> Record:
    """Return the record of a run, which may be running.

    Raises:
      InputError: There is no run in the folder, or its configuration is damaged.
    """
    paths = RunPaths(path)
    lines = whole_lines(paths.metrics)
    summary = read_mapping(paths.summary)
    status = FINISHED if summary else RUNNING if _locked(paths.lock) else STOPPED
    return Record(
        paths=paths,
        config=read_run_config(path),
        plan=read_mapping(paths.plan) or {},
        updates=[line for line in lines if line["kind"] == UPDATED],
        out_of_memory=[line for line in lines if line["kind"] == OUT_OF_MEMORY],
        evaluations=whole_lines(paths.eval),
        summary=summary,
        status=status,
    )


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders in a folder, oldest first, after folders that cannot be read.

    Raises:
      InputError: The folder does not exist.
    """
    if not folder.is_dir():
        raise InputError("there is no such folder", "train first, or check the path", path=folder)
    found = list[tuple[float, Path]]()
    for path in folder.iterdir():
        if path.is_symlink():
            continue
        try:
            config = (path / "config.yaml").stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # The folder may belong to another user.
            found.append((0.0, path))
            continue
        if stat.S_ISREG(config.st_mode):
            found.append((config.st_mtime, path))
    return [path for _, path in sorted(found, key=lambda one: one[0])]


def read_run_config(run: Path) -> TrainConfig:
    """Return the configuration of a run.

    Raises:
      InputError: There is no run in the folder, or its configuration is damaged.
    """
    import yaml

    from bertaccum.system.yaml_loader import Loader

    path = RunPaths(run).config
    if not path.is_file():
        raise InputError(
            "there is no run here",
            "train first, or check the path: `bertaccum runs` lists all runs",
            path=run,
        )
    try:
        return train_config(Loader(path).get_single_data())
    except (yaml.YAMLError, ConfigError, *_DAMAGE) as error:
        raise InputError(
            f"is not the configuration of a run ({reason(error)})", path=path
        ) from None


def config_to_resume(run: Path, asked: Iterable[str]) -> TrainConfig:
    """Return the configuration with which a run began.

    Args:
      run: Run folder.
      asked: Names of the options that the user set.

    Raises:
      ConfigError: An option is one of the other command, so it has no effect.
      InputError: There is no run in the folder, or its configuration is damaged.
    """
    config = read_run_config(run)
    command, known = "pretrain" if config.predicts_masked else "train", field_names(type(config))
    for name in asked:
        if name not in known - hidden_options(type(config)):
            what = f"`{name}` has no effect on {run}, which began with `bertaccum {command}`"
            raise ConfigError(what, f"omit `{name}`")
    return config


@contextmanager
def undamaged(run: Path) -> Iterator[None]:
    """Turn errors from unexpected contents of run files into an InputError that names the run.

    Raises:
      InputError: A file does not have the contents that training writes.
    """
    try:
        yield
    except _DAMAGE as error:
        raise InputError(
            f"the files of this run are damaged ({type(error).__name__}: {error})",
            "leave this run out, or train again",
            path=run,
        ) from error


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log up to the first damaged one; empty if there is no log."""
    if not path.is_file():
        return []
    found = []
    with open_input(path) as file:
        for line in iter(partial(file.readline, _LONGEST_LINE), b""):
            try:
                record = json.loads(line)
                known = isinstance(record["update"], int) and isinstance(record["kind"], str)
                if not (line.endswith(b"\n") and known):
                    break
            except (ValueError, KeyError, TypeError, RecursionError):
                break  # Ignore the rest: a crash damages only the end of a log.
            found.append(record)
    return found


def _locked(path: Path) -> bool:
    """Return whether a process is training in the folder."""
    if not path.is_file():  # Opening a named pipe would wait for its writer.
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # Other errors mean that the lock file is missing or unreadable.
        return isinstance(error, BlockingIOError)
    return False
