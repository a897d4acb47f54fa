"""Numbers of bytes: conversion from and to texts such as 4GiB, and cutting of arrays by size."""

from __future__ import annotations

import re
from collections.abc import Sequence

_DECIMAL_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_UNITS = _DECIMAL_UNITS | {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?)\s*([kmgt]i?|)b?", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """Return the number of bytes that a text such as `4GiB`, `3500MB` or `512m` means.

    `GiB` means 2**30 bytes; `GB` and `G` mean 10**9 bytes.

    Raises:
      ValueError: The text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError("is not a size such as 4GiB or 3500MB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def format_size(size_bytes: float) -> str:
    """Return a number of bytes as text: in GiB if it is at least 10 GiB, else in MiB."""
    mib = size_bytes / 2**20
    return f"{mib:,.0f} MiB" if mib < 10240 else f"{mib / 1024:,.1f} GiB"


def known_size(size_bytes: float | None) -> str:
    """Return a number of bytes as `format_size` does, or an empty string for 0 and None."""
    return format_size(size_bytes) if size_bytes else ""


def row_pieces(rows: int, row_bytes: int, max_bytes: int) -> list[slice]:
    """Return slices of the rows of an array, each of at most `max_bytes` bytes or of one row."""
    size = max(max_bytes // max(row_bytes, 1), 1)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def format_shapes(shapes: Sequence[Sequence[int]], real_share: float | None) -> str:
    """Return the shapes of compiled micro-batches as text; empty if there are none.

    Args:
      shapes: Rows and length of each shape.
    """
    if not shapes:
        return ""
    named = ", ".join(f"{rows} x {length}" for rows, length in shapes)
    return f"{named} tokens ({real_share:.0%} of the tokens are not padding)"
