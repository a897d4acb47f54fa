"""The data sets of GLUE, and XNLI: files, columns and labels as they are downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertaccum.errors import InputError
from bertaccum.progress import Note, unheard
from data_prep.rows import Row
from data_prep.text_files import text_lines

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
# The order of the classes in run_classifier.py of google-research/bert.
_INFERENCE = ("contradiction", "entailment", "neutral")
_FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
_AGAIN = "download the data set again, or check `dataset` and `folder`"


@dataclass(frozen=True)
class GlueTask:
    """A data set of GLUE.

    Args:
      name: The name in GLUE's table of tasks.
      texts: Names of the columns with the one or two texts.
      label: Name of the label column, which test files lack.
      classes: The labels in the order of the class numbers; empty for scores.
      files: The file of each split.
      submissions: For each test split, the file of predictions that GLUE accepts.
      headless: Names of the columns of training and dev files without a header.
      may_be_broken: Whether other programs skip training and dev rows with a wrong column count.
    """

    name: str
    texts: tuple[str, ...] = ("sentence1", "sentence2")
    label: str = "label"
    classes: tuple[str, ...] = _BINARY
    files: Mapping[str, str] = field(default_factory=lambda: _FILES)
    submissions: Mapping[str, str] = field(default_factory=dict)
    headless: tuple[str, ...] = ()
    may_be_broken: bool = False


def _task(name: str, **options: object) -> GlueTask:
    return GlueTask(name, **({"submissions": {"test": f"{name}.tsv"}} | options))  # type: ignore[arg-type]


COLA = _task("CoLA", texts=("sentence",), headless=("source", "label", "mark", "sentence"))
MRPC = _task("MRPC", texts=("#1 String", "#2 String"), label="Quality")
MNLI = _task(
    "MNLI",
    label="gold_label",
    classes=_INFERENCE,
    files={
        "train": "train.tsv",
        "dev": "dev_matched.tsv",
        "test": "test_matched.tsv",
        "dev-mismatched": "dev_mismatched.tsv",
        "test-mismatched": "test_mismatched.tsv",
    },
    submissions={"test": "MNLI-m.tsv", "test-mismatched": "MNLI-mm.tsv"},
)
XNLI = GlueTask("XNLI", label="gold_label", classes=_INFERENCE)
_QUESTIONS = ("question1", "question2")
TASKS_OF_GLUE = (
    COLA,
    _task("SST-2", texts=("sentence",)),
    MRPC,
    _task("QQP", texts=_QUESTIONS, label="is_duplicate", may_be_broken=True),
    _task("STS-B", label="score", classes=()),
    MNLI,
    _task("QNLI", texts=("question", "sentence"), classes=_ENTAILMENT),
    _task("RTE", classes=_ENTAILMENT),
    _task("WNLI"),
    XNLI,
)


def plain_name(name: str) -> str:
    """Return the name of a data set in lower case, without hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def glue_rows(
    path: Path,
    task: GlueTask,
    note: Note = unheard,
    labeled: bool = True,
    columns: Sequence[str] = (),
    keep: Callable[[list[str]], bool] = lambda cells: True,
) -> Iterator[Row]:
    """Yield the rows of a file. The order of test rows is that of the submission.

    Args:
      path: The file.
      task: The data set.
      note: Called with a sentence about rows that are skipped.
      labeled: Whether the file has labels, as only training and dev files do.
      columns: Further columns.
      keep: Returns whether to yield a row, given its cells in `columns`.

    Raises:
      InputError: The file or one of its rows cannot be used.
    """
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


def _cells(
    path: Path, wanted: Sequence[str], header: Sequence[str], note: Note | None
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each row and its cells in some columns. Fields are not quoted.

    With `note`, rows with a wrong column count or an empty cell are skipped.
    """
    lines = ((row, line.rstrip("\r\n").split("\t")) for row, line in text_lines(path))
    names = list(header) or next(lines, (1, [""]))[1]
    places = [_place(name, names, path) for name in wanted]
    broken: list[int] = []
    for row, cells in lines:
        if len(cells) == len(names) and (note is None or all(cells[p] for p in places)):
            yield row, [cells[place] for place in places]
        elif note is None:
            what = f"has {len(cells)} columns, but should have {len(names)}"
            raise InputError(what, _AGAIN, path=path, row=row)
        else:
            broken.append(row)
    if note is not None and broken:
        note(
            f"{path}: skipped {len(broken):,} rows with missing columns (first: row {broken[0]:,}),"
            " as GLUE's baselines do"
        )


def _place(name: str, names: Sequence[str], path: Path) -> int:
    if name not in names:
        what = f"has no column {name!r}; its first row is {', '.join(names)[:200]!r}"
        raise InputError(what, _AGAIN, path=path)
    return list(names).index(name)


def language_rows(path: Path, language: str) -> Iterator[Row]:
    """Yield the rows of XNLI's dev or test file in one language.

    Raises:
      InputError: The file has no such rows, or a row cannot be used.
    """
    found: set[str] = set()

    def is_wanted(cells: list[str]) -> bool:
        found.update(cells)
        return cells == [language]

    yield from glue_rows(path, XNLI, columns=["language"], keep=is_wanted)
    if language not in found:
        raise InputError(
            f"has no rows in the `language` {language!r}",
            f"choose one of {', '.join(sorted(found))}",
            path=path,
        )
