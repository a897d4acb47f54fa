"""Text that survives a reader which splits on line ends and tabs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bertaccum.errors import InputError

# Everything that ends a line for some reader (`str.splitlines` is the broadest),
# separates fields or ends a C string; and surrogates, which UTF-8 cannot hold.
_BREAKS = re.compile(r"[\x00\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]")


def clean(text: str) -> str:
    """Puts a space for every character that a line, tab or UTF-8 reader would trip over.

    Args:
      text: any text.

    Returns:
      Text of the same length; cleaning it again changes nothing.
    """
    return _BREAKS.sub(" ", text)


_SURROGATES = re.compile("[\ud800-\udfff]")  # UTF-8 cannot hold them, but JSON can write them.


def cell(value: Any, name: str, path: Path, row: int) -> str:
    """Return a value as CSV would hold it; JSON's null is empty.

    Raises:
      InputError: it is a list, an object or bytes.
    """
    if isinstance(value, str):
        return _SURROGATES.sub(" ", value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    what = f"{name!r} is a {type(value).__name__}, not text"
    raise InputError(what, "write text, or a number for a class", path=path, row=row)
