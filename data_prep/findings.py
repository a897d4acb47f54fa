"""Finds unusual rows: repeated texts, empty texts, and labels that may mean a missing value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from data_prep.rows import Rows
from data_prep.text_lengths import estimated_lengths

_MISSING = frozenset({"#n/a", "<na>", "n/a", "na", "nan", "none", "null"})
# Maximum number of texts with conflicting labels whose rows the manifest lists.
_LISTED = 5


def rows_to_keep(
    texts: Sequence[bytes], test_texts: Collection[bytes], drop_duplicates: bool | None
) -> list[int]:
    """Return the numbers, counted from 0, of the training rows to keep, in ascending order.

    Args:
      texts: The text of each training row.
      test_texts: The texts of the test set and other given splits; may be empty.
      drop_duplicates: False keeps all rows. None drops the rows whose text is in the test set.
        True also drops the rows whose text occurs in an earlier row.
    """
    if drop_duplicates is False:
        return list(range(len(texts)))
    seen, kept = set(test_texts), []
    for row, text in enumerate(texts):
        if text not in seen:
            kept.append(row)
            if drop_duplicates:
                seen.add(text)
    return kept


def findings(rows: Rows, given: Mapping[str, Rows], cells: Sequence[bytes]) -> dict[str, Any]:
    """Return counts of unusual rows, for the manifest.

    Args:
      rows: The training set.
      given: The splits that are not made from the training set, keyed by name.
      cells: The label of each training row, as it is written.

    Returns:
      A dict with these keys:

      - `repeated`: the number of `texts` that occur more than once in the training set, and the
        number of `rows` with such a text.
      - `conflicting`: the number of `texts` with more than one label, and `rows` for the first few
        of them: for each text, the number of one row per label.
      - `also_in_test`: the number of `texts` in both sets, and the number of training `rows` with
        such a text; `also_in_dev` likewise, if the source has its own dev set.
      - `empty`: for each set, the number of `rows` whose text is empty or blank, and the number of
        the `first_row` among them.
      - `missing_labels`: for each set, each label that may stand for a missing value, and the
        number of rows with this label.
      - `estimated_tokens`: what `estimated_lengths` returned for the training set.
    """
    counts = Counter(rows.texts)
    copies = _copies(rows, counts)
    conflicts = [found for found in copies if len({cells[row] for row in found}) > 1]
    sets = {"training": rows} | dict(given)
    return {
        "repeated": {"texts": len(copies), "rows": sum(map(len, copies))},
        "conflicting": {
            "texts": len(conflicts),
            "rows": [_one_row_a_label(rows, cells, found) for found in conflicts[:_LISTED]],
        },
        "also_in_test": _shared(counts, given.get("test")),
        **({"also_in_dev": _shared(counts, given["dev"])} if "dev" in given else {}),
        "empty": {name: _empty(part) for name, part in sets.items() if part.empty},
        "estimated_tokens": estimated_lengths(rows.texts),
        "missing_labels": {name: found for name, part in sets.items() if (found := _missing(part))},
    }


def _copies(rows: Rows, counts: Counter[bytes]) -> list[list[int]]:
    """Return, for each text that occurs more than once, the indices of its rows."""
    copies: dict[bytes, list[int]] = {text: [] for text, count in counts.items() if count > 1}
    for row, text in enumerate(rows.texts):
        if text in copies:
            copies[text].append(row)
    return list(copies.values())


def _shared(counts: Counter[bytes], other: Rows | None) -> dict[str, int]:
    theirs = set(other.texts if other else ())
    shared = [count for text, count in counts.items() if text in theirs]
    return {"texts": len(shared), "rows": sum(shared)}


def _one_row_a_label(rows: Rows, cells: Sequence[bytes], copies: list[int]) -> list[int]:
    """Return, for each label, the row number of the first row that has it."""
    first: dict[bytes, int] = {}
    for row in copies:
        first.setdefault(cells[row], rows.numbers[row])
    return list(first.values())


def _empty(rows: Rows) -> dict[str, int]:
    return {"rows": len(rows.empty), "first_row": rows.empty[0]}


def _missing(rows: Rows) -> dict[str, int]:
    counts = Counter(rows.codes)
    labels = enumerate(rows.classes)
    return {label: counts[code] for code, label in labels if label.casefold() in _MISSING}
