"""Writing the run folder: configuration, inputs, logs and results of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml

from bertaccum.errors import ConfigError, InputError, RunError, reason
from bertaccum.options.commands import TrainConfig
from bertaccum.options.pretraining import hidden_options
from bertaccum.runs.paths import LATEST, NOT_SAVED_YET, RUNS, RunPaths
from bertaccum.runs.record import OUT_OF_MEMORY, whole_lines
from bertaccum.system.atomic import new_folder, sync, write_text
from bertaccum.system.files import json_text, refuse_special
from bertaccum.system.locks import lock
from bertaccum.system.progress import Note, ignore_note
from bertaccum.system.temporary_paths import beside, remove, remove_abandoned

# Number of times to retry a lock, and the seconds between the attempts.
_LOOKS, _LOOK_SECONDS = 3, 0.1


class RunFolder(RunPaths):
    """The folder of a run, for writing."""

    @staticmethod
    def new_path(out: str | None) -> Path:
        """Return the path of a new run folder, by default `runs/` and the current time.

        Raises:
          ConfigError: The path exists, is not valid, or cannot be created.
        """
        path = Path(out) if out else _unused_name()
        try:
            if path.exists() or path.is_symlink():
                raise _exists(path)
            parent = next(p for p in path.resolve().parents if p.exists())
        except OSError as error:
            raise ConfigError(f"`out` {path} is not a valid path ({error.strerror})") from None
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise ConfigError(
                f"`out` {path} cannot be created in {parent}", "choose another folder"
            )
        return path

    def create(self, config: TrainConfig, inputs: dict[str, Any]) -> None:
        """Create the folder with its configuration and inputs.

        Raises:
          ConfigError: Another run has created the folder in the meantime.
          RunError: The folder cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with new_folder(self.path, existing="refuse") as folder:
                (folder / self.checkpoints.name).mkdir()
                (folder / self.checkpoints.name / NOT_SAVED_YET).touch()
                write_text(folder / self.config.name, _yaml(config))
                write_text(folder / self.inputs.name, json_text(inputs))
        except OSError as error:
            if self.path.exists():  # Another run began since `new_path` was called.
                if config.out is not None:
                    raise _exists(self.path) from None
                super().__init__(_unused_name())
                return self.create(config, inputs)
            raise RunError(
                f"cannot be written ({error.strerror})", "choose another `out`", path=self.path
            ) from None

    def write_config(self, config: TrainConfig) -> None:
        """Write a fully resolved configuration."""
        write_text(self.config, _yaml(config))

    @contextmanager
    def locked(self, note: Note = ignore_note) -> Iterator[None]:
        """Lock the folder, so that no other process trains in it; the lock ends with this process.

        Args:
          note: Called with a message if the file system has no locks.

        Raises:
          InputError: Another process is training in the folder, or a part is a link or a pipe.
          RunError: The lock file cannot be written.
        """
        self._refuse_links()
        with _opened(self.lock, "a+") as file:
            try:
                if not _lock(file):
                    what = f"{self.path}: its file system has no locks"
                    note(f"{what}, so make sure that no other process trains in this folder")
            except BlockingIOError:
                file.seek(0)
                raise InputError(
                    f"process {file.read().strip()} is training in this folder",
                    "wait for it to finish, or stop it",
                    path=self.path,
                ) from None
            try:
                file.truncate(0)
                os.write(file.fileno(), str(os.getpid()).encode())
            except OSError as error:
                raise _unwritable(self.lock, error) from None
            yield

    def point_latest(self) -> str | None:
        """Point `runs/latest` to this run if it is in `runs`; return a note if that is impossible.

        The link is relative, so that `runs` can be moved.
        """
        link = RUNS / LATEST
        if self.path.resolve().parent != RUNS.resolve():
            return None
        remedy = f"pass `run` {self.path} to later commands"
        if link.exists() and not link.is_symlink():  # For example, a copy of `runs` has a folder.
            what = f"{link} is not a link, so it does not stand for this run"
            return None if link.samefile(self.path) else f"{what}; {remedy}, or delete {link}"
        temporary = beside(link)
        try:
            temporary.symlink_to(self.path.name, target_is_directory=True)
            temporary.replace(link)
        except OSError as error:  # Google Drive, exFAT and some shared folders have no links.
            temporary.unlink(missing_ok=True)
            what = f"{link} cannot be made a link to this run ({reason(error)})"
            return f"{what}; {remedy}"
        return None

    def _refuse_links(self) -> None:
        """Raise InputError if training would write through a link or to a pipe, or replace it."""
        parts = (self.lock, self.metrics, self.eval, self.checkpoints, self.best, self.tensorboard)
        for path in parts:
            if path.is_symlink():
                raise InputError(
                    f"is a link to {path.readlink()}, and training follows no link in a run folder",
                    "replace it with what it points to, or delete it",
                    path=path,
                )
            refuse_special(path)

    def set_aside_best(self, update: int) -> None:
        """Rename `best/`, saved after `update`: the run goes back to before this update."""
        aside = self.best_aside(update)
        if aside.exists():  # The same model was set aside before.
            remove(self.best)
        else:
            self.best.rename(aside)

    def rewind(self, update: int, evaluated: int, shrinkings: int = 0) -> None:
        """Undo everything that the run wrote after a checkpoint.

        This removes later log lines, the summary and incomplete files.

        Args:
          update: Last update to keep in `metrics.jsonl`.
          evaluated: Last evaluated update to keep in `eval.jsonl`; 0 if none.
          shrinkings: How often memory had run out; the last time may be in the next update.
        """
        self.summary.unlink(missing_ok=True)
        for path, last in ((self.metrics, update), (self.eval, evaluated)):
            if path.exists():
                lines = whole_lines(path)
                failed = [line for line in lines if line["kind"] == OUT_OF_MEMORY][:shrinkings]
                # A run evaluates update 0 only because it ends there, so not when it goes on.
                kept = [line for line in lines if 0 < line["update"] <= last or line in failed]
                write_text(path, "".join(json_text(line, indent=None) for line in kept))
        for folder in (self.path, self.checkpoints):
            remove_abandoned(folder)

    def sync_logs(self) -> None:
        """Flush the logs to disk, so that no checkpoint lacks its log lines after a crash."""
        for path in (self.metrics, self.eval):
            if path.exists():
                sync(path)

    def write_json(self, path: Path, values: dict[str, Any]) -> None:
        write_text(path, json_text(values))

    def append(self, path: Path, record: dict[str, Any]) -> None:
        """Append one line to `metrics.jsonl` or `eval.jsonl`.

        Raises:
          RunError: The line cannot be written.
        """
        try:
            with _opened(path, "a") as file:
                file.write(json_text(record, indent=None))
        except OSError as error:
            raise _unwritable(path, error) from None


