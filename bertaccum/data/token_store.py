"""Labels and tokens of a TSV: read once, tokenized once, then memory-mapped.

A token store is a folder in the cache, named by a digest of everything that decides
its contents, so that it is never stale and never asked about.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertaccum.data.labels import Labels
from bertaccum.data.truncation import Truncation
from data_prep.prepared_files import is_prepared

# Raise when the same inputs would give another store.
_FORMAT = 2


@dataclass(frozen=True)
class TokenStore:
    """Tokenized examples, memory-mapped.

    Args:
      token_ids: [tokens] int32, all examples one after the other, with [CLS] and [SEP].
      offsets: [examples + 1] int64, where each example starts.
      labels: [examples] int32, class numbers.
      truncation: what `max_seq_length` cut off; None if the texts come from no TSV.
    """

    token_ids: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray
    truncation: Truncation | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @functools.cached_property
    def longest(self) -> int:
        """Tokens of the longest example."""
        return int(np.diff(self.offsets).max())

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Token counts of `rows`."""
        return self.offsets[rows + 1] - self.offsets[rows]


def store_digest(
    tsv: Path, contents: str, labels: Labels, vocabulary: list[str], max_seq_length: int
) -> str:
    """Return a name for a token store, made of all that decides its contents.

    Args:
      tsv: the TSV; it matters whether `prepare` wrote it.
      contents: its SHA-256.
      labels: the classes.
      vocabulary: of the tokenizer.
      max_seq_length: of the tokenizer.
    """
    table = [contents, is_prepared(tsv)]
    key = json.dumps([_FORMAT, table, labels.values, max_seq_length, vocabulary])
    return hashlib.sha256(key.encode()).hexdigest()[:32]
