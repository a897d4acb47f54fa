"""Lines of a user's file, with an error that names the row where it is not text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bertaccum.errors import InputError
from bertaccum.files import open_input

_BOM = b"\xef\xbb\xbf"
_SAVE_AS = "save it as UTF-8 text"


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Reads a UTF-8 file line by line.

    Only a line feed ends a line: `str.splitlines` and text mode would also cut
    at characters that stand inside reviews.

    Args:
      path: the file; a leading byte order mark is skipped.

    Yields:
      (row, line): 1-based row, and the line with its end.

    Raises:
      InputError: the file is missing, unreadable, binary or not UTF-8.
    """
    with open_input(path) as file:
        for row, raw in enumerate(file, 1):
            yield row, _decode(raw.removeprefix(_BOM) if row == 1 else raw, path, row)


def _decode(raw: bytes, path: Path, row: int) -> str:
    if b"\0" in raw:
        raise InputError(
            "holds NUL bytes: it is binary, or text in UTF-16", _SAVE_AS, path=path, row=row
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"byte {raw[error.start]:#04x} at position {error.start + 1} is not UTF-8"
        raise InputError(what, _SAVE_AS, path=path, row=row) from error