def _opened(path: Path, mode: str) -> IO[str]:
    """Open a text file for writing; raise OSError if it is a link."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666)

    return open(path, mode, encoding="utf-8", opener=opener)


def _lock(file: IO[str]) -> bool:
    """Lock a file; try again if busy, because processes that only read also lock it briefly."""
    for _ in range(_LOOKS):
        with contextlib.suppress(BlockingIOError):
            return lock(file, wait=False)
        time.sleep(_LOOK_SECONDS)
    return lock(file, wait=False)


def _unwritable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"cannot be written ({error.strerror})",
        "free disk space or fix the permissions, then run again with `resume`",
        path=path,
    )


def _exists(path: Path) -> ConfigError:
    """Return the error to raise if the folder for a new run exists."""
    is_run = (path / "config.yaml").is_file()
    resume = f"resume the run with `resume` {path}, or " if is_run else ""
    return ConfigError(f"`out` {path} exists", f"{resume}choose another folder")


def _unused_name() -> Path:
    """Return an unused path in `runs/`, named after the current time, with a number if needed."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    names = itertools.chain([now], (f"{now}-{number}" for number in itertools.count(2)))
    return next(RUNS / name for name in names if not (RUNS / name).exists())


def _yaml(config: TrainConfig) -> str:
    # `task` tells that a run was pretrained.
    hidden = hidden_options(type(config)) - {"task"}
    values = {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if value is not None and name not in hidden | {"out"}
    }
    header = "# Options of this run. To repeat the run, pass this file as a configuration file.\n"
    return header + yaml.safe_dump(values, sort_keys=False)
