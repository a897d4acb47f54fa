"""The data sets of GLUE, and XNLI: files, columns and labels as they are downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from bertaccum.errors import InputError
from bertaccum.system.phrases import counted
from bertaccum.system.progress import Note, ignore_note
from data_prep.tables.rows import Records, Row
from data_prep.tables.text_files import text_lines

_FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
_AGAIN = "download the data set again, or check `dataset` and `folder`"


def plain_name(name: str) -> str:
    """Return the name of a data set in lower case, without hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


@dataclass(frozen=True)
class GlueTask:
    """A data set of GLUE."""

    name: str  # The name in GLUE's table of tasks.
    classes: Sequence[str]  # The labels in the order of the class numbers; empty for scores.
    # Names of the columns with the one or two texts.
    texts: Sequence[str] = ("sentence1", "sentence2")
    label: str = "label"  # Name of the label column, which test files lack.
    files: Mapping[str, str] = field(default_factory=lambda: _FILES)  # The file of each split.
    # For each test split, the file of predictions that GLUE accepts.
    submissions: Mapping[str, str] = field(default_factory=dict)
    headless: Sequence[str] = ()  # Names of the columns of training and dev files without a header.
    # Whether other programs skip training and dev rows with a wrong column count.
    may_be_broken: bool = False

    def facts(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return what a manifest says about a data set for which GLUE accepts predictions."""
        known = {"dataset": self.name, "submission": dict(self.submissions), "labels": list(labels)}
        return {"glue": known} if self.submissions else {}


_TABLE = yaml.safe_load(files("data_prep.sources").joinpath("glue_tasks.yaml").read_text("utf-8"))
# The data sets by their plain names.
TASKS_OF_GLUE = {plain_name(task["name"]): GlueTask(**task) for task in _TABLE}
COLA, MRPC, XNLI = (TASKS_OF_GLUE[name] for name in ("cola", "mrpc", "xnli"))


def glue_rows(
    path: Path,
    task: GlueTask,
    note: Note = ignore_note,
    labeled: bool = True,
    columns: Sequence[str] = (),
    keep: Callable[[list[str]], bool] = lambda cells: True,
) -> Iterator[Row]:
    """Yield the rows of a file. The order of test rows is that of the submission."""
    wanted = [*([task.label] if labeled else ()), *task.texts, *columns]
    skips = note if labeled and task.may_be_broken else None
    for number, cells in _cells(path, wanted, task.headless if labeled else (), skips):
        label = cells.pop(0) if labeled else None
        text, *pair = cells[: len(task.texts)]
        if keep(cells[len(task.texts) :]):
            label = None if label is None else _class(label, task, path, number)
            yield Row(number, label, text, pair[0] if pair else None)


def _class(label: str, task: GlueTask, path: Path, row: int) -> str:
    # Only the training files of XNLI have this name.
    label = "contradiction" if label == "contradictory" else label
    if task.classes and label not in task.classes:
        message = f"the label {label[:40]!r} is not one of {', '.join(task.classes)}"
        raise InputError(message, _AGAIN, path=path, row=row)
    return label


def _cells(path: Path, wanted: Sequence[str], header: Sequence[str], note: Note | None) -> Records:
    """Yield the number of each row and its cells in some columns. Fields are not quoted."""
    # With `note`, rows with a wrong column count or an empty cell are skipped.
    lines = ((row, line.rstrip("\r\n").split("\t")) for row, line in text_lines(path))
    names = list(header) or next(lines, (1, [""]))[1]
    places = [_place(name, names, path) for name in wanted]
    broken: list[int] = []
    for row, cells in lines:
        if len(cells) == len(names) and (note is None or all(cells[p] for p in places)):
            yield row, [cells[place] for place in places]
        elif note is None:
            what = f"has {counted(len(cells), 'column')}, but should have {len(names)}"
            raise InputError(what, _AGAIN, path=path, row=row)
        else:
            broken.append(row)
    if note is not None and broken:
        skipped = f"{counted(len(broken), 'row')} with missing columns (first: row {broken[0]:,})"
        note(f"{path}: skipped {skipped}, as GLUE's baselines do")


def _place(name: str, names: Sequence[str], path: Path) -> int:
    if name not in names:
        what = f"has no column {name!r}; its first row is {', '.join(names)[:200]!r}"
        raise InputError(what, _AGAIN, path=path)
    return list(names).index(name)
