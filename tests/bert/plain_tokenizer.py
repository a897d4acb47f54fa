"""The rules of BERT's tokenizer in plain Python, to compare ours with.

Source: google-research/bert `tokenization.py`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from bertaccum.bert.vocabulary import Vocabulary

LONGEST_WORD = 200
IDEOGRAPHS = [
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
]


def ids(texts: list[str], vocabulary: Vocabulary) -> list[list[int]]:
    """Return the IDs of each text, without special tokens."""
    numbers = {entry: number for number, entry in enumerate(vocabulary.entries)}
    return [
        [numbers[piece] for word in words(text, vocabulary) for piece in pieces(word, numbers)]
        for text in texts
    ]


def words(text: str, vocabulary: Vocabulary) -> Iterator[str]:
    clean = "".join(
        " " if is_space(c) else c
        for c in text
        if is_space(c) or not (c in "\0\ufffd" or unicodedata.category(c) in ("Cc", "Cf"))
    )
    if vocabulary.split_chinese:
        clean = "".join(f" {c} " if is_ideograph(c) else c for c in clean)
    for word in clean.split():
        if vocabulary.lower_case:
            word = word.lower()
        if vocabulary.strip_accents:
            decomposed = unicodedata.normalize("NFD", word)
            word = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        yield from "".join(f" {c} " if is_punctuation(c) else c for c in word).split()


def pieces(word: str, numbers: dict[str, int]) -> list[str]:
    """Return the longest pieces from the left, or [UNK] if the word has other parts."""
    found, start = [], 0
    while start < len(word) <= LONGEST_WORD:
        prefix = "##" if start else ""
        ends = (e for e in range(len(word), start, -1) if prefix + word[start:e] in numbers)
        end = next(ends, None)
        if end is None:
            return ["[UNK]"]
        found.append(prefix + word[start:end])
        start = end
    return found or ["[UNK]"]


def is_space(character: str) -> bool:
    return character in " \t\n\r" or unicodedata.category(character) == "Zs"


def is_punctuation(character: str) -> bool:
    ascii_symbol = "!" <= character <= "~" and not character.isalnum()
    return ascii_symbol or unicodedata.category(character).startswith("P")


def is_ideograph(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in IDEOGRAPHS)
