"""The labels of a window for distillation: those of its examples, and the teacher's logits.

The logits are memory-mapped, and only those of a window are in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertaccum.data.token_store import TokenStore
from bertaccum.tasks.distilled import Distilled

# The files of a folder with logits.
LOGITS, OFFSETS = "logits.float32", "offsets.npy"


@dataclass(frozen=True)
class TeacherLogits:
    """The logits of a teacher for the examples of a file, in their order."""

    # Logits of the examples or, for tags, of all words of all examples, NaN for words that the
    # teacher did not read, [rows, outputs] float32.
    rows: np.ndarray
    offsets: np.ndarray | None  # For tags, the first row of each example, [examples + 1].

    @staticmethod
    def open(folder: Path, outputs: int, words: bool) -> TeacherLogits:
        """Open a folder that `write_logits` wrote; `words` says whether it has rows of words."""
        rows = np.memmap(folder / LOGITS, np.float32, "r").reshape(-1, outputs)
        return TeacherLogits(rows, np.load(folder / OFFSETS) if words else None)

    @property
    def examples(self) -> int:
        """The number of examples."""
        return len(self.rows) if self.offsets is None else len(self.offsets) - 1

    def read_words(self) -> np.ndarray:
        """Return the number of words that the teacher read of each example, [examples]."""
        assert self.offsets is not None
        before = np.concatenate([[0], np.cumsum(~np.isnan(self.rows[:, 0]))])
        return np.diff(before[self.offsets])


@dataclass(frozen=True)
class TeacherLabels:
    """Makes the labels of windows as `Distilled` takes them.

    Args:
      objective: The objective of the run.
      labeled: Logits of the examples with labels, which come first in the token store.
      unlabeled: Logits of the examples without; None if there are none.
      count: Number of examples with labels.
    """

    objective: Distilled
    labeled: TeacherLogits
    unlabeled: TeacherLogits | None
    count: int

    def of_window(self, store: TokenStore, rows: np.ndarray) -> TokenStore:
        """Return a token store of some rows, in the same order, with their labels."""
        labels = np.full((len(rows), *self.objective.label_shape), np.nan, np.float32)
        for label, row in zip(labels, rows.tolist(), strict=True):
            labeled = row < self.count
            logits = self.labeled if labeled else self.unlabeled
            assert logits is not None
            number = row if labeled else row - self.count
            if logits.offsets is not None:
                start, end = logits.offsets[number : number + 2].tolist()
                found = logits.rows[start:end][: len(label)]
                label[:, 0] = labeled
                label[: len(found), 1:] = found
                continue
            if labeled:
                label[: -logits.rows.shape[1]] = store.labels[row]
            label[-logits.rows.shape[1] :] = logits.rows[number]
        return store.of_rows(rows, labels)
