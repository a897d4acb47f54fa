"""The classes of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bertaccum.errors import InputError


@dataclass(frozen=True)
class Labels:
    """The classes of a task: how the TSV writes them and what people call them."""

    values: list[str]
    names: list[str]


def labels_of(tsv: Path, table: pd.DataFrame) -> pd.Series[str]:
    """Return the label of each row of a TSV.

    Raises:
      InputError: it has none.
    """
    if "label" not in table:
        raise InputError(
            "has no labels",
            "a test.tsv in the cola layout has none: predict it, or prepare with `layout` plain",
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
            f"known are {_known(labels)}",
            path=tsv,
            row=int(first["row"]),
        )
    return numbers.to_numpy(np.int32)
