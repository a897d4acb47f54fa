"""Lines of a user's text file, with an error that names the row where it cannot be decoded."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path

from bertaccum.errors import InputError
from data_prep.streams import open_bytes

_UTF_8 = "utf-8"
# UTF-32 first: its mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SAVE_AS = "save it as UTF-8, or name its encoding with --encoding, such as latin-1"
# No text is longer; what is has no line ends, and would fill the memory.
LONGEST = 1 << 26


def text_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """Read a text file line by line.

    Only a line feed ends a line: `str.splitlines` and text mode would also cut
    at characters that stand inside texts.

    Args:
      path: the file; a leading byte order mark is skipped.
      encoding: Python's name of its encoding; by default UTF-8, or what a byte order mark says.

    Yields:
      (row, line): 1-based row, and the line with its end.

    Raises:
      InputError: the file is missing, unreadable, not text, or not in that encoding.
    """
    with open_bytes(path) as file:
        codec = encoding or _marked(file.peek()) or _UTF_8
        for row, line in _decoded(file, codec, path):
            yield row, line.removeprefix("\ufeff") if row == 1 else line


def marked_encoding(path: Path) -> str | None:
    """Return the encoding that a file's byte order mark says; None where UTF-8 is meant."""
    with open_bytes(path) as file:
        return _marked(file.peek())


def _marked(head: bytes) -> str | None:
    return next((name for mark, name in _MARKS if head.startswith(mark)), None)


def _decoded(file: BufferedReader, codec: str, path: Path) -> Iterator[tuple[int, str]]:
    """A chunk ends at a byte 0x0A, which in UTF-16 need not be the end of a line."""
    decoder, row, rest = codecs.getincrementaldecoder(codec)(), 1, ""
    for raw in iter(partial(file.readline, LONGEST), b""):
        if len(raw) == LONGEST:
            what = f"is longer than {LONGEST >> 20} MiB: it is not text in lines"
            raise InputError(what, path=path, row=row)
        if codec == _UTF_8:
            _check_zeros(raw, path, row)
        try:
            # Only the last chunk does not end so.
            rest += decoder.decode(raw, final=not raw.endswith(b"\n"))
        except UnicodeError as error:
            raise InputError(_undecodable(error, codec), _SAVE_AS, path=path, row=row) from error
        *lines, rest = rest.split("\n")
        for line in lines:
            if "\0" in line:
                raise InputError("holds NUL characters", _SAVE_AS, path=path, row=row)
            yield row, f"{line}\n"
            row += 1
    if rest:
        yield row, rest


def _check_zeros(raw: bytes, path: Path, row: int) -> None:
    if b"\0" not in raw:
        return
    share = len(raw) // 4
    for start, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        if raw[start::2].count(0) > share:
            what = "looks like UTF-16 without a byte order mark"
            raise InputError(what, f"pass --encoding {name}", path=path, row=row)
    raise InputError("holds NUL bytes: it is not text", path=path, row=row)


def _undecodable(error: UnicodeError, codec: str) -> str:
    name = codec.upper() if codec == _UTF_8 else codec
    if not isinstance(error, UnicodeDecodeError):
        return f"is not {name} ({error})"
    return f"byte {error.object[error.start]:#04x} at position {error.start + 1} is not {name}"
