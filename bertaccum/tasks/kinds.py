"""The kinds of tasks, each defined in a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from bertaccum.errors import ConfigError, InputError
from bertaccum.options.task_names import (
    CLASSIFICATION,
    MASKED_LM,
    MULTI_LABEL,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)
from bertaccum.tasks.classification import Classification
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.masked_lm import MaskedLM
from bertaccum.tasks.multi_label import MultiLabel
from bertaccum.tasks.regression import Regression
from bertaccum.tasks.task import PLAIN, Decoding, Task
from bertaccum.tasks.token_classification import TokenClassification
from data_prep.tables.manifest import MANIFEST, manifest_of
from data_prep.tables.spellings import class_finder

_KINDS: dict[str, Callable[[Labels, Decoding, float], Task]] = {
    CLASSIFICATION: Classification,
    REGRESSION: Regression,
    MULTI_LABEL: MultiLabel,
    TOKEN_CLASSIFICATION: TokenClassification,
    MASKED_LM: MaskedLM,
}


def make_task(labels: Labels, decoding: Decoding | None = None, smoothing: float = 0.0) -> Task:
    """Return the task of a dataset."""
    return _KINDS[labels.task](labels, decoding or PLAIN, smoothing)


def check_options(task: Task, used: Iterable[str]) -> None:
    """Raise ConfigError if an option is used that does not suit the task."""
    for name in used:
        if name not in task.options:
            kind = task.labels.task
            raise ConfigError(f"`{name}` cannot be used with the task {kind}", f"omit `{name}`")


def task_in(tsv: Path, task: Task) -> Task:
    """Return a task that encodes the labels of a TSV.

    A TSV that `prepare` wrote contains class numbers, which differ between data folders, as the
    spelling of a class may.
    """
    known = task.labels.names
    names = [str(name) for name in (manifest_of(tsv) or {}).get("labels", [])]
    if not known or not names:
        return task
    find = class_finder(known)
    classes = [find(name) for name in names]
    for name, own in zip(names, classes, strict=True):
        if own is None or (own != name and classes.count(own) > 1):
            remedy = f"prepare the file with the classes of the run: {', '.join(known)}"
            raise InputError(f"the run has no class {name!r}", remedy, path=tsv.parent / MANIFEST)
    # A class without a number cannot occur in the TSV.
    numbers = [str(classes.index(name)) if name in classes else "-" for name in known]
    return make_task(replace(task.labels, values=numbers, format={}))
