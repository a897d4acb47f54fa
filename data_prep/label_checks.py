"""Checks of source labels: which kind of task they suit, and whether they are usable."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from bertaccum.errors import ConfigError, InputError
from bertaccum.task_names import CLASSIFICATION, MULTI_LABEL
from data_prep.label_format import class_format, has_separated_flags, joined_labels
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
    every = [one for own in labels.values() for one in own]
    if several := next((cell for cell, own in labels.items() if len(own) > 1), None):
        if _fraction_in(every):
            raise ConfigError(
                f"lists such as {several[:80]!r} look like a probability for each class",
                "write one class for each text, or pass `task` multi-label if these are labels",
                path=where,
            )
        return MULTI_LABEL
    joined, reason = joined_labels(every), "most of their parts also occur alone"
    if joined is None and has_separated_flags(every):
        joined, reason = every[0], "all of their parts are 0 or 1"
    if joined:
        raise ConfigError(
            f"labels such as {joined[:80]!r} look like several labels, because {reason}",
            "pass `task` multi-label, or `task` classification if each is one class",
            path=where,
        )
    if score := _fraction_in(every):
        raise ConfigError(
            f"labels such as {score!r} look like scores",
            "pass `task` regression, or `task` classification if they are classes",
            path=where,
        )
    return CLASSIFICATION


def _fraction_in(labels: Iterable[str]) -> str | None:
    """Return a label that is not a whole number if all labels are finite numbers, else None."""
    numbers = {label: finite_number(label) for label in labels}
    fractions = (label for label, number in numbers.items() if number is not None and number % 1)
    return None if None in numbers.values() else next(fractions, None)


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
