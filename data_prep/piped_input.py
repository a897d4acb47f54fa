"""Saves standard input and pipes to temporary files: `prepare` reads its input more than once."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertaccum.errors import BertAccumError, RunError, reason
from bertaccum.files import open_input
from bertaccum.prepare_config import PrepareConfig
from bertaccum.progress import Note
from bertaccum.temporary_paths import scratch_folder

_STDIN, _DEVICE = "-", "/dev/stdin"
_OPTIONS = ("train_file", "test_file")


@contextmanager
def saved_pipes(config: PrepareConfig, note: Note) -> Iterator[tuple[PrepareConfig, Note]]:
    """Replace standard input (`-`) and pipes among the options by files with their contents.

    Args:
      config: Options of `prepare`.
      note: Called with messages about the files.

    Yields:
      The options, and a function that passes messages on. In messages and errors, the input has
      the name that the user gave it. The files are deleted at the end.

    Raises:
      InputError: A pipe cannot be read.
      RunError: The contents cannot be saved.
    """
    given = {name: path for name in _OPTIONS if (path := getattr(config, name)) is not None}
    files: dict[str, Any] = {n: _DEVICE if path == _STDIN else path for n, path in given.items()}
    pipes = {name: path for name, path in files.items() if Path(path).is_fifo()}
    if not pipes:
        yield dataclasses.replace(config, **files), note
        return
    with scratch_folder(Path(tempfile.gettempdir(), "bertaccum-pipe")) as folder:
        names = {}
        for option, path in pipes.items():
            is_stdin = path == _DEVICE
            saved = folder / option / ("stdin" if is_stdin else "pipe")
            names[str(saved)] = "standard input" if is_stdin else path
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


def _save(pipe: Path, target: Path) -> None:
    target.parent.mkdir()
    with open_input(pipe) as source:
        try:
            with target.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
        except OSError as error:
            raise RunError(
                f"cannot be saved in {target.parent.parent.parent} ({reason(error)})",
                "free space there, or set TMPDIR to another folder",
                path=pipe,
            ) from error
