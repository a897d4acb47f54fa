"""WordPiece vocabularies: their entries, and how a text is cleaned before they are used."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MASK = "[MASK]"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", MASK)
# The share of words with capitals or accents above which a vocabulary is cased. It is 0.5 in
# Google's cased vocabulary, and 0 in the uncased one.
_CASED_SHARE = 0.01
# A vocabulary with fewer words says too little.
_FEW_WORDS = 100
# Characters in the longest word that is split into pieces, in the original tokenizer.
LONGEST_WORD = 200
# Bytes of UTF-8 in the longest entry, without ##, that tensorflow-text's tokenizer accepts.
LONGEST_ENTRY_BYTES = 256


@dataclass(frozen=True)
class Vocabulary:
    """The entries of a vocabulary, and the cleaning of texts that it needs."""

    entries: list[str]  # Entries in the order of their IDs.
    lower_case: bool = True  # Whether texts are lowercased.
    strip_accents: bool = True  # Whether accents are removed from letters.
    split_chinese: bool = True  # Whether each CJK ideograph is a word by itself.
    # Entries that are matched in texts before they are split into words, and whether each is
    # matched in the cleaned text (True) or in the text as it was written (False).
    added: Mapping[str, bool] = field(default_factory=dict)
    longest_word: int = LONGEST_WORD  # Number of characters of the longest word that is not [UNK].
    # Whether texts lose private-use characters, and a sigma at the end of a word is lowercased like
    # any other, as in transformers and unlike in the original tokenizer.
    as_transformers: bool = False

    def __len__(self) -> int:
        return len(self.entries)

    def padded(self, size: int) -> Vocabulary:
        """Return a vocabulary with at least `size` entries; texts contain none of the new ones.

        Some models of Hugging Face have more embeddings than entries, for a size that is fast.
        """
        spare = [f"[no entry {number}]" for number in range(len(self.entries), size)]
        return dataclasses.replace(self, entries=[*self.entries, *spare])

    def identity(self) -> str:
        """Return a text that differs for vocabularies that give other tokens.

        For a vocabulary with the default cleaning, it is the content of its `vocab.txt`.
        """
        lines = "\n".join(self.entries)
        usual = dataclasses.replace(self, entries=[]) == Vocabulary([])
        rules = [self.lower_case, self.strip_accents, self.split_chinese, dict(self.added)]
        if self.as_transformers or self.longest_word != LONGEST_WORD:
            rules += [self.longest_word, self.as_transformers]
        return lines if usual else f"{lines}\n{rules}"

    def casing_warning(self) -> str | None:
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


def is_too_long(entry: str) -> bool:
    """Return whether the tokenizer cannot have an entry, because it has too many bytes."""
    return len(entry.removeprefix("##").encode()) > LONGEST_ENTRY_BYTES


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
    if word.isascii():  # Most words are, and this is ten times as fast.
        return word.lower()
    decomposed = unicodedata.normalize("NFD", word.lower())
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


def _is_cjk(character: str) -> bool:
    return "\u3400" <= character <= "\u9fff" or "\uf900" <= character <= "\ufaff"
