"""The labels and tokens of a TSV, which is tokenized only once.

A token store is a folder in the cache, from which the tokens are memory-mapped. Its name is a
digest of everything that determines its contents, so a store is never stale.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from bertaccum.bert.tokenization import TAG, Tokenization
from bertaccum.data.truncation import Truncation
from bertaccum.options.task_names import TOKEN_CLASSIFICATION
from bertaccum.system.progress import Progress
from bertaccum.tasks.labels import Labels
from data_prep.tables.corpus import Corpus
from data_prep.tables.manifest import is_prepared
from data_prep.tables.text_files import ending

# Increment these numbers if the same inputs would result in a different store of a TSV, or of a
# corpus, or if other texts would be read from a file without labels.
_FORMAT, _FORMAT_OF_CORPUS, _FORMAT_OF_TEXTS = 10, 2, 2


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an array like `numpy.save`, with an OSError if it does not fit on the disk.

    To a real file, numpy writes with C functions, whose errors have no number, and it ignores that
    of the last few kB.
    """
    with path.open("wb") as file:
        np.save(types.SimpleNamespace(write=file.write), array)


class JoinedTokens:
    """The tokens of several stores, one after the other, without a copy; only slices are read.

    Args:
      parts: Tokens of each store, [tokens] int32. A slice lies within one of them.
    """

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self._parts = parts
        self._starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])

    def __getitem__(self, place: slice) -> np.ndarray:
        start = place.start or 0
        number = int(np.searchsorted(self._starts[1:-1], start, side="right"))
        first = self._starts[number]
        return self._parts[number][start - first : place.stop - first]


@dataclass(frozen=True)
class TokenStore:
    """Tokenized examples and their labels."""

    # Tokens of all examples, concatenated, as `Tokenizer` returns them, [tokens] int32.
    token_ids: np.ndarray
    offsets: np.ndarray  # Start of each example, and the end of the last one, [examples + 1] int64.
    # Number of passages of each example, and tokens of the longest one including padding to a
    # multiple, [examples, 2] int32.
    shapes: np.ndarray
    labels: np.ndarray  # Labels that the task's `encode` returned, [examples, *label_shape].
    weights: np.ndarray  # Weight of each example in the training loss, [examples] float32.
    # Statistics of the truncation; None if the texts do not come from a TSV.
    truncation: Truncation | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @functools.cached_property
    def words(self) -> np.ndarray:
        """The number of words with tags that are read in each example, [examples]."""
        return np.add.reduceat((self.token_ids >= TAG).astype(np.int64), self.offsets[:-1])

    @property
    def tags(self) -> np.ndarray:
        """The tags of these words of all examples, in their order, [words]."""
        return self.token_ids[self.token_ids >= TAG] // TAG - 1

    @functools.cached_property
    def largest(self) -> tuple[int, int]:
        """The shape of the largest example: its passages, and the tokens of the longest one."""
        passages, length = self.shapes.max(axis=0)
        return int(passages), int(length)

    def padded_to(self, multiple: int, most: int) -> TokenStore:
        """Return this store with shapes of padded passages, as `inputs_of_tokens` pads them."""
        if multiple == 1:
            return self
        # The shapes of a packed corpus are one row, which is repeated without memory.
        shapes = self.shapes[: None if self.shapes.strides[0] else 1].copy()
        shapes[:, 1] = np.minimum(-(-shapes[:, 1] // multiple) * multiple, most)
        return dataclasses.replace(self, shapes=np.broadcast_to(shapes, self.shapes.shape))

    def followed_by(self, other: TokenStore) -> TokenStore:
        """Return a store of these examples, then of the unlabeled ones in `other`."""
        zeros = np.zeros((len(other), *self.labels.shape[1:]), self.labels.dtype)
        return dataclasses.replace(
            self,
            # Only the slices of single examples are read from a store to train on.
            token_ids=cast(np.ndarray, JoinedTokens([self.token_ids, other.token_ids])),
            offsets=np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]]),
            shapes=np.concatenate([self.shapes, other.shapes]),
            labels=np.concatenate([self.labels, zeros]),
            weights=np.concatenate([self.weights, other.weights]),
        )

    def of_rows(self, rows: np.ndarray, labels: np.ndarray) -> TokenStore:
        """Return a store in memory of some rows, in their order, with other labels."""
        lengths, starts = self.lengths(rows), self.offsets[rows]
        tokens = [self.token_ids[a : a + n] for a, n in zip(starts, lengths, strict=True)]
        return dataclasses.replace(
            self,
            token_ids=np.concatenate([np.zeros(0, np.int32), *tokens]),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            shapes=self.shapes[rows],
            labels=labels,
            weights=self.weights[rows],
        )

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens in each of the rows with the numbers `rows`."""
        return self.offsets[rows + 1] - self.offsets[rows]


def store_digest(tsv: Path, contents: str, labels: Labels, tokenization: Tokenization) -> str:
    """Return the name of a token store: a digest of everything that determines its contents.

    Args:
      tsv: Path of the TSV. Files that `bertaccum prepare` wrote are parsed differently from others.
    """
    table = [contents, is_prepared(tsv)]
    of_labels = [labels.values, labels.pairs, labels.task, labels.mean, labels.std]
    of_labels += [labels.format] if labels.format else []
    # The names decide which tag `label_pieces` all gives to the other pieces of a word.
    of_labels += [labels.names] if labels.task == TOKEN_CLASSIFICATION else []
    key = json.dumps([_FORMAT, table, of_labels, tokenization.identity()])
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def unlabelled_identity(path: Path, contents: str) -> list[object]:
    """Return values for JSON that differ for files of other texts without labels.

    The ending decides whether a file is a table or has one text per line.
    """
    return ["unlabelled", _FORMAT_OF_TEXTS, ending(path), is_prepared(path), contents]


def unlabelled_digest(path: Path, contents: str, labels: Labels, tokenization: Tokenization) -> str:
    """Return the name of the token store of a file of texts without labels.

    Args:
      contents: Digest of the file.
    """
    texts = unlabelled_identity(path, contents)
    key = [_FORMAT, *texts, labels.pairs, labels.task, tokenization.identity()]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]


def corpus_digest(
    corpus: Corpus,
    tokenization: Tokenization,
    progress: Progress,
    apart: bool = False,
    dev_fraction: float = 0.01,
) -> str:
    """Return the name of a corpus's token stores: a digest of what determines them."""
    rules = [_FORMAT_OF_CORPUS, apart, dev_fraction, tokenization.identity()]
    return hashlib.sha256(json.dumps([rules, corpus.identity(progress)]).encode()).hexdigest()[:32]
