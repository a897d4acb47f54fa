"""Readers of JSON Lines (one object per line), Parquet and fastText's format.

A field of a nested object has the name `data.text`. In fastText's format, a line is a text with
labels such as `__label__good` before it. Source: fasttext.cc/docs/en/supervised-tutorial.html.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from bertaccum.errors import InputError, reason
from data_prep.tables.columns import ReadOptions
from data_prep.tables.detection import FASTTEXT_PREFIX
from data_prep.tables.rows import Records, Row
from data_prep.tables.text_files import HAS_RETURN, text_lines

_ENDINGS = frozenset({".jsonl", ".ndjson", ".json"})
_ROWS_A_BATCH = 1024
_MAX_NESTED, _DEEPEST = 1000, 16
_LINE_FEEDS = "end every line with a line feed"
_MISSING = object()  # None stands for null.
_SURROGATES = re.compile("[\ud800-\udfff]")  # JSON can escape them, but UTF-8 cannot encode them.


def is_json_lines(path: Path, ending: str, encoding: str | None) -> bool:
    """Return whether a file has a JSON Lines extension or its first nonblank line is an object."""
    first = next((line.strip() for _, line in text_lines(path, encoding) if line.strip()), "")
    if ending in _ENDINGS and first.startswith("["):
        remedy = "write one object per line, for example with `jq -c '.[]'`"
        raise InputError("is a JSON array, not JSON Lines", remedy, path=path)
    return ending in _ENDINGS or (first.startswith("{") and _is_object(first))


def json_names(path: Path, encoding: str | None) -> list[str]:
    """Return the keys of all objects, followed by the names of nested fields."""
    names, nested = dict[str, None](), dict[str, None]()
    for _, record in _objects(path, encoding):
        names |= dict.fromkeys(record)
        if len(nested) < _MAX_NESTED:  # Some objects have other keys in each row.
            nested |= dict.fromkeys(_nested(record))
    return list(names | nested)


def json_cells(
    path: Path, encoding: str | None, names: Sequence[str], label: str | None = None
) -> Records:
    """Yield the line number of each object, from 1, and its values for the keys `names`, as text.

    Args:
      label: The one of them whose value may be a list of labels, which becomes a list of JSON.
    """
    for row, record in _objects(path, encoding):
        for name in names:
            if _value(record, name) is _MISSING:
                what = f"has no key {name!r}"
                raise InputError(what, "add it or delete the row", path=path, row=row)
        yield row, _cells(record, names, path, row, label)


def _nested(record: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of the fields of objects in an object."""
    # The depth is limited, because from Python 3.12 on, JSON can be nested deeper than calls.
    for key, value in record.items():
        if isinstance(value, dict) and prefix.count(".") < _DEEPEST:
            for name in value:
                yield f"{prefix}{key}.{name}"
            yield from _nested(value, f"{prefix}{key}.")


def _value(record: dict[str, Any], name: str) -> Any:
    """Return the value of a field, or `_MISSING`; a key that contains a dot has priority."""
    # If an object that contains the field is null, so is the field.
    if name in record:
        return record[name]
    for dot in (at for at, character in enumerate(name) if character == "."):
        inside = record.get(name[:dot], _MISSING)
        if inside is None:
            return None
        if isinstance(inside, dict):
            value = _value(inside, name[dot + 1 :])
            if value is not _MISSING:
                return value
    return _MISSING


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
            if "\r" in line.strip():
                raise InputError(HAS_RETURN, _LINE_FEEDS, path=path, row=row) from error
            what = f"is not valid JSON ({error})"
            raise InputError(what, "write one object per line", path=path, row=row) from error
        if not isinstance(record, dict):
            raise InputError("is not a JSON object", "write one per line", path=path, row=row)
        yield row, record


def parquet_names(path: Path) -> list[str]:
    """Return the names of the file's columns."""
    with _opened(path) as file:
        names = list(file.schema_arrow.names)
        nested = [name for field in file.schema_arrow for name in _fields(field)]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"has two columns named {name!r}", "rename one", path=path)
    return list(dict.fromkeys(names + nested))


def parquet_features(path: Path) -> dict[str, Any]:
    """Return the features that the library datasets wrote to a file; empty if another one did."""
    with _opened(path) as file:
        metadata = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
        columns = list(file.schema_arrow.names)
    try:
        features = json.loads(metadata)["info"]["features"]
        return {name: features.get(name) for name in columns}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return dict.fromkeys(columns)


def _fields(parent: Any) -> Iterator[str]:
    """Yield the names of the fields of a struct, as in `data.text`."""
    import pyarrow

    if pyarrow.types.is_struct(parent.type):
        for field in parent.type:
            yield f"{parent.name}.{field.name}"
            yield from (f"{parent.name}.{name}" for name in _fields(field))


def parquet_cells(path: Path, names: Sequence[str], label: str | None = None) -> Records:
    """Yield the number of each row and its values in some columns, as `json_cells` does."""
    with _opened(path) as file:
        batches = file.iter_batches(_ROWS_A_BATCH, columns=list(names))
        records = (record for batch in batches for record in batch.to_pylist())
        for row, record in enumerate(records, 1):
            yield row, _cells(record, names, path, row, label)


def parquet_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as objects."""
    with _opened(path) as file:
        for batch in file.iter_batches(_ROWS_A_BATCH):
            yield from batch.to_pylist()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "pyarrow":
            what = "is a Parquet file, which needs pyarrow"
            raise InputError(what, "install bertaccum[parquet]", path=path) from error
        # An old pyarrow raises any of these errors with a newer NumPy.
        what = f"is a Parquet file, but pyarrow cannot be imported ({reason(error)})"
        raise InputError(what, "run pip install --upgrade pyarrow", path=path) from error
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        what = f"is a damaged Parquet file ({error})"
        raise InputError(what, "create or download it again", path=path) from error


def _cells(
    record: dict[str, Any], names: Sequence[str], path: Path, row: int, label: str | None
) -> list[str]:
    """Return the values of the fields `names` as text; a list of labels as JSON."""

    def cell(name: str) -> str:
        value = _value(record, name)
        if name != label or not isinstance(value, list):
            return _text(value, name, path, row)
        return json.dumps([_text(item, name, path, row) for item in value], ensure_ascii=False)

    return [cell(name) for name in names]


def _text(value: Any, name: str, path: Path, row: int) -> str:
    """Return a value as text: Booleans as `true` and `false`, null as an empty string."""
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
