"""Saves standard input and pipes to temporary files: `prepare` reads its input more than once."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertaccum.errors import BertAccumError, ConfigError, InputError, RunError, reason
from bertaccum.options.prepare import PrepareConfig
from bertaccum.system.files import open_input
from bertaccum.system.progress import Note
from bertaccum.system.temporary_paths import scratch_folder

_STDIN, _DEVICE, _NAME = "-", "/dev/stdin", "standard input"
_OPTIONS = ("train_file", "test_file")


@contextmanager
def saved_pipes(config: PrepareConfig, note: Note) -> Iterator[tuple[PrepareConfig, Note]]:
    """Replace standard input (`-`) and pipes among the options by files with their contents.

    Standard input may also be a terminal or /dev/null. Other devices are left to the reader, which
    refuses them, because a device such as /dev/zero has no end.

    Yields:
      The options, and a function that passes messages on. In messages and errors, the input has
      the name that the user gave it. The files are deleted at the end.
    """
    given = {name: path for name in _OPTIONS if (path := getattr(config, name)) is not None}
    files: dict[str, Any] = {n: _DEVICE if path == _STDIN else path for n, path in given.items()}
    pipes = {name: path for name, path in files.items() if _is_read_once(path)}
    _check(list(files.values()), pipes)
    if not pipes:
        yield dataclasses.replace(config, **files), note
        return
    with scratch_folder(Path(tempfile.gettempdir(), "bertaccum-pipe")) as folder:
        names = {}
        for option, path in pipes.items():
            is_stdin = path == _DEVICE
            saved = folder / option / ("stdin" if is_stdin else "pipe")
            names[str(saved)] = _NAME if is_stdin else path
            _save(Path(path), saved)
            files[option] = str(saved)

        def renamed(text: str) -> str:
            for saved, name in names.items():
                text = text.replace(saved, name)
            return text

        try:
            yield dataclasses.replace(config, **files), lambda line: note(renamed(line))
        except BertAccumError as error:
            where = error.path and renamed(str(error.path))
            texts = renamed(error.message), renamed(error.hint)
            raise type(error)(*texts, path=where, row=error.row) from error


def _is_read_once(path: str) -> bool:
    given = Path(path)
    is_special = path == _DEVICE and given.exists() and not given.is_file() and not given.is_dir()
    return is_special or given.is_fifo()


def _check(files: list[str], pipes: dict[str, str]) -> None:
    # If it was closed at the start, its number may now be that of another file.
    if _DEVICE in files and sys.stdin is None:
        raise InputError("is closed", "redirect a file or a pipe to it", path=_NAME)
    same = len(pipes) == 2 and Path(files[0]).samefile(files[1])
    if same or files == [_DEVICE] * 2:
        what = "`train_file` and `test_file` are the same input, which can be read only once"
        raise ConfigError(what, "pass a file as one of the two")


def _save(pipe: Path, target: Path) -> None:
    target.parent.mkdir()
    with open_input(pipe) as source:
        try:
            with target.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
        except OSError as error:
            what = f"cannot be saved in {target.parent.parent.parent} ({reason(error)})"
            remedy = "free space there, or set TMPDIR to another folder"
            raise RunError(what, remedy, path=pipe) from error
