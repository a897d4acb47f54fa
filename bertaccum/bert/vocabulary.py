"""Functions that read, check and learn WordPiece vocabularies."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bertaccum.errors import InputError
from bertaccum.files import read_text

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def read_vocabulary(path: Path) -> list[str]:
    """Return the vocabulary in a file with one entry per line, in the order of the IDs.

    Raises:
      InputError: The file is missing, is not UTF-8, repeats an entry or lacks a special token.
    """
    text = read_text(path).removesuffix("\n")
    vocabulary = [line.removesuffix("\r") for line in text.split("\n")]
    check_vocabulary(vocabulary, path)
    return vocabulary


def check_vocabulary(vocabulary: list[str], path: Path) -> None:
    """Raise InputError if a vocabulary lacks a special token or repeats an entry."""
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise InputError(
            f"has no {', '.join(missing)}", "use the vocab.txt of a BERT model", path=path
        )
    first_row: dict[str, int] = {}
    for row, entry in enumerate(vocabulary, start=1):
        if first_row.setdefault(entry, row) != row:
            raise InputError(
                f"repeats {entry!r} of row {first_row[entry]}",
                "list every entry only once",
                path=path,
                row=row,
            )


def learn_vocabulary(texts: Iterable[str], size: int = 4000) -> list[str]:
    """Learn a WordPiece vocabulary from texts with tensorflow-text's tool.

    Args:
      texts: Training texts, which are first normalized as for the tokenizer.
      size: Maximum number of entries.

    Returns:
      The entries, starting with the special tokens, so that `[PAD]` has ID 0.
    """
    import tensorflow as tf
    from tensorflow_text.tools.wordpiece_vocab import bert_vocab_from_dataset

    from bertaccum.bert.tokenizer import normalize

    batches = tf.data.Dataset.from_tensor_slices(list(texts)).batch(1024).map(normalize)
    return bert_vocab_from_dataset.bert_vocab_from_dataset(
        batches, vocab_size=size, reserved_tokens=list(SPECIAL_TOKENS)
    )
