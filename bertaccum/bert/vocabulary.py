"""WordPiece vocabularies: reading, checking, and learning one from text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bertaccum.errors import InputError
from bertaccum.files import read_text

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def read_vocabulary(path: Path) -> list[str]:
    """Reads a vocabulary file, one entry a line; an entry's id is its line, from 0.

    Raises:
      InputError: the file is missing, not UTF-8, repeats an entry or lacks a special token.
    """
    text = read_text(path).removesuffix("\n")
    vocabulary = [line.removesuffix("\r") for line in text.split("\n")]
    check_vocabulary(vocabulary, path)
    return vocabulary


def check_vocabulary(vocabulary: list[str], path: Path) -> None:
    """Raises InputError unless every special token is there and no entry is there twice."""
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise InputError(
            f"has no {' '.join(missing)}", "it is not a BERT vocabulary (vocab.txt)", path=path
        )
    first_row: dict[str, int] = {}
    for row, entry in enumerate(vocabulary, start=1):
        if first_row.setdefault(entry, row) != row:
            raise InputError(
                f"repeats {entry!r} of row {first_row[entry]}",
                "every entry must be there once",
                path=path,
                row=row,
            )


def learn_vocabulary(texts: Iterable[str], size: int = 4000) -> list[str]:
    """Learns a WordPiece vocabulary from `texts` with tensorflow-text's own tool.

    Args:
      texts: the training texts, as written; they are normalised as for tokenizing.
      size: the most entries the vocabulary may have.

    Returns:
      The entries, the special tokens first (so `[PAD]` is 0).
    """
    import tensorflow as tf
    from tensorflow_text.tools.wordpiece_vocab import bert_vocab_from_dataset

    from bertaccum.bert.tokenizer import normalize

    batches = tf.data.Dataset.from_tensor_slices(list(texts)).batch(1024).map(normalize)
    return bert_vocab_from_dataset.bert_vocab_from_dataset(
        batches, vocab_size=size, reserved_tokens=list(SPECIAL_TOKENS)
    )
