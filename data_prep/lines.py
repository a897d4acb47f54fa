"""Lines of a user's file, with an error that names the row where it is not text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from bertaccum.errors import InputError

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


@contextmanager
def open_input(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that the user named.

    Args:
      path: the file.

    Yields:
      The open binary file.

    Raises:
      InputError: it is missing, a folder, or cannot be opened or read.
    """
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise InputError("there is no such file", "check the path", path=path) from error
    except IsADirectoryError as error:
        raise InputError("is a folder, not a file", "name the file in it", path=path) from error
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", path=path) from error


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal.

    Args:
      path: the file.

    Returns:
      64 hexadecimal digits.

    Raises:
      InputError: it cannot be read.
    """
    digest = hashlib.sha256()
    with open_input(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
