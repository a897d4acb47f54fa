"""The classes of a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bertaccum.errors import InputError


@dataclass(frozen=True)
class Labels:
    """The classes of a task, in the order of their numbers.

    Args:
      values: Label of each class in the TSV.
      names: Name of each class, for display.
    """

    values: list[str]
    names: list[str]


def labels_of(tsv: Path, table: pd.DataFrame) -> pd.Series[str]:
    """Return the label of each row of a TSV.

    Args:
      tsv: Path of the TSV, for error messages.
      table: Rows of the TSV.

    Raises:
      InputError: The TSV has no labels.
    """
    if "label" not in table:
        raise InputError(
            "has no labels",
            "run `bertaccum predict` on it, or prepare the data with `layout` plain (in the cola"
            " layout, test.tsv has no labels)",
            path=tsv,
        )
    return table["label"]


def _known(labels: Labels) -> str:
    numbers = ", ".join(labels.values)
    return numbers if labels.names == labels.values else f"{numbers} ({', '.join(labels.names)})"


def _class_numbers(tsv: Path, table: Any, labels: Labels) -> np.ndarray:
    numbers = labels_of(tsv, table).map({value: i for i, value in enumerate(labels.values)})
    unknown = numbers.isna()
    if unknown.any():
        first = table[unknown].iloc[0]
        raise InputError(
            f"label {first['label']!r} is unknown",
            f"use one of {_known(labels)}",
            path=tsv,
            row=int(first["row"]),
        )
    return numbers.to_numpy(np.int32)
