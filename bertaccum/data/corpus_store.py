"""The token stores of a corpus: sequences of equal length for masked-LM pretraining.

A sequence is `[CLS] … [SEP]`, filled up to its maximum length. Documents are joined with [SEP]
between them, or kept apart, as in FULL-SENTENCES and DOC-SENTENCES of Liu et al. 2019
(https://arxiv.org/abs/1907.11692, table 2). As there, no sequence is a pair for predicting the next
sentence, which makes models no better.

All arrays are memory-mapped, and the stores are written while the corpus is read, so that memory
does not grow with the corpus.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.data.masking import make_masking
from bertaccum.data.token_store import TokenStore, corpus_digest
from bertaccum.errors import InputError
from bertaccum.system.atomic import new_folder
from bertaccum.system.cache import cache_folder, cache_paths, cached_folder, is_intact, seal
from bertaccum.system.parallel import parallel
from bertaccum.system.phrases import percent
from bertaccum.system.progress import Progress, tell
from data_prep.tables.corpus import Corpus
from data_prep.tables.rows import clean

_BATCH_CHARACTERS = 1 << 19
# Maximum number of full sequences that are held back.
_MOST_DEV = 2000
# Typical number of bytes of a token, including the spaces around it.
_TOKEN_BYTES = 4
_TRAIN, _DEV = "train", "dev"
# Fraction of [UNK] among the tokens to train on above which a note says so.
_MANY_UNKNOWN = 0.1
# Fibonacci hashing: 2^64 divided by the golden ratio.
_GOLDEN = 0x9E3779B97F4A7C15


def open_corpus(
    corpus: Corpus,
    tokenization: Tokenization,
    progress: Progress,
    apart: bool = False,
    dev_fraction: float = 0.01,
    digest: str | None = None,
) -> tuple[TokenStore, TokenStore]:
    """Return the token stores of training and of dev sequences, creating them if necessary.

    Args:
      apart: Whether a sequence never contains text of two documents.
      dev_fraction: Fraction of the documents that are held back for evaluation. At least one
        document is, and at most as much text as fills 2,000 sequences. Which ones depends only on
        their numbers.

    Returns:
      Two stores whose labels are zeros and whose weights are ones.

    Raises:
      InputError: A file of the corpus cannot be used or has changed since `digest` was computed,
        there is only one document, or no token of the texts or of those that are held back can be
        masked.
    """

    def name() -> str:
        return corpus_digest(corpus, tokenization, progress, apart, dev_fraction)

    named = digest or name()
    length = tokenization.max_seq_length
    # With more text than the maximum needs, documents are held back evenly throughout the corpus.
    enough = _MOST_DEV * length * _TOKEN_BYTES / corpus.size_bytes
    every = max(round(1 / min(dev_fraction, enough)), 2)

    def make(path: Path) -> None:
        with new_folder(path, existing="keep") as temporary:
            _make_stores(temporary, corpus, Tokenizer(tokenization), progress, apart, every)
            if name() != named:
                raise InputError("the texts changed meanwhile", "run the command again")
            seal(temporary, path)

    cached_folder(_folder(named), make, progress)
    return cached_stores(named, length, apart)


def cached_stores(digest: str, length: int, apart: bool) -> tuple[TokenStore, TokenStore]:
    """Return stores that `open_corpus` has opened before, given `max_seq_length`."""
    path = _folder(digest)
    folder = next(filter(is_intact, cache_paths(path)), path)
    train, dev = (_opened(folder, name, length, apart) for name in (_TRAIN, _DEV))
    return train, dev


def _folder(digest: str) -> Path:
    return cache_folder() / "tokens" / digest


def _opened(folder: Path, name: str, length: int, apart: bool) -> TokenStore:
    offsets = np.memmap(folder / f"{name}.offsets.int64", np.int64, "r")
    count = len(offsets) - 1
    # All sequences but the last one have the maximum length.
    shapes = np.broadcast_to(np.array([1, length], np.int32), (count, 2))
    if apart:
        shapes = np.memmap(folder / f"{name}.shapes.int32", np.int32, "r", shape=(count, 2))
    return TokenStore(
        token_ids=np.memmap(folder / f"{name}.token_ids.int32", np.int32, "r"),
        offsets=offsets,
        shapes=shapes,
        labels=np.broadcast_to(np.int32(0), count),
        weights=np.broadcast_to(np.float32(1), count),
    )


def _make_stores(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, progress: Progress, apart: bool, every: int
) -> None:
    what, total, read = "tokenizing the corpus (MiB)", corpus.text_bytes, 0
    most = _MOST_DEV * (tokenizer.tokenization.max_seq_length - 2)
    with contextlib.ExitStack() as files:
        train, dev = (
            files.enter_context(_Writer(folder, name, tokenizer, apart)) for name in (_TRAIN, _DEV)
        )
        parts = corpus.parts(partial(tell, progress))
        for tokens, lengths, documents, size in _tokenized(parts, tokenizer):
            is_dev = _is_held_back(documents, every)
            before = np.cumsum(lengths * is_dev) - lengths
            is_dev &= before + dev.tokens < most
            for writer, own in ((train, ~is_dev), (dev, is_dev)):
                writer.add(tokens[np.repeat(own, lengths)], lengths[own], documents[own])
            read += size
            progress(what, read >> 20, total and max(read, total) >> 20)
        _check_texts(train, dev, corpus.files[0], progress)


def _check_texts(train: _Writer, dev: _Writer, path: Path, progress: Progress) -> None:
    """Raise InputError if there is nothing to learn or to evaluate; note that much is [UNK]."""
    if dev.known and not train.tokens:
        what = "has only one document with text, but one more is held back for evaluation"
        hint = "add documents, or pass `documents` line if each line is one"
        raise InputError(what, hint, path=path)
    nothing = "no piece of the vocabulary except [UNK]"
    if not train.known:
        hint = "choose a model whose vocabulary has their script"
        raise InputError(f"the texts to train on have {nothing}", hint, path=path)
    if not dev.known:
        hint = "raise `dev_fraction`, or remove the first document, which is always held back"
        raise InputError(f"the texts that are held back have {nothing}", hint, path=path)
    if (unknown := 1 - train.known / train.tokens) > _MANY_UNKNOWN:
        remedy = "choose a model whose vocabulary has their characters"
        tell(progress, f"{percent(unknown)} of the tokens to train on are [UNK]; {remedy}")


def _is_held_back(documents: np.ndarray, every: int) -> np.ndarray:
    """Return whether documents are the one of each `every` that is held back, [documents] bool."""
    groups = (documents // every).astype(np.uint64) * np.uint64(_GOLDEN) >> np.uint64(32)
    return documents % every == (groups * np.uint64(every) >> np.uint64(32)).astype(np.int64)


def _tokenized(
    parts: Iterable[tuple[int, str]], tokenizer: Tokenizer
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, int]]:
    """Yield tokens, their number in each part, and its document, for each batch; use all cores.

    The last value is the number of characters. Parts without a token are left out.
    """
    specification = [tf.TensorSpec([None], tf.string)]
    pieces = tf.function(tokenizer.pieces, input_signature=specification, autograph=False)

    def tokens(
        batch: tuple[list[str], np.ndarray, int],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        texts, documents, size = batch
        with tf.device("CPU"):  # A GPU's memory must stay free until the planner has measured.
            rows = pieces(tf.constant(texts))
            lengths = rows.row_lengths().numpy()
        return rows.flat_values.numpy(), lengths[lengths > 0], documents[lengths > 0], size

    yield from parallel(tokens, batches(parts))


def batches(parts: Iterable[tuple[int, str]]) -> Iterator[tuple[list[str], np.ndarray, int]]:
    """Yield parts of documents, the number of each one's document, and their size in characters."""
    texts, documents, size = list[str](), list[int](), 0
    for document, text in parts:
        texts.append(clean(text))  # As in a file that `prepare` wrote.
        documents.append(document)
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            yield texts, np.array(documents), size
            texts, documents, size = [], [], 0
    if texts:
        yield texts, np.array(documents), size


