"""Notes of `prepare` on the labels of a source: their format and their spellings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from bertaccum.options.task_names import MULTI_LABEL
from data_prep.tables.label_format import LabelFormat
from data_prep.tables.label_kinds import LabelKind, label_counts
from data_prep.tables.rows import LABEL_SEPARATOR, Rows
from data_prep.tables.spellings import has_stray

_MISSING = frozenset({"#n/a", "<na>", "n/a", "na", "nan", "none", "null"})


def format_notes(
    label_format: LabelFormat, kind: str, task: str | None, separator: str = LABEL_SEPARATOR
) -> Iterator[str]:
    """Yield sentences about the label column that the user's options do not say."""
    if kind == MULTI_LABEL != task:
        yield "some rows have several labels, so the task is multi-label"
    if label_format.flags:
        yield "each cell has 0 or 1 for each label, so the labels are named by position, from 0"
    elif label_format.separator not in (None, separator):
        yield f"the labels of a row are separated by {label_format.separator!r}"


def missing_labels(kind: LabelKind, parts: Mapping[str, Rows]) -> dict[str, dict[str, int]]:
    """Return, by part, each label that may stand for a missing value and its number of rows."""
    counts = {name: label_counts(kind.format.labels_in(p.classes), p) for name, p in parts.items()}
    found = {
        name: {label: count for label, count in own.items() if label.casefold() in _MISSING}
        for name, own in counts.items()
    }
    return {name: own for name, own in found.items() if own}


def spellings(kind: LabelKind, parts: Iterable[Rows]) -> dict[str, dict[str, int]]:
    """Return, by class, the spellings if there are several or one has invisible characters.

    The number of rows with each spelling, the most frequent first.
    """
    found: dict[str, Counter[str]] = {name: Counter() for name in kind.labels}
    for rows in parts:
        for label, count in label_counts(kind.format.labels_in(rows.classes), rows).items():
            if name := kind.find(label):
                found[name][label] += count
    return {
        name: dict(counts.most_common())
        for name, counts in found.items()
        if len(counts) > 1 or has_stray(name)
    }
