"""Words for the masked places of texts, from a model that `bertaccum pretrain` trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.bert.packed_tokens import example_shapes
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.vocabulary import MASK
from bertaccum.data.corpus_store import open_corpus
from bertaccum.data.masking import make_masking
from bertaccum.data.run_inputs import corpus_of
from bertaccum.data.token_store import TokenStore
from bertaccum.distribution.device_memory import limit_memory
from bertaccum.errors import InputError
from bertaccum.inference.results import Prediction, TextAndPair
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.fields import size_in_bytes
from bertaccum.options.pretraining import PretrainConfig
from bertaccum.system.progress import Progress
from data_prep.tables.rows import clean

# Number of words that are listed for a place.
_LISTED = 5
# Number of pieces of context that are shown on each side of a place.
_CONTEXT = 16


class MaskFiller:
    """The best model of a pretraining run, with the methods of `TextClassifier`."""

    def __init__(self, run: str, batch: int, memory_limit: str | None) -> None:
        limit_memory(size_in_bytes("memory_limit", memory_limit))
        self._trained = trained = load_trained(Path(run))
        self._model, self._batch = trained.model, batch
        self._tokenizer = Tokenizer(trained.tokenization)
        self._entries = list(trained.files.vocabulary.entries)
        self._mask, self._cls, self._sep = map(self._entries.index, (MASK, "[CLS]", "[SEP]"))
        self._most = trained.config.max_seq_length
        self.labels = trained.files.labels
        self._fill = tf.function(
            self._model.fillers,
            input_signature=[
                tf.RaggedTensorSpec([None, None], tf.int32),
                tf.TensorSpec([None, None], tf.int32),
                tf.TensorSpec([], tf.int32),
            ],
            autograph=False,
        )

    def tokenize(self, texts: Sequence[TextAndPair]) -> TokenStore:
        """Return the tokens of texts; their labels are the places of masks, [texts, masks] int32.

        Place 0 fills up the places of a text.

        Raises:
          InputError: A text has no mask, or one that the model does not read.
        """
        parts = [clean(text).split(MASK) for text, _ in texts]
        flat = tf.constant([part for own in parts for part in own], tf.string)
        pieces = iter(self._tokenizer.pieces(flat).to_list())
        inner = [[next(pieces) for _ in own] for own in parts]
        rows = [self._row(text, own) for (text, _), own in zip(texts, inner, strict=True)]
        places = [np.flatnonzero(row == self._mask) for row in rows]
        labels = np.zeros((len(rows), max(map(len, places))), np.int32)
        for own, found in zip(labels, places, strict=True):
            own[: len(found)] = found
        return _store(rows, labels)

    def _row(self, text: str, parts: list[list[int]]) -> np.ndarray:
        """Return the tokens [length] int32 of a text, given those between its masks."""
        inner = parts[0] + [token for part in parts[1:] for token in (self._mask, *part)]
        row = np.array([self._cls, *inner[: self._most - 2], self._sep], np.int32)
        if len(parts) == 1:
            what, remedy = f"has no {MASK}", f"write {MASK} where a word is missing"
        elif np.count_nonzero(row == self._mask) < len(parts) - 1:
            what = f"has a {MASK} after the {self._most} tokens that the model reads"
            remedy = "shorten it"
        else:
            return row
        raise InputError(f"the text {text[:40]!r} {what}", remedy)

    def of_tokens(self, texts: Sequence[TextAndPair], store: TokenStore) -> list[Prediction]:
        """Return the words that the model finds most probable in each place of texts."""
        found: list[Prediction] = []
        for start in range(0, len(store), self._batch):
            rows = np.arange(start, min(start + self._batch, len(store)))
            first, last = store.offsets[[rows[0], rows[-1] + 1]]
            tokens = tf.RaggedTensor.from_row_splits(
                store.token_ids[first:last], store.offsets[rows[0] : rows[-1] + 2] - first
            )
            places = store.labels[rows]
            entries, probabilities = self._fill(tokens, tf.constant(places), _LISTED)
            of = zip(rows, places, entries.numpy(), probabilities.numpy(), strict=True)
            for row, own, *best in of:
                masks = [self._words(*one) for one in zip(*best, strict=True)][: (own > 0).sum()]
                found.append(Prediction(texts[int(row)][0], masks=masks))
        return found

    def blanks(self, count: int, progress: Progress) -> list[dict[str, str]]:
        """Return examples from the held-back texts of the run.

        Returns:
          For each, the `text` around a place that its evaluations mask, the `original` piece, and
          what is `most probable` there.

        Raises:
          InputError: The texts cannot be read.
        """
        config, tokenization = self._trained.config, self._trained.tokenization
        assert isinstance(config, PretrainConfig)
        packed = config.apart, config.dev_fraction
        _, dev = open_corpus(corpus_of(config), tokenization, progress, *packed)
        masking = make_masking(tokenization.vocabulary, self._most, whole_words=config.whole_words)
        rows = np.unique(np.linspace(0, len(dev) - 1, count).astype(int))
        # Only the first place of each sequence is masked.
        labels = masking.of_dev(dev).labels[rows, 0]
        rows, labels = rows[labels[:, 0] > 0], labels[labels[:, 0] > 0]
        chosen = [dev.token_ids[dev.offsets[row] : dev.offsets[row + 1]].copy() for row in rows]
        for tokens, (place, _) in zip(chosen, labels, strict=True):
            tokens[place] = self._mask
        texts = [self._around(t, place) for t, (place, _) in zip(chosen, labels, strict=True)]
        predicted = self.of_tokens([(text, None) for text in texts], _store(chosen, labels[:, :1]))
        return [
            {"text": one.text, "original": self._entries[original], "most probable": one.filled}
            for one, (_, original) in zip(predicted, labels, strict=True)
        ]

    def _around(self, tokens: np.ndarray, place: int) -> str:
        """Return the pieces near a place as text."""
        near = tokens[max(place - _CONTEXT, 1) : place + _CONTEXT]
        pieces = [self._entries[token] for token in near if token != self._sep]
        return " ".join(pieces).replace(" ##", "").removeprefix("##")

    def _words(self, entries: np.ndarray, probabilities: np.ndarray) -> list[dict[str, Any]]:
        return [
            {"word": self._entries[entry], "probability": float(probability)}
            for entry, probability in zip(entries, probabilities, strict=True)
        ]


def _store(rows: list[np.ndarray], places: np.ndarray) -> TokenStore:
    """Return a store of texts [length] int32, and of their masked places [texts, masks] int32."""
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    tokens, ones = np.concatenate(rows), np.ones(len(rows), np.float32)
    return TokenStore(tokens, offsets, example_shapes(tokens, offsets), places, ones)
