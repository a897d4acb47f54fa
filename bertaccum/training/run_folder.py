"""The run folder: where a run writes what it was, what it did and what it made."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import itertools
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml

from bertaccum.atomic import beside, new_folder, remove_unfinished, settle, sync, write_text
from bertaccum.config import TrainConfig
from bertaccum.errors import ConfigError, InputError, RunError
from bertaccum.files import json_text, read_mapping
from bertaccum.reporting.run_paths import LATEST, RUNS, RunPaths
from bertaccum.reporting.run_record import whole_lines

# So often, and so long in between, a lock is tried.
_LOOKS, _LOOK_SECONDS = 3, 0.1


class RunFolder(RunPaths):
    """Writes one run's folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # What tells its states from those of other runs.
        self.mark = secrets.token_hex(8)

    @staticmethod
    def new_path(out: str | None) -> Path:
        """Where a new run goes.

        Raises:
          ConfigError: something is there already.
        """
        path = Path(out) if out else _unused_name()
        try:
            if path.exists() or path.is_symlink():
                resume = (path / "config.yaml").is_file()
                raise ConfigError(
                    f"`out` {path} exists",
                    f"continue it with `resume` {path}, or name another folder"
                    if resume
                    else "name another folder",
                )
            parent = next(p for p in path.resolve().parents if p.exists())
        except OSError as error:
            raise ConfigError(f"`out` {path} is not a possible name ({error.strerror})") from None
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise ConfigError(f"`out` {path} cannot be made in {parent}", "name another folder")
        return path

    def create(self, config: TrainConfig, inputs: dict[str, Any]) -> None:
        """Makes the folder with what decides the run, and points `runs/latest` to it.

        Args:
          config: the configuration, nothing left to be derived.
          inputs: digests of the data and what else they mean.

        Raises:
          RunError: the folder cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with new_folder(self.path, existing="refuse") as folder:
                (folder / self.checkpoints.name).mkdir()
                write_text(folder / self.config.name, _yaml(config))
                write_text(folder / self.inputs.name, json_text(inputs))
            _point_latest_to(self.path)
        except OSError as error:
            raise RunError(
                f"cannot be written ({error.strerror})", "choose another `out`", path=self.path
            ) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process trains into this folder; the system ends it with ours.

        Raises:
          InputError: another one does.
        """
        with self.lock.open("a+") as file:
            try:
                _lock(file)
            except BlockingIOError:
                file.seek(0)
                raise InputError(
                    f"process {file.read().strip()} is training into this folder",
                    "wait for it, or stop it",
                    path=self.path,
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def rewind(self, update: int, evaluated: int) -> None:
        """Back to a saved state: forgets what was logged after these, and a best model of none.

        Also a summary, and what a process that was killed left half written.
        """
        self.summary.unlink(missing_ok=True)
        for path, last in ((self.metrics, update), (self.eval, evaluated)):
            if path.exists():
                kept = [line for line in whole_lines(path) if line["update"] <= last]
                write_text(path, "".join(json_text(line, indent=None) for line in kept))
        settle(self.best)
        if not evaluated and self.best.exists():
            self.best.rename(beside(self.best))
        for folder in (self.path, self.checkpoints):
            remove_unfinished(folder)

    def sync_logs(self) -> None:
        """Has the logs on the disk, so that no state is saved whose updates they lack."""
        for path in (self.metrics, self.eval):
            if path.exists():
                sync(path)

    def write_json(self, path: Path, values: dict[str, Any]) -> None:
        write_text(path, json_text(values))

    def read_plan(self) -> dict[str, Any]:
        """What `plan.json` holds; nothing if it is not there, or damaged."""
        return read_mapping(self.plan) or {}

    def append(self, path: Path, record: dict[str, Any]) -> None:
        """Adds one line to `metrics.jsonl` or `eval.jsonl`.

        Raises:
          RunError: it cannot be written.
        """
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json_text(record, indent=None))
        except OSError as error:
            raise RunError(
                f"cannot be written ({error.strerror})",
                "free disk space or fix the permissions, then run again with `resume`",
                path=path,
            ) from None


class Bystander(RunFolder):
    """The run folder as workers have it that are not the chief: nothing is written or read."""

    def create(self, config: TrainConfig, inputs: dict[str, Any]) -> None:
        """Nothing."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nothing is locked."""
        yield

    def rewind(self, update: int, evaluated: int) -> None:
        """Nothing."""

    def sync_logs(self) -> None:
        """Nothing."""

    def write_json(self, path: Path, values: dict[str, Any]) -> None:
        """Nothing."""

    def read_plan(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def append(self, path: Path, record: dict[str, Any]) -> None:
        """Nothing."""


def _lock(file: IO[str]) -> None:
    """Raises BlockingIOError if another process trains; one that only looks is waited for."""
    for _ in range(_LOOKS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOOK_SECONDS)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _unused_name() -> Path:
    """A folder named by the time; two runs may start in one second."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    names = itertools.chain([now], (f"{now}-{number}" for number in itertools.count(2)))
    return next(RUNS / name for name in names if not (RUNS / name).exists())


def _point_latest_to(path: Path) -> None:
    """`runs/latest`, for runs that are in `runs`; a relative link survives moving the folder."""
    link = RUNS / LATEST
    if path.resolve().parent != RUNS.resolve() or (link.exists() and not link.is_symlink()):
        return
    temporary = beside(link)
    temporary.symlink_to(path.name, target_is_directory=True)
    temporary.replace(link)


def _yaml(config: TrainConfig) -> str:
    values = {k: v for k, v in dataclasses.asdict(config).items() if v is not None and k != "out"}
    header = "# The options of this run. Given as a configuration file, they repeat it.\n"
    return header + yaml.safe_dump(values, sort_keys=False)
