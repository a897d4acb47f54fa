"""The user's own tables and folders as a source of `prepare`, also from pipes."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertaccum.errors import BertAccumError, ConfigError, InputError, RunError, reason
from bertaccum.options.fields import TEST_COLUMNS, delimiter_character, tag_names
from bertaccum.options.prepare import PrepareConfig
from bertaccum.options.task_names import MULTI_LABEL, TOKEN_CLASSIFICATION
from bertaccum.system.files import open_input, sha256
from bertaccum.system.progress import Note, Progress
from bertaccum.system.temporary_paths import scratch_folder
from data_prep.tables.class_folders import folder_digest
from data_prep.tables.columns import read_options
from data_prep.tables.rows import Part, Source
from data_prep.tables.table import read_rows

_STDIN, _DEVICE, _NAME = "-", "/dev/stdin", "standard input"
_OPTIONS = ("train_file", "test_file")


def own_options(config: PrepareConfig) -> dict[str, Any]:
    """Return the options and the checksums of the files that determine the result."""
    names = ("text_column", "label_column", "test_fraction", "delimiter", "encoding")
    options = {name: getattr(config, name) for name in names}
    options["delimiter"] = delimiter_character(config.delimiter)
    options |= _input("train_file", config.train_file)
    return options | _input("test_file", config.test_file)


def _input(option: str, name: str | None) -> dict[str, str]:
    if name is None:
        return {}
    path = Path(name)
    digest = folder_digest(path) if path.is_dir() else sha256(path)
    return {option: path.name, f"{option}_sha256": digest}


def own_source(config: PrepareConfig, _: Progress, note: Note) -> Source:
    """Return the rows of `train_file` and, if given, `test_file`."""
    assert config.train_file is not None  # PrepareConfig checks this.
    train, test = Path(config.train_file), config.test_file and Path(config.test_file)
    dev = None
    if config.task == TOKEN_CLASSIFICATION and train.is_dir():
        train, dev, found = split_files(train)
        test = test or found
    files = train.name if not test else f"{train.name} and {test.name}"
    own = {name.removeprefix("test_"): getattr(config, name) for name in TEST_COLUMNS}
    of_test = dataclasses.replace(config, **{name: v for name, v in own.items() if v is not None})
    return Source(
        description=f"your own texts ({files})",
        train=_part(train, config, note),
        given={
            **({"dev": _part(dev, config, note)} if dev else {}),
            **({"test": _part(test, of_test, note, of_test=True)} if test else {}),
        },
        task=MULTI_LABEL if config.label_columns else None,
        order=tag_names(config.tag_names),
        separator=config.label_separator,
        joined=bool(config.label_columns),
    )


_SPLITS = (
    ("train", "training"),
    ("dev", "valid", "validation", "testa", "eval"),
    ("test", "testb"),
)


def split_files(folder: Path) -> tuple[Path, Path | None, Path | None]:
    """Return the files of the training, dev and test sentences in a folder; None for no file."""
    found: list[Path | None] = []
    for names in _SPLITS:
        files = [path for path in sorted(folder.iterdir()) if _stem(path) in names]
        if len(files) > 1 or not (files or found):
            what = f"has {len(files) or 'no'} files named {names[0]}"
            remedy = "name its files train, dev and test, such as train.conll"
            raise InputError(what, remedy, path=folder)
        found.append(files[0] if files else None)
    train, dev, test = found
    assert train is not None
    return train, dev, test


def _stem(path: Path) -> str:
    """Return the part of a file's name that tells its split, such as `testa` of eng.testa."""
    words = re.split(r"[._-]", path.name.lower()) if path.is_file() and path.name[0] != "." else []
    known = {name for names in _SPLITS for name in names}
    return next((word for word in words if word in known), "")


def _part(path: Path, config: PrepareConfig, note: Note, of_test: bool = False) -> Part:
    kind = {"several_labels": config.task == MULTI_LABEL}
    kind["words"] = config.task == TOKEN_CLASSIFICATION
    reading = read_options(config, **kind, of_test_file=of_test)
    return Part(path, read_rows(path, reading, note))


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
