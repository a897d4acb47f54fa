"""The user's own tables and folders as a source of `prepare`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from bertaccum.options.fields import TEST_COLUMNS, delimiter_character
from bertaccum.options.prepare import PrepareConfig
from bertaccum.options.task_names import MULTI_LABEL
from bertaccum.system.files import sha256
from bertaccum.system.progress import Note, Progress
from data_prep.tables.class_folders import folder_digest
from data_prep.tables.columns import read_options
from data_prep.tables.rows import Part, Source
from data_prep.tables.table import read_rows


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
    files = train.name if not test else f"{train.name} and {test.name}"
    return Source(
        description=f"your own texts ({files})",
        train=_part(train, config, note),
        given={"test": _part(test, _for_test_file(config), note, of_test=True)} if test else {},
        task=MULTI_LABEL if config.label_columns else None,
        separator=config.label_separator,
        joined=bool(config.label_columns),
    )


def _for_test_file(config: PrepareConfig) -> PrepareConfig:
    """Return options whose columns are those of `test_file`."""
    own = {name.removeprefix("test_"): getattr(config, name) for name in TEST_COLUMNS}
    return dataclasses.replace(config, **{name: v for name, v in own.items() if v is not None})


def _part(path: Path, config: PrepareConfig, note: Note, of_test: bool = False) -> Part:
    several = config.task == MULTI_LABEL
    reading = read_options(config, several_labels=several, of_test_file=of_test)
    return Part(path, read_rows(path, reading, note))
