"""The labels of a data folder, which decide its task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from bertaccum.errors import ConfigError, InputError
from bertaccum.options.task_names import (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    TASKS,
    TOKEN_CLASSIFICATION,
)
from bertaccum.system.progress import Note, ignore_note
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels, in_order, label_column
from bertaccum.tasks.regression import regression_labels
from data_prep.labels.checks import check_labels, format_notes, likely_task
from data_prep.labels.formats import LabelFormat, class_format, set_format, tag_format
from data_prep.tables.columns import PAIR
from data_prep.tables.manifest import MANIFEST, read_manifest
from data_prep.tables.spellings import merged, respelled
from data_prep.tables.table import read_rows
from data_prep.tables.tsv import read_tsv


def read_labels(folder: Path, task: str | None = None, note: Note = ignore_note) -> Labels:
    """Return the labels of a data folder, from its manifest or else from its train.tsv.

    Args:
      task: Kind of task; None for that of the manifest, or of what the labels of train.tsv suit.

    Raises:
      ConfigError: The manifest says that the folder was prepared for another task, or there is
        neither a manifest nor `task` and the labels look like scores or like several labels.
    """
    manifest, train = read_manifest(folder), folder / "train.tsv"
    if manifest is not None:
        prepared = manifest["task"]
        if prepared not in TASKS:
            unknown = f"the task {prepared!r} is unknown"
            raise InputError(unknown, "prepare the data again", path=folder / MANIFEST)
        if task not in (None, prepared):
            what = f"the data were prepared with `task` {prepared}, not {task}"
            raise ConfigError(what, "omit `task`, or prepare the data again", path=folder)
        task = prepared
    kind = task or CLASSIFICATION
    if manifest is not None and kind != REGRESSION:
        first = next(read_rows(train), None)
        names = [str(name) for name in manifest["labels"]]
        numbers = [str(number) for number in range(len(names))]
        pairs = first is not None and first.pair is not None
        _refuse_pairs(pairs, kind, train)
        label_format = manifest.get("label_format", {})
        try:
            return Labels(numbers, names, pairs, kind, format=label_format)
        except ValueError:
            unknown = f"the format of the labels {label_format!r} is unknown"
            raise InputError(unknown, "prepare the data again", path=folder / MANIFEST) from None
    table = read_tsv(train)
    if kind == REGRESSION:
        return regression_labels(train, table, PAIR in table)
    column = label_column(train, table)
    rows = dict(zip(column, map(int, table["row"]), strict=True))
    kind = task or likely_task(rows.keys(), train)
    formats: dict[str, Callable[[Collection[str]], LabelFormat]] = {
        MULTI_LABEL: set_format,
        TOKEN_CLASSIFICATION: tag_format,
    }
    _refuse_pairs(PAIR in table, kind, train)
    label_format = formats.get(kind, class_format)(rows)
    for line in format_notes(label_format, kind, task):
        note(f"{train}: {line}")
    parts = make_task(Labels([], [], task=kind, format=label_format.record())).parts(rows)
    check_labels(label_format, parts, rows, train)
    counts = Counter(label for cell in column for label in parts[cell])
    classes = {tag: tag for tag in counts} if kind == TOKEN_CLASSIFICATION else merged(counts)
    if others := respelled(classes):
        note(f"{train}: reads the labels {others}; bertaccum prepare can keep them apart")
    values = in_order(set(classes.values()))
    if len(values) < 2:
        only = f"only one class ({values[0]})" if values else "no class"
        what = f"has {only}, but a classifier needs at least two"
        raise InputError(what, "check the label column", path=train)
    return Labels(values, values, PAIR in table, kind, format=label_format.record())


def _refuse_pairs(pairs: bool, task: str, train: Path) -> None:
    if pairs and task == TOKEN_CLASSIFICATION:
        what = f"has the column {PAIR!r}, but only the words of single texts have tags"
        raise InputError(what, "remove the column, or prepare the data again", path=train)
