"""JSON Lines: one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertaccum.errors import InputError
from data_prep.text_cleaning import cell
from data_prep.text_files import text_lines

_ENDINGS = frozenset({".jsonl", ".ndjson", ".json"})


def is_json_lines(path: Path, ending: str, encoding: str | None) -> bool:
    """Whether a file is called so, or its first line is a JSON object.

    Raises:
      InputError: it is a JSON array.
    """
    first = next((line.strip() for _, line in text_lines(path, encoding) if line.strip()), "")
    if ending in _ENDINGS and first.startswith("["):
        remedy = "write one object a line, for example with `jq -c '.[]'`"
        raise InputError("is a JSON array, not JSON Lines", remedy, path=path)
    return ending in _ENDINGS or (first.startswith("{") and _is_object(first))


def json_names(path: Path, encoding: str | None) -> list[str]:
    """Return the keys of the first object."""
    return list(next((record for _, record in _objects(path, encoding)), {}))


def json_cells(
    path: Path, names: Sequence[str], encoding: str | None
) -> Iterator[tuple[int, list[str]]]:
    """Yield the row and the values of `names` of each object, as text.

    Raises:
      InputError: a line is not a JSON object, or lacks one of them, or it is neither text,
        number nor truth value.
    """
    for row, record in _objects(path, encoding):
        yield row, [_cell(record, name, path, row) for name in names]


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
            raise InputError(what, "write one object a line", path=path, row=row) from error
        if not isinstance(record, dict):
            raise InputError("is not a JSON object", "write one a line", path=path, row=row)
        yield row, record


def _cell(record: dict[str, Any], name: str, path: Path, row: int) -> str:
    if name not in record:
        raise InputError(f"has no {name!r}", "add it or delete the row", path=path, row=row)
    return cell(record[name], name, path, row)
