"""Finds unusual rows: repeated texts, empty texts, and labels that may mean a missing value."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from data_prep.labels.kinds import LabelKind, label_counts
from data_prep.tables.rows import Rows
from data_prep.tables.spellings import has_stray, is_missing

# Maximum number of texts with conflicting labels whose rows the manifest lists.
_LISTED = 5
# The number of rows whose words are counted, evenly spaced over the training set.
_COUNTED = 10_000
# An ideograph or kana, a word, or another character.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w+|[^\w\s]")
# Tokens per word in reviews of Yelp, of IMDB and of Chinese hotels, with Google's vocabularies.
_TOKENS_PER_WORD = 1.07
_SPECIAL_TOKENS = 2
_LIMITS = (128, 256, 512)


def rows_to_keep(
    texts: Sequence[bytes], test_texts: Sequence[bytes], drop_duplicates: bool | None
) -> list[int]:
    """Return the numbers, counted from 0, of the training rows to keep, in ascending order.

    Args:
      drop_duplicates: False keeps all rows. None drops the rows whose text is in the test set.
        True also drops the rows whose text occurs in an earlier row.
    """
    if drop_duplicates is False:
        return list(range(len(texts)))
    column = _column(texts)
    dropped = column.isin(_column(test_texts))
    if drop_duplicates:
        dropped |= column.duplicated()
    return np.flatnonzero(~dropped).tolist()


def findings(rows: Rows, given: Mapping[str, Rows], cells: Sequence[bytes]) -> dict[str, Any]:
    """Return counts of unusual rows, for the manifest.

    Returns:
      A dict with these keys:
      - `repeated`: the number of `texts` that occur more than once in the training set, and the
        number of `rows` with such a text.
      - `conflicting`: the number of `texts` with more than one label, and `rows` for the first few
        of them: for each text, the number of one row per label.
      - `also_in_test`: the number of `texts` in both sets, and the number of training `rows` with
        such a text; `also_in_dev` likewise, if the source has its own dev set, and
        `dev_also_in_test` with dev `rows`, if it also has its own test set.
      - `empty`: for each set, the number of `rows` with an empty or blank text, and the number of
        the `first_row` among them.
      - `estimated_tokens`: what `estimated_lengths` returned for the training set.
    """
    table = pd.DataFrame({"text": rows.texts, "label": cells, "number": rows.numbers}, dtype=object)
    copies = table[table["text"].duplicated(keep=False)]
    labels = copies.groupby("text", sort=False)["label"].nunique()
    # `empty` counts empty texts, whose labels need not agree.
    conflicting = labels.index[(labels > 1) & labels.index.map(lambda text: bool(text.strip()))]
    # For each text and label, only the first row.
    different = copies.drop_duplicates(["text", "label"]).set_index("text")["number"]
    sets, dev, test = {"training": rows} | dict(given), given.get("dev"), given.get("test")
    return {
        "repeated": {"texts": len(labels), "rows": len(copies)},
        "conflicting": {
            "texts": len(conflicting),
            "rows": [different.loc[[text]].tolist() for text in conflicting[:_LISTED]],
        },
        "also_in_test": _shared(table["text"], test),
        **({"also_in_dev": _shared(table["text"], dev)} if dev else {}),
        **({"dev_also_in_test": _shared(_column(dev.texts), test)} if dev and test else {}),
        "empty": {name: _empty(part) for name, part in sets.items() if part.empty},
        "estimated_tokens": estimated_lengths(rows.texts),
    }


def _column(texts: Sequence[bytes]) -> pd.Series:
    # For a list, pandas would make an array in which each item is as wide as the longest.
    return pd.Series(texts, dtype=object)


def _shared(texts: pd.Series, other: Rows | None) -> dict[str, int]:
    shared = texts[texts.isin(_column(other.texts if other else []))]
    return {"texts": shared.nunique(), "rows": len(shared)}


def _empty(rows: Rows) -> dict[str, int]:
    return {"rows": len(rows.empty), "first_row": rows.empty[0]}


def estimated_lengths(texts: Sequence[bytes]) -> dict[str, Any]:
    """Estimate the lengths of texts in UTF-8 in tokens, before a vocabulary is chosen.

    `longer_than` has the fraction of texts above each of three lengths.
    """
    step = -(-len(texts) // _COUNTED)
    counts = np.array([len(_WORD.findall(text.decode())) for text in texts[::step]])
    lengths = _TOKENS_PER_WORD * counts + _SPECIAL_TOKENS
    longer = {str(limit): float(np.mean(lengths > limit)) for limit in _LIMITS}
    return {"median": round(float(np.median(lengths))), "longer_than": longer}


def missing_labels(kind: LabelKind, parts: Mapping[str, Rows]) -> dict[str, dict[str, int]]:
    """Return, by part, each label that may stand for a missing value and its number of rows."""
    counts = {name: label_counts(kind.format.labels_in(p.classes), p) for name, p in parts.items()}
    found = {
        name: {label: count for label, count in own.items() if is_missing(label)}
        for name, own in counts.items()
    }
    return {name: own for name, own in found.items() if own}


def spellings(kind: LabelKind, parts: Iterable[Rows]) -> dict[str, dict[str, int]]:
    """Return, by class, the spellings if there are several or one has invisible characters.

    The number of rows with each spelling, the most frequent first.
    """
    found: dict[str, Counter[str]] = {name: Counter() for name in kind.labels}
    for rows in parts:
        for label, count in label_counts(kind.format.labels_in(rows.classes), rows).items():
            if name := kind.find(label):
                found[name][label] += count
    return {
        name: dict(counts.most_common())
        for name, counts in found.items()
        if len(counts) > 1 or has_stray(name)
    }
