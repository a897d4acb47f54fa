"""The lengths of texts in tokens, estimated before a vocabulary is chosen."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

# The number of rows that are counted, evenly spaced over the training set.
_ROWS = 10_000
# An ideograph or kana, a word, or another character.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w+|[^\w\s]")
# Tokens per word in reviews of Yelp, of IMDB and of Chinese hotels, with Google's vocabularies.
_TOKENS_PER_WORD = 1.07
_SPECIAL_TOKENS = 2
_LIMITS = (128, 256, 512)


def estimated_lengths(texts: Sequence[bytes]) -> dict[str, Any]:
    """Return `median`, and in `longer_than` the fraction of texts above each of three lengths.

    Args:
      texts: Texts in UTF-8.
    """
    step = -(-len(texts) // _ROWS)
    counts = [len(_WORD.findall(text.decode())) for text in texts[::step]]
    lengths = [_TOKENS_PER_WORD * count + _SPECIAL_TOKENS for count in counts]
    longer = {
        str(limit): sum(length > limit for length in lengths) / len(lengths) for limit in _LIMITS
    }
    return {"median": round(statistics.median(lengths)), "longer_than": longer}
