"""Reader of fastText's format: one text per line, with labels such as `__label__good` before it.

Source: fasttext.cc/docs/en/supervised-tutorial.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bertaccum.errors import InputError
from data_prep.columns import Reading
from data_prep.header import FASTTEXT_PREFIX
from data_prep.rows import Row
from data_prep.text_files import text_lines

_LABEL = re.compile(rf"(?<!\S){FASTTEXT_PREFIX}(\S+)")
# In a table without a header, a delimiter follows the first label.
_FIRST = re.compile(rf"\s*{FASTTEXT_PREFIX}[^\s,;|]+\s")


def is_fasttext(first_line: str) -> bool:
    """Return whether a file whose first line is not blank has fastText's format."""
    return bool(_FIRST.match(first_line))


def fasttext_rows(path: Path, reading: Reading) -> Iterator[Row]:
    """Yield the examples of a file in fastText's format; skip blank lines.

    Raises:
      InputError: A line has no label, or several although each text has one class.
    """
    for row, line in text_lines(path, reading.encoding):
        if line.strip():
            text = _LABEL.sub(" ", line).strip()
            label = None if reading.label_column is None else _label(line, reading, path, row)
            yield Row(row, label, text)


def _label(line: str, reading: Reading, path: Path, row: int) -> str:
    labels = _LABEL.findall(line)
    if not labels:
        remedy = f"begin the line with {FASTTEXT_PREFIX} and a class, or delete it"
        raise InputError("has no label", remedy, path=path, row=row)
    if len(labels) > 1 and not reading.several_labels:
        what = f"has {len(labels)} labels ({', '.join(labels)[:80]})"
        remedy = "keep one, or prepare the data with `task` multi-label"
        raise InputError(what, remedy, path=path, row=row)
    for label in labels:
        if reading.several_labels and reading.label_separator in label:
            what = f"the label {label!r} contains the separator {reading.label_separator!r}"
            raise InputError(what, "choose another `label_separator`", path=path, row=row)
    return reading.label_separator.join(labels)
