"""New entries of a vocabulary for words that it splits into pieces.

WordPiece takes the longest entry that fits, so a word is a single token once it is an entry. Tokens
of `added_tokens` are different: they are found in texts before these are split into words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from bertaccum.bert.encoder_config import ID_BITS
from bertaccum.bert.model_source import CheckpointFormat, LazyTensor, ModelSource
from bertaccum.bert.pretrained_weights import OUTPUT_MATRICES, WORD_EMBEDDINGS
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import TextCleaning, Tokenizer
from bertaccum.bert.vocabulary import LONGEST_ENTRY_BYTES, Vocabulary, is_too_long
from bertaccum.errors import ConfigError, InputError
from bertaccum.system.files import read_text

# Any length will do, because pieces are not truncated.
_LENGTH = 8
# The weights with a row for each entry: the word embeddings and, in pretraining, the output matrix
# and bias.
_OF_ENTRIES = (WORD_EMBEDDINGS, *OUTPUT_MATRICES, "cls/predictions/output_bias/bias")


def read_words(path: Path, vocabulary: Vocabulary) -> list[str]:
    """Return the words in a file, one per line, cleaned as texts are; skip empty lines.

    Raises:
      InputError: A line is not one word for the vocabulary, or the file has no words.
    """
    lines = [line.strip() for line in read_text(path).split("\n")]
    words, known = list[str](), set(vocabulary.entries)
    for row, (line, found) in enumerate(zip(lines, _cleaned(lines, vocabulary), strict=True), 1):
        if not line:
            continue
        if line in known:  # Cleaning would split special tokens.
            words.append(line)
            continue
        if len(found) != 1:
            what = f"{line[:80]!r} is {len(found)} words for the tokenizer"
            remedy = "write one word per line, without punctuation"
            raise InputError(what, remedy, path=path, row=row)
        if len(found[0]) > vocabulary.longest_word:
            what = f"has a word of more than {vocabulary.longest_word} characters"
            raise InputError(
                what, "remove it, because the tokenizer replaces it with [UNK]", path=path, row=row
            )
        if is_too_long(found[0]):
            what = f"has a word of more than {LONGEST_ENTRY_BYTES} bytes"
            raise InputError(what, "remove it, or write a shorter word", path=path, row=row)
        words += found
    if not words:
        raise InputError("contains no words", "write one word per line", path=path)
    return words


def with_words(
    vocabulary: Vocabulary, words: Iterable[str]
) -> tuple[Vocabulary, list[tuple[int, ...]]]:
    """Return a vocabulary with words that are not entries yet, in order, after the other entries.

    Args:
      words: Words that are cleaned as texts are, such as those of `read_words`.

    Returns:
      The vocabulary, and for each new entry the IDs of the pieces into which the old one splits it.
      Their mean is a good first embedding.
    """
    known = set(vocabulary.entries)
    new = [word for word in dict.fromkeys(words) if word not in known]
    entries = [*vocabulary.entries, *new]
    if len(entries) > 2**ID_BITS:
        what = (
            f"`add_words` gives the vocabulary {len(entries):,} entries, more than {2**ID_BITS:,}"
        )
        raise ConfigError(what, "add fewer words")
    return dataclasses.replace(vocabulary, entries=entries), pieces_of(vocabulary, new)


def add_words(source: ModelSource, words: Iterable[str]) -> ModelSource:
    """Return a model with words that its vocabulary lacks, as `with_words` adds them.

    The pretrained weights of a new entry are the mean of those of its pieces.
    """
    assert source.vocabulary is not None
    vocabulary, pieces = with_words(source.vocabulary, words)
    encoder, form = source.encoder, source.format
    encoder = dataclasses.replace(encoder, vocab_size=len(vocabulary))
    if form is not None:
        form = _extended(form, pieces)
    return dataclasses.replace(source, vocabulary=vocabulary, encoder=encoder, format=form)


def _extended(form: CheckpointFormat, pieces: list[tuple[int, ...]]) -> CheckpointFormat:
    """Return a format that reads a row more for the pieces of each new entry."""

    def with_rows(tensor: LazyTensor) -> LazyTensor:
        def read() -> np.ndarray:
            rows = np.asarray(tensor.read())
            return np.concatenate([rows, [rows[list(own)].mean(axis=0) for own in pieces]])

        shape = [tensor.shape[0] + len(pieces), *tensor.shape[1:]]
        return dataclasses.replace(tensor, shape=shape, read=read)

    def tensors(path: Path) -> Mapping[str, LazyTensor]:
        found, keys = dict(form.tensors(path)), map(form.tensor_key, _OF_ENTRIES)
        return found | {key: with_rows(found[key]) for key in keys if key in found}

    return dataclasses.replace(form, tensors=tensors) if pieces else form


def pieces_of(vocabulary: Vocabulary, words: list[str]) -> list[tuple[int, ...]]:
    """Return the IDs of the pieces of each word."""
    tokenizer = Tokenizer(Tokenization(vocabulary, _LENGTH))
    with tf.device("CPU"):  # A GPU's memory must stay free until the planner has measured.
        return [tuple(ids) for ids in tokenizer.pieces(tf.constant(words, tf.string)).to_list()]


def _cleaned(lines: list[str], vocabulary: Vocabulary) -> list[list[str]]:
    """Return the words of each line, with added entries as they are in the vocabulary."""
    clean = TextCleaning(vocabulary)
    entries = {stand_in: entry for entry, stand_in in clean.stand_ins.items()}
    texts = clean(tf.constant(lines)).numpy().tolist()
    return [[entries.get(word, word) for word in text.decode().split()] for text in texts]
