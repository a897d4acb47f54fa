"""The labels of a dataset: its kind of task, its classes and the form of its texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertaccum.errors import InputError
from bertaccum.options.task_names import CLASSIFICATION, MASKED_LM, TASKS
from data_prep.tables.spellings import Finder, class_finder, flags_remedy

if TYPE_CHECKING:
    import pandas as pd

# Separates the labels of an example in the TSVs that `bertaccum prepare` writes.
SEPARATOR = "|"
# Returns the labels in each of the different cells of a label column.
Parts = Callable[[Collection[str]], Mapping[str, Sequence[str]]]
_FORMAT: dict[str, type] = {"separator": str, "lists": bool, "flags": int, "scheme": str}


@dataclass(frozen=True)
class Labels:
    """The labels of a dataset, which decide the head and the loss, and the form of its texts.

    Raises:
      ValueError: The fields are unknown or contradict each other.
    """

    # Label of each class in the TSV, in the order of the class numbers; empty for regression.
    values: list[str]
    names: list[str]  # Name of each class, for display; empty for regression.
    pairs: bool = False  # Whether the examples are pairs of texts.
    task: str = CLASSIFICATION  # Kind of task, one of `TASKS`, or `MASKED_LM`.
    mean: float = 0.0  # Mean of the labels in train.tsv, for regression.
    std: float = 1.0  # Standard deviation of the labels in train.tsv, for regression.
    # Fields of the `LabelFormat` of the training rows that differ from the plain format; files that
    # `prepare` did not write have the same format.
    format: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) for text in [*self.values, *self.names]):
            raise ValueError("a label is not a string")
        if len(self.values) != len(self.names):
            raise ValueError(f"{len(self.values)} labels but {len(self.names)} names")
        if not all(isinstance(n, int | float) for n in (self.mean, self.std)) or not self.std > 0:
            raise ValueError("the mean or the std is not a valid number")
        if self.task not in (*TASKS, MASKED_LM):
            raise ValueError(f"the task {self.task!r} is unknown")
        if not isinstance(self.format, dict) or not all(
            value and isinstance(value, _FORMAT.get(name, ()))
            for name, value in self.format.items()
        ):
            raise ValueError("the format is unknown")

    @property
    def outputs(self) -> int:
        """The number of outputs of the head: one for each class, or one for a regression."""
        return len(self.values) or 1

    def finder(self) -> Finder:
        """Return a function that finds the name or the number of the class that a label spells."""
        by_name, by_number = class_finder(self.names), class_finder(self.values)
        return lambda label: by_name(label) or by_number(label)

    @staticmethod
    def numbered(classes: int) -> Labels:
        """Return the labels of a classification whose class names are 0, 1, and so on."""
        values = [str(number) for number in range(classes)]
        return Labels(values, values)


def label_column(tsv: Path, table: pd.DataFrame) -> pd.Series[str]:
    """Return the label of each row of a table."""
    if "label" not in table:
        remedy = "run `bertaccum predict` on it, or choose a `split` or `file` that has labels"
        raise InputError("has no labels", remedy, path=tsv)
    return table["label"]


def class_numbers(
    tsv: Path, table: pd.DataFrame, labels: Labels, parts: Parts, by_name: bool
) -> list[list[int]]:
    """Return the class numbers of each row.

    Args:
      labels: Classes. Another spelling of a class is the same class, as in `spellings.merged`.
      by_name: Whether these are names of classes.
    """
    known = labels.names if by_name else labels.values
    numbers = {value: number for number, value in enumerate(known)}
    listed = ", ".join(known)
    if labels.names != known:
        listed = f"{listed} ({', '.join(labels.names)})"
    column, find = label_column(tsv, table), class_finder(known)
    by_cell: dict[str, list[int]] = {cell: [] for cell in column}
    for cell, own in parts(by_cell).items():
        for label in own:
            name = find(label)
            if name is None:
                row = int(table["row"][column == cell].iloc[0])
                what = f"label {label!r} is unknown"
                remedy = flags_remedy(labels.format.get("flags", 0)) or f"use one of {listed}"
                if by_name and class_finder(labels.values)(label):
                    remedy += "; or pass `label_form` numbers if it is a class number"
                raise InputError(what, remedy, path=tsv, row=row)
            by_cell[cell].append(numbers[name])
    return [by_cell[cell] for cell in column]


def in_order(labels: set[str]) -> list[str]:
    """Return labels sorted by value if they are whole numbers, then all others as strings."""
    return sorted(labels, key=lambda v: (0, int(v), v) if v.isdecimal() else (1, 0, v))
