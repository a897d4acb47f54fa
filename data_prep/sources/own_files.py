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
from bertaccum.options.task_names import MULTI_LABEL, REGRESSION, TOKEN_CLASSIFICATION
from bertaccum.system.files import open_input, sha256
from bertaccum.system.phrases import listed
from bertaccum.system.progress import Note, Progress
from bertaccum.system.temporary_paths import scratch_folder
from data_prep.sources.published_splits import check_fractions
from data_prep.tables.class_folders import children, folder_digest
from data_prep.tables.columns import read_options
from data_prep.tables.manifest import MANIFEST, manifest_of
from data_prep.tables.rows import LABEL_SEPARATOR, Part, Row, Source
from data_prep.tables.table import read_rows

_STDIN, _DEVICE, _NAME = "-", "/dev/stdin", "standard input"
_OPTIONS = ("train_file", "test_file")
_LAYOUT = "name its files train, dev and test, such as train.conll"


def own_options(config: PrepareConfig) -> dict[str, Any]:
    """Return the options and the checksums of the files that determine the result."""
    names = ("text_column", "label_column", "test_fraction", "delimiter", "encoding")
    options = {name: getattr(config, name) for name in names}
    options["delimiter"] = delimiter_character(config.delimiter)
    options |= _input("train_file", config.train_file)
    return options | _input("test_file", config.test_file)


def _input(option: str, name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    path = Path(name)
    if path.is_dir():
        return {option: path.name, f"{option}_sha256": folder_digest(path)}
    found = {option: path.name, f"{option}_sha256": sha256(path)}
    # Its labels are numbers, whose names are in the manifest.
    manifest = manifest_of(path)
    return found if manifest is None else found | {f"{option}_labels": manifest["labels"]}


def own_source(config: PrepareConfig, _: Progress, note: Note) -> Source:
    """Return the rows of `train_file` and, if given, `test_file`."""
    assert config.train_file is not None  # PrepareConfig checks this.
    train, test = Path(config.train_file), config.test_file and Path(config.test_file)
    dev = None
    if config.task == TOKEN_CLASSIFICATION and train.is_dir():
        found = split_files(train, note)
        check_fractions(found, config, str(train))
        if test and "test" in found:
            note(f"{found['test']}: not read, because `test_file` is given")
        train, dev, test = found["train"], found.get("dev"), test or found.get("test")
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


# Words in the names of files, such as `testa` in eng.testa.
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "development", "val", "valid", "validation"), "dev"),
    **dict.fromkeys(("testa", "eval", "evaluation"), "dev"),
    **dict.fromkeys(("test", "testing", "testb"), "test"),
}


def split_files(folder: Path, note: Note) -> dict[str, Path]:
    """Return the file of the sentences of each split that a folder has."""
    found, others = dict[str, Path](), list[str]()
    for path in children(folder)[1]:
        words = re.split(r"[._-]", path.name.lower())
        split = next((_SPLITS[word] for word in words if word in _SPLITS), None)
        if split in found:
            what = f"has two files named {split}, {found[split].name} and {path.name}"
            raise InputError(what, _LAYOUT, path=folder)
        if split is None:
            others.append(path.name)
        else:
            found[split] = path
    if "train" not in found:
        raise InputError("has no file named train", _LAYOUT, path=folder)
    if others:
        note(f"{folder}: skipped the files that are not those of a split ({listed(others, 3)})")
    return found


def _part(path: Path, config: PrepareConfig, note: Note, of_test: bool = False) -> Part:
    kind = {"several_labels": config.task == MULTI_LABEL}
    kind["words"] = config.task == TOKEN_CLASSIFICATION
    reading = read_options(config, **kind, of_test_file=of_test, may_lack_weights=of_test)
    rows, manifest = read_rows(path, reading, note), manifest_of(path)
    # A score is read as it is, and `tag_names` has already named the tags.
    if manifest and manifest["labels"] and config.task != REGRESSION and not config.tag_names:
        rows = _with_names(rows, manifest, reading.label_separator, path)
    return Part(path, rows)


def _with_names(
    rows: Iterator[Row], manifest: dict[str, Any], separator: str, path: Path
) -> Iterator[Row]:
    """Yield the rows of a file that `prepare` wrote with names instead of class numbers.

    The numbers differ between data folders.
    """
    several, words = (manifest["task"] == task for task in (MULTI_LABEL, TOKEN_CLASSIFICATION))
    names = {str(number): str(name) for number, name in enumerate(manifest["labels"])}
    if several and any(separator in name for name in names.values()):
        what = f"its labels contain the `label_separator` {separator!r}"
        raise ConfigError(what, "choose another `label_separator`", path=path)
    for row in rows:
        if row.label is None:
            yield row
            continue
        numbers = [row.label]
        if several:
            numbers = [number for number in row.label.split(LABEL_SEPARATOR) if number]
        elif words:
            numbers = row.label.split()
        for number in numbers:
            if number not in names:
                what = f"the label {number[:40]!r} is no class number of {MANIFEST}"
                remedy = f"correct it, or copy the file to a folder without {MANIFEST}"
                raise InputError(what, remedy, path=path, row=row.row)
        joined = (" " if words else separator).join(names[number] for number in numbers)
        yield row._replace(label=joined or separator)


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
