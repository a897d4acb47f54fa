"""Parquet files, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertaccum.errors import InputError
from data_prep.text_cleaning import cell

_ROWS_A_BATCH = 1024


def parquet_names(path: Path) -> list[str]:
    """Return the names of a file's columns.

    Raises:
      InputError: it is damaged, or pyarrow is not installed.
    """
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def parquet_cells(path: Path, names: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the row, from 1, and the values of `names`, as text.

    Raises:
      InputError: the file is damaged, or a value is neither text, number nor truth value.
    """
    row = 0
    with _opened(path) as file:
        for batch in file.iter_batches(_ROWS_A_BATCH, columns=list(names)):
            columns = [batch.column(name).to_pylist() for name in names]
            for values in zip(*columns, strict=True):
                row += 1
                yield (
                    row,
                    [cell(v, name, path, row) for v, name in zip(values, names, strict=True)],
                )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError("looks like Parquet", "install bertaccum[parquet]", path=path) from error
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"is damaged Parquet ({error})", "make or fetch it again", path=path
        ) from error
