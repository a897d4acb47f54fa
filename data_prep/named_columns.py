"""Readers of formats that name their columns: JSON Lines (one object per line) and Parquet."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from bertaccum.errors import InputError
from data_prep.text_files import text_lines

_ENDINGS = frozenset({".jsonl", ".ndjson", ".json"})
_ROWS_A_BATCH = 1024
_SURROGATES = re.compile("[\ud800-\udfff]")  # JSON can escape them, but UTF-8 cannot encode them.


def is_json_lines(path: Path, ending: str, encoding: str | None) -> bool:
    """Return whether a file has a JSON Lines extension or its first nonblank line is an object.

    Raises:
      InputError: The file is a JSON array.
    """
    first = next((line.strip() for _, line in text_lines(path, encoding) if line.strip()), "")
    if ending in _ENDINGS and first.startswith("["):
        remedy = "write one object per line, for example with `jq -c '.[]'`"
        raise InputError("is a JSON array, not JSON Lines", remedy, path=path)
    return ending in _ENDINGS or (first.startswith("{") and _is_object(first))


def json_names(path: Path, encoding: str | None) -> list[str]:
    """Return the keys of all objects."""
    return list(dict.fromkeys(key for _, record in _objects(path, encoding) for key in record))


def json_cells(
    path: Path, encoding: str | None, names: Sequence[str], label: str | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number of each object, from 1, and its values for the keys `names`, as text.

    Args:
      path: The file.
      encoding: Python's name for the encoding.
      names: The keys.
      label: The one of them whose value may be a list of labels, which becomes a list of JSON.

    Raises:
      InputError: A line is not a JSON object, a key is missing, or a value cannot be text.
    """
    for row, record in _objects(path, encoding):
        for name in names:
            if name not in record:
                what = f"has no key {name!r}"
                raise InputError(what, "add it or delete the row", path=path, row=row)
        yield row, [_cell(record[name], name, path, row, name == label) for name in names]


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _objects(path: Path, encoding: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    for row, line in text_lines(path, encoding):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            what = f"is not valid JSON ({error})"
            raise InputError(what, "write one object per line", path=path, row=row) from error
        if not isinstance(record, dict):
            raise InputError("is not a JSON object", "write one per line", path=path, row=row)
        yield row, record


def parquet_names(path: Path) -> list[str]:
    """Return the names of the file's columns.

    Raises:
      InputError: The file is damaged, two columns have the same name, or pyarrow is not installed.
    """
    with _opened(path) as file:
        names = list(file.schema_arrow.names)
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"has two columns named {name!r}", "rename one", path=path)
    return names


def parquet_cells(
    path: Path, names: Sequence[str], label: str | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each row, from 1, and its values in the columns `names`, as text.

    Args:
      path: The file.
      names: The columns.
      label: The one of them whose value may be a list of labels, which becomes a list of JSON.

    Raises:
      InputError: The file is damaged, or a value is not a string, a number, a Boolean or null.
    """
    with _opened(path) as file:
        batches = file.iter_batches(_ROWS_A_BATCH, columns=list(names))
        records = (record for batch in batches for record in batch.to_pylist())
        for row, record in enumerate(records, 1):
            yield row, [_cell(record[name], name, path, row, name == label) for name in names]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(
            "is a Parquet file, which needs pyarrow", "install bertaccum[parquet]", path=path
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"is a damaged Parquet file ({error})", "create or download it again", path=path
        ) from error


def _cell(value: Any, name: str, path: Path, row: int, may_be_list: bool) -> str:
    """Return a value as text; a list of labels as JSON.

    Raises:
      InputError: The value, or an item of a list, is not suitable for `_text`.
    """
    if not may_be_list or not isinstance(value, list):
        return _text(value, name, path, row)
    return json.dumps([_text(item, name, path, row) for item in value], ensure_ascii=False)


def _text(value: Any, name: str, path: Path, row: int) -> str:
    """Return a value as text: Booleans as `true` and `false`, null as an empty string.

    Raises:
      InputError: The value is not a str, bool, finite number or None.
    """
    if isinstance(value, str):
        return _SURROGATES.sub(" ", value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | Decimal):
        if not -math.inf < value < math.inf:  # This also compares integers that no float can hold.
            what = f"the value of {name!r} is {value}, not a finite number"
            raise InputError(what, "correct it or delete the row", path=path, row=row)
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    what = f"the value of {name!r} is a {type(value).__name__}, not text"
    raise InputError(what, "use text, or a number for a class", path=path, row=row)
