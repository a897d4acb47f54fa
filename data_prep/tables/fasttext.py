"""Reader of fastText's format: one text per line, with labels such as `__label__good` before it.

Source: fasttext.cc/docs/en/supervised-tutorial.html.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from bertaccum.errors import InputError
from data_prep.tables.columns import ReadOptions
from data_prep.tables.header import FASTTEXT_PREFIX
from data_prep.tables.rows import Row
from data_prep.tables.text_files import text_lines

_LABEL = re.compile(rf"(?<!\S){FASTTEXT_PREFIX}(\S+)")
# In a table without a header, a delimiter follows the first label.
_FIRST = re.compile(rf"\s*{FASTTEXT_PREFIX}[^\s,;|]+\s")


def is_fasttext(first_line: str) -> bool:
    """Return whether a file whose first line is not blank has fastText's format."""
    return bool(_FIRST.match(first_line))


def fasttext_rows(path: Path, reading: ReadOptions) -> Iterator[Row]:
    """Yield the examples of a file in fastText's format; skip blank lines.

    The labels of a line that has several, or may have, are a JSON list.
    """
    for row, line in text_lines(path, reading.encoding):
        if line.strip():
            text = _LABEL.sub(" ", line).strip()
            label = None if reading.label_column is None else _label(line, reading, path, row)
            yield Row(row, label, text)


def _label(line: str, reading: ReadOptions, path: Path, row: int) -> str:
    labels = _LABEL.findall(line)
    if not labels:
        remedy = f"begin the line with {FASTTEXT_PREFIX} and a class, or delete it"
        raise InputError("has no label", remedy, path=path, row=row)
    # Labels may contain any separator.
    several = len(labels) > 1 or reading.several_labels
    return json.dumps(labels, ensure_ascii=False) if several else labels[0]
