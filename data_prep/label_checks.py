"""Checks of source labels: which kind of task they suit, and whether they are usable."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from bertaccum.errors import ConfigError, InputError
from bertaccum.task_names import CLASSIFICATION, MULTI_LABEL
from data_prep.label_format import class_format, joined_labels
from data_prep.spellings import finite_number


def likely_task(cells: Collection[str], where: str | Path) -> str:
    """Return the kind of task that the cells of a label column suit.

    Args:
      cells: The different cells of the training rows.
      where: The file or the name of the data set that contains them.

    Returns:
      multi-label if a cell contains a list of several labels, else classification.

    Raises:
      ConfigError: The cells look like scores, or like several labels without being lists.
    """
    labels = class_format(cells).labels_in(cells)
    if any(len(own) > 1 for own in labels.values()):
        return MULTI_LABEL
    if joined := joined_labels([one for own in labels.values() for one in own]):
        raise ConfigError(
            f"labels such as {joined[:80]!r} look like several labels, because most of their parts"
            " also occur alone",
            "pass `task` multi-label, or `task` classification if each is one class",
            path=where,
        )
    refuse_scores([one for own in labels.values() for one in own], where)
    return CLASSIFICATION


def refuse_scores(labels: Iterable[str], where: str | Path) -> None:
    """Check that the labels of a task that the user did not name look like classes.

    Args:
      labels: The different labels of the training rows.
      where: The file or the name of the data set that contains them.

    Raises:
      ConfigError: All labels are finite numbers, and at least one is not a whole number.
    """
    numbers = {label: finite_number(label) for label in labels}
    score = next((label for label, n in numbers.items() if n is not None and n % 1), None)
    if score is not None and None not in numbers.values():
        raise ConfigError(
            f"labels such as {score!r} look like scores",
            "pass `task` regression, or `task` classification if they are classes",
            path=where,
        )


def refuse_infinite(labels: Mapping[str, int], where: str | Path) -> None:
    """Check that classes that are numbers are finite, unlike the result of a division by 0.

    Args:
      labels: The different labels, each with the number of a row where it occurs.
      where: The file or the name of the data set that contains them.

    Raises:
      InputError: All labels are numbers, and some but not all are NaN or infinite.
    """
    try:
        infinite = [label for label in labels if not math.isfinite(float(label))]
    except ValueError:  # A label is a name. Some languages have the code nan or inf.
        return
    if 0 < len(infinite) < len(labels):
        raise InputError(
            f"the label {infinite[0]!r} is not a finite number, unlike other labels",
            "correct it or delete the row",
            path=where,
            row=labels[infinite[0]],
        )
