"""WordPiece vocabularies: their entries, and how a text is cleaned before they are used."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bertaccum.errors import InputError
from bertaccum.files import read_text

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The share of words with capitals or accents above which a vocabulary is cased. It is 0.5 in
# Google's cased vocabulary, and 0 in the uncased one.
_CASED_SHARE = 0.01
# A vocabulary with fewer words says too little.
_FEW_WORDS = 100


@dataclass(frozen=True)
class Vocabulary:
    """The entries of a vocabulary, and the cleaning of texts that it needs.

    Args:
      entries: Entries in the order of their IDs.
      lower_case: Whether texts are lowercased.
      strip_accents: Whether accents are removed from letters.
      split_chinese: Whether each CJK ideograph is a word by itself.
      added: Entries that are matched in texts before they are cleaned and split into words, and
        whether each also matches with other capitals.
    """

    entries: list[str]
    lower_case: bool = True
    strip_accents: bool = True
    split_chinese: bool = True
    added: Mapping[str, bool] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.entries)

    def identity(self) -> str:
        """Return a text that differs for vocabularies that give other tokens.

        For a vocabulary with the default cleaning, it is the content of its `vocab.txt`.
        """
        lines = "\n".join(self.entries)
        usual = dataclasses.replace(self, entries=[]) == Vocabulary([])
        rules = [self.lower_case, self.strip_accents, self.split_chinese, dict(self.added)]
        return lines if usual else f"{lines}\n{rules}"

    def doubt(self) -> str | None:
        """Return a sentence with evidence that `lower_case` is wrong for the entries, else None."""
        words, changed = words_and_changed(self.entries)
        if len(words) < _FEW_WORDS or is_cased(self.entries) != self.lower_case:
            return None
        if self.lower_case:
            return (
                f"texts are lowercased, but {len(changed):,} of the vocabulary's {len(words):,}"
                f" words have capitals or accents, such as {', '.join(changed[:3])}: if the model"
                " is cased, use --no-lower-case"
            )
        return (
            f"texts are not lowercased, but only {len(changed):,} of the vocabulary's"
            f" {len(words):,} words have capitals or accents: if the model is uncased, use"
            " --lower-case"
        )


def is_cased(entries: Iterable[str]) -> bool:
    """Return whether a vocabulary has words that lowercasing would make unreachable."""
    words, changed = words_and_changed(entries)
    return len(changed) > _CASED_SHARE * len(words)


def words_and_changed(entries: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the whole words among entries, and those with capitals or accents."""
    words = [
        entry
        for entry in entries
        if len(entry) > 1 and entry[0].isalpha() and not _is_cjk(entry[0])
    ]
    return words, [word for word in words if _uncased(word) != word]


def _uncased(word: str) -> str:
    decomposed = unicodedata.normalize("NFD", word.lower())
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


def _is_cjk(character: str) -> bool:
    return "\u3400" <= character <= "\u9fff" or "\uf900" <= character <= "\ufaff"


def read_vocabulary(path: Path) -> list[str]:
    """Return the entries in a file with one entry per line, in the order of the IDs.

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

    from bertaccum.bert.tokenizer import cleaned

    rules = Vocabulary([])
    batches = tf.data.Dataset.from_tensor_slices(list(texts)).batch(1024)
    return bert_vocab_from_dataset.bert_vocab_from_dataset(
        batches.map(lambda batch: cleaned(batch, rules)),
        vocab_size=size,
        reserved_tokens=list(SPECIAL_TOKENS),
    )
