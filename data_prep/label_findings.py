"""What `prepare` says about the labels of a source: their format and their spellings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from bertaccum.task_names import MULTI_LABEL
from data_prep.label_kinds import LabelKind, label_counts
from data_prep.rows import Rows
from data_prep.spellings import has_stray


def format_notes(kind: LabelKind, task: str | None, separator: str) -> Iterator[str]:
    """Yield sentences about the label column that the user's options do not say."""
    if kind.task == MULTI_LABEL != task:
        yield "some rows have several labels, so the task is multi-label"
    if kind.format.flags:
        yield "each cell has 0 or 1 for each label, so the labels are named by position, from 0"
    elif kind.format.separator not in (None, separator):
        yield f"the labels of a row are separated by {kind.format.separator!r}"


def spellings(kind: LabelKind, parts: Iterable[Rows]) -> dict[str, dict[str, int]]:
    """Return the spellings of each class that has several, or one with invisible characters.

    Args:
      kind: The labels of the training rows.
      parts: The training rows, and others whose labels `label_cells` accepts.

    Returns:
      The number of rows with each spelling, the most frequent first, keyed by class name.
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
