"""Checks of source labels: which kind of task they suit, and whether they are usable."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from bertaccum.errors import ConfigError, InputError
from bertaccum.options.task_names import CLASSIFICATION, MULTI_LABEL, TOKEN_CLASSIFICATION
from data_prep.labels import formats
from data_prep.labels.formats import LabelFormat, list_in
from data_prep.labels.tag_schemes import why_no_scheme
from data_prep.tables.rows import LABEL_SEPARATOR
from data_prep.tables.spellings import finite_number, flags_remedy, is_missing, number_remedy

# Share of the different labels from which a column contains numbers.
_NEARLY_ALL = 0.9


def likely_task(cells: Collection[str], where: str | Path) -> str:
    """Return the kind of task that the cells of a label column suit: multi-label for lists.

    Raises:
      ConfigError: The cells look like scores, or like several labels without being lists.
    """
    labels = formats.class_format(cells).labels_in(cells)
    every = [one for own in labels.values() for one in own]
    joined = "labels such as {!r} look like several labels, because {}"
    remedy = "pass `task` multi-label, or `task` classification if each is one class"
    numbers = _numbers_in(every)
    fraction = next((one for one in numbers if (finite_number(one) or 0) % 1), None)
    other = next((one for one in numbers if finite_number(one) is None), None)
    if several := next((cell for cell, own in labels.items() if len(own) > 1), None):
        if not fraction:
            return MULTI_LABEL
        what = f"lists such as {several[:80]!r} look like a probability for each class"
        remedy = "write one class for each text, or pass `task` multi-label if these are labels"
    elif other:
        what = f"labels such as {other!r} look like numbers"
        remedy = (
            f"{number_remedy(other)}, and pass `task` regression; or pass `task` classification if"
            " they are classes, or multi-label if they are lists of class numbers"
        )
    elif cell := formats.joined_labels(every):
        what = joined.format(cell[:80], "most of their parts also occur alone")
    elif formats.has_separated_flags(every):
        what = joined.format(every[0][:80], "all of their parts are 0 or 1")
    elif fraction:
        what = f"labels such as {fraction!r} look like scores"
        remedy = "pass `task` regression, or `task` classification if they are classes"
    else:
        return CLASSIFICATION
    raise ConfigError(what, remedy, path=where)


def _numbers_in(labels: Iterable[str]) -> list[str]:
    """Return the labels that are numbers, in any notation, if nearly all labels are, else []."""
    labels = [label for label in labels if not is_missing(label)]
    numbers = [one for one in labels if finite_number(one) is not None or number_remedy(one)]
    return numbers if len(numbers) >= _NEARLY_ALL * len(labels) else []


def check_labels(
    form: LabelFormat,
    labels: Mapping[str, Iterable[str]],
    rows: Mapping[str, int],
    where: str | Path,
) -> None:
    """Check that cells have the same format, and that classes that are numbers are finite.

    Raises:
      InputError: Most cells are 0 or 1 for each label but one is not, or all labels are numbers and
        some but not all are NaN or infinite, as the result of a division by 0 is.
    """
    # A list of another length is left as it is written.
    cells = (c for c in rows if labels[c] == [c] or (form.lists and not list_in(c)))
    if form.flags and (other := next(cells, None)):
        what = (
            f"the label {other[:80]!r} is not a list of {form.flags} numbers, unlike other labels"
        )
        remedy = f"{flags_remedy(form.flags)}, or delete the row"
        raise InputError(what, remedy, path=where, row=rows[other])
    own = {label: row for cell, row in rows.items() for label in labels[cell]}
    try:
        infinite = [label for label in own if not math.isfinite(float(label))]
    except ValueError:  # A label is a name. Some languages have the code nan or inf.
        return
    if 0 < len(infinite) < len(own):
        what = f"the label {infinite[0]!r} is not a finite number, unlike other labels"
        raise InputError(what, "correct it or delete the row", path=where, row=own[infinite[0]])


def format_notes(
    label_format: LabelFormat,
    kind: str,
    task: str | None,
    separator: str | None = None,
    tags: Collection[str] = (),
) -> Iterator[str]:
    """Yield sentences about the label column that the user's options do not say.

    Args:
      tags: The different tags, for token classification, to find out why they have no scheme.
    """
    if kind == MULTI_LABEL != task:
        yield "some rows have several labels, so the task is multi-label"
    if label_format.flags:
        yield "each cell has 0 or 1 for each label, so the labels are named by position, from 0"
    elif kind == TOKEN_CLASSIFICATION:
        if label_format.scheme:
            yield f"the tags are in the scheme {label_format.scheme}"
        elif reason := why_no_scheme(tags):
            yield f"the tags have no scheme, so entities are not counted: {reason}"
        else:
            yield "the tags have no scheme"
    elif label_format.separator not in (None, separator or LABEL_SEPARATOR):
        yield f"the labels of a row are separated by {label_format.separator!r}"