class _Writer:
    """Packs the tokens of documents into sequences, and writes each one when it is complete."""

    def __init__(self, folder: Path, name: str, tokenizer: Tokenizer, apart: bool) -> None:
        self.tokens = 0  # Number of tokens so far, without [CLS] and [SEP] around texts.
        self.known = 0  # Number of those that can be masked; nearly all others are [UNK].
        vocabulary = tokenizer.tokenization.vocabulary.entries
        self._cls, self._sep = vocabulary.index("[CLS]"), vocabulary.index("[SEP]")
        length = tokenizer.tokenization.max_seq_length
        self._special = make_masking(tokenizer.tokenization.vocabulary, length).special
        self._room, self._apart = length - 2, apart
        self._document, self._end = -1, 0
        self._rest = np.zeros(0, np.int32)  # Tokens of the sequence that is not full yet.
        names = ("token_ids.int32", "offsets.int64", *(["shapes.int32"] if apart else []))
        self._files = [(folder / f"{name}.{file}").open("wb") for file in names]
        self._files[1].write(np.zeros(1, np.int64).tobytes())

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None and len(self._rest):
            self._write(self._rest, np.array([len(self._rest)]))
        for file in self._files:
            file.close()

    def add(self, tokens: np.ndarray, lengths: np.ndarray, documents: np.ndarray) -> None:
        """Add parts of documents.

        Args:
          tokens: Tokens of all parts, [tokens] int32.
          lengths: Number of tokens of each part, [parts].
          documents: Number of each part's document, [parts].
        """
        if not len(lengths):
            return
        begins = (np.cumsum(lengths) - lengths)[np.diff(documents, prepend=self._document) != 0]
        is_first, self._document = self._document < 0, documents[-1]
        self.tokens += len(tokens)
        self.known += len(tokens) - int(self._special[tokens].sum())
        if not self._apart:
            tokens = np.insert(tokens, begins[int(is_first) :], self._sep)
            begins = begins[:0]
        begins = begins + len(self._rest)
        tokens = np.concatenate([self._rest, tokens])
        # A sequence ends where a document ends, or after `room` tokens; the last one may go on.
        edges = np.concatenate([[0], begins, [len(tokens)]])
        sizes = np.diff(edges)
        counts = -(-sizes // self._room)
        counts[-1] = sizes[-1] // self._room
        numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = np.repeat(edges[:-1], counts) + self._room * numbers
        whole = np.minimum(np.repeat(edges[1:], counts) - starts, self._room)
        done = whole.sum()
        self._rest = tokens[done:]
        self._write(tokens[:done], whole)

    def _write(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Write sequences of the lengths [sequences], which follow each other in `tokens`."""
        lengths = lengths + 2
        ends = np.cumsum(lengths)
        sequences = np.empty(lengths.sum(), np.int32)
        inner = np.ones(len(sequences), bool)
        for places, edge in ((ends - lengths, self._cls), (ends - 1, self._sep)):
            sequences[places], inner[places] = edge, False
        sequences[inner] = tokens
        arrays = [sequences, self._end + ends, np.stack([np.ones_like(lengths), lengths], axis=1)]
        self._end += len(sequences)
        kinds = (np.int32, np.int64, np.int32)
        for file, array, kind in zip(self._files, arrays, kinds, strict=False):
            file.write(array.astype(kind).tobytes())
