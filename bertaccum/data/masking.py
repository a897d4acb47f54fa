"""BERT's masking, as a pure function of the seed, the update and the position in its window.

80% of the chosen tokens become [MASK], 10% a random entry of the vocabulary, and 10% stay. They
are drawn again for each update, so every epoch masks other tokens of the same text.

Source: google-research/bert `create_pretraining_data.py`, function `create_masked_lm_predictions`.
Unlike there, the number of masked tokens is a fraction of the tokens without the special ones.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from bertaccum.bert.vocabulary import MASK, SPECIAL_TOKENS, Vocabulary
from bertaccum.data.token_store import TokenStore

# Fraction of the tokens that are predicted.
FRACTION = 0.15
# The part of the generator's counter that separates masks from the orders of epochs.
_STREAM = (0, 0, 0, 1)
# The seed and the update that mask the dev sequences: no update of a run has this number.
_DEV = (0, 2**63)


@dataclass(frozen=True)
class Masking:
    """Chooses and replaces the tokens that a model predicts."""

    mask: int  # ID of [MASK].
    special: np.ndarray  # Whether each vocabulary entry is never chosen, [vocab] bool.
    continuation: np.ndarray  # Whether each entry continues a word, as ##ing does, [vocab] bool.
    max_seq_length: int  # Maximum number of tokens of a sequence, including [CLS] and [SEP].
    fraction: float = FRACTION  # Fraction of the tokens that are predicted.
    whole_words: bool = False  # Whether all pieces of a word are chosen, or none.

    @property
    def most(self) -> int:
        """The maximum number of masked tokens of a sequence."""
        return most_masked(self.max_seq_length, self.fraction)

    def of_window(self, store: TokenStore, rows: np.ndarray, seed: int, update: int) -> TokenStore:
        """Return a token store of some rows, in the same order, with masks.

        The masks of row i depend only on its tokens, the seed, the update and i. On every machine
        and with every version of NumPy they are the same.

        Args:
          store: Sequences `[CLS] … [SEP]` of single texts without tags.
          rows: Numbers of all rows in the whole window, in its order before sorting.

        Returns:
          A store in memory. Its labels [examples, most, 2] int32 are the position of each masked
          token in its sequence, counted from 0, and the ID of the original one; (0, 0) fills the
          rest, because position 0 is that of [CLS]. Its weights are the numbers of masked tokens.
        """
        lengths, starts = store.lengths(rows), store.offsets[rows]
        inside = np.arange(self.max_seq_length) < lengths[:, None]
        pieces = [store.token_ids[a : a + n] for a, n in zip(starts, lengths, strict=True)]
        tokens = np.zeros(inside.shape, np.int32)
        tokens[inside] = np.concatenate([store.token_ids[:0], *pieces])
        width = self.max_seq_length + self.most
        key = np.array([seed, update], np.uint64)
        raw = np.random.Philox(key=key, counter=_STREAM).random_raw(len(rows) * width)
        raw = raw.reshape(len(rows), width)
        chosen = self._chosen(tokens, inside, raw[:, : self.max_seq_length])
        examples, positions = np.nonzero(chosen)
        numbers = (np.cumsum(chosen, axis=1) - 1)[chosen]
        originals = tokens[chosen]
        draws = raw[examples, self.max_seq_length + numbers]
        entries = (draws // 10 % len(self.special)).astype(np.int32)
        shares = (draws % 10)[None] < np.array([[8], [9]])
        tokens[chosen] = np.select(shares, [np.int32(self.mask), entries], originals)
        labels = np.zeros((len(rows), self.most, 2), np.int32)
        labels[examples, numbers] = np.stack([positions, originals], axis=1)
        return dataclasses.replace(
            store,
            token_ids=tokens[inside],
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            shapes=store.shapes[rows],
            labels=labels,
            weights=chosen.sum(axis=1).astype(np.float32),
        )

    def of_dev(self, store: TokenStore) -> TokenStore:
        """Return all rows with the same masks at each call, so that perplexities are comparable."""
        return self.of_window(store, np.arange(len(store)), *_DEV)

    def _count(self, candidates: np.ndarray) -> np.ndarray:
        """Return how many of each number of candidates are masked."""
        return np.where(
            candidates > 0, np.maximum(np.rint(self.fraction * candidates), 1), 0
        ).astype(np.int64)

    def _chosen(self, ids: np.ndarray, inside: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Return whether each token is chosen, [examples, length] bool."""
        candidates = inside & ~self.special[ids]
        wanted = self._count(candidates.sum(axis=1))
        order = np.argsort(np.where(candidates, draws, np.iinfo(np.uint64).max), kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(ids.shape[1])[None], axis=1)
        pieces = ranks < wanted[:, None]
        if not self.whole_words:
            return pieces
        continues = candidates & self.continuation[ids]
        continues[:, 1:] &= candidates[:, :-1]
        words = self._words(candidates & ~continues, candidates, order, wanted)
        # If every word has more pieces than are wanted, some pieces of words are chosen.
        return np.where(words.any(axis=1, keepdims=True), words, pieces)

    @staticmethod
    def _words(
        first: np.ndarray, candidates: np.ndarray, order: np.ndarray, wanted: np.ndarray
    ) -> np.ndarray:
        """Choose words in a random order; skip each that would exceed the number of tokens.

        Args:
          first: Whether each token is the first piece of a word, [examples, length] bool.
          order: Positions of tokens in random order, [examples, length].
        """
        every = np.arange(len(first))
        numbers = np.cumsum(first, axis=1) * candidates  # The word of each token; 0 for none.
        sizes = np.zeros((len(first), first.shape[1] + 1), np.int64)
        np.add.at(sizes, (every[:, None], numbers), 1)
        taken = np.zeros(sizes.shape, bool)
        left = wanted.copy()
        for places in order.T:
            words = numbers[every, places]
            count = sizes[every, words]
            fits = first[every, places] & (count <= left)
            taken[every, words] |= fits
            left -= count * fits
            if not left.any():
                break
        return taken[every[:, None], numbers]


def most_masked(max_seq_length: int, fraction: float = FRACTION) -> int:
    """Return the maximum number of masked tokens of a sequence."""
    return max(round(fraction * (max_seq_length - 2)), 1)


def make_masking(
    vocabulary: Vocabulary,
    max_seq_length: int,
    fraction: float = FRACTION,
    whole_words: bool = False,
) -> Masking:
    """Return the masking of sequences of a vocabulary's tokens."""
    entries = vocabulary.entries
    return Masking(
        mask=entries.index(MASK),
        special=np.array([entry in SPECIAL_TOKENS for entry in entries]),
        continuation=np.array([entry.startswith("##") for entry in entries]),
        max_seq_length=max_seq_length,
        fraction=fraction,
        whole_words=whole_words,
    )
