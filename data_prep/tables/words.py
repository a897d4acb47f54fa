"""Splits running text into words, for tags."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from itertools import pairwise

# The tag of words outside of entities.
OUTSIDE = "O"
# As in BERT's tokenizer: ASCII symbols are punctuation, and an ideograph is a word by itself.
_SYMBOLS = frozenset("$+<=>^`|~")
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ceaf\U0002f800-\U0002fa1f"
_CHUNK = re.compile(rf"[{_IDEOGRAPHS}]|[^\s{_IDEOGRAPHS}]+")
_IDEOGRAPH = re.compile(f"[{_IDEOGRAPHS}]")
_SPACES = re.compile(r"\s+")
_SEPARATED = re.compile("[^ \t\n\v\f\r]+")
# Characters that files cannot contain; BERT drops them.
DROPPED = re.compile("[\x00\ud800-\udfff]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zs", "Zl", "Zp"})
# BERT drops this character, so a word of it is read as [UNK].
_NOTHING = "\ufffd"


class SplitText(str):
    """A text whose words are separated by single spaces, as `one_word` returns them."""

    __slots__ = ()

    @staticmethod
    def of(words: Iterable[str]) -> SplitText:
        """Return the text of words."""
        return SplitText(" ".join(map(one_word, words)))


def word_spans(text: str, borders: Collection[int] = ()) -> list[tuple[int, int]]:
    """Return the start and the end of each word of a text, in characters.

    The words of a `SplitText` are known. Other texts are split at white space, and each character
    of punctuation at the edge of such a part is a word of its own: `(U.S.-based)` has the words
    `(`, `U.S.-based` and `)`.

    Args:
      borders: Positions at which words end as well.
    """
    if isinstance(text, SplitText):
        return [match.span() for match in re.finditer("[^ ]+", text)]
    found = []
    for chunk in _CHUNK.finditer(text):
        inside = sorted({at for at in borders if chunk.start() < at < chunk.end()})
        edges = [chunk.start(), *inside, chunk.end()]
        for start, end in pairwise(edges):
            first, last = start, end
            while first < last and is_punctuation(text[first]):
                first += 1
            while last > first and is_punctuation(text[last - 1]):
                last -= 1
            found += [(at, at + 1) for at in range(start, first)]
            found += [(first, last)] if first < last else []
            found += [(at, at + 1) for at in range(last, end)]
    return found


def separated_words(text: str) -> list[str]:
    """Return the words of a text that ASCII spaces separate; words may contain other spaces."""
    return _SEPARATED.findall(text)


def is_ideograph(character: str) -> bool:
    return bool(_IDEOGRAPH.match(character))


def is_punctuation(character: str) -> bool:
    return character in _SYMBOLS or unicodedata.category(character).startswith("P")


def one_word(word: str) -> str:
    """Return a word as a prepared file contains it: without ASCII spaces, and visible."""
    word = _SPACES.sub("\u00a0", DROPPED.sub("", word)).strip("\u00a0")
    invisible = all(unicodedata.category(character) in _INVISIBLE for character in word)
    return _NOTHING if invisible else word
