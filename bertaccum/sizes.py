"""Amounts of memory as people write them. Standard library only."""

from __future__ import annotations

import re

_DECIMAL_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_UNITS = _DECIMAL_UNITS | {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """`4GiB`, `3500MB`, `512m` as bytes: `GiB` is 2**30, `GB` and `G` are 10**9.

    Raises:
      ValueError: that is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise ValueError("is not a size such as 4GiB or 3500MB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def format_size(size_bytes: float) -> str:
    """Bytes in MiB, or from 10 GiB on in GiB."""
    mib = size_bytes / 2**20
    return f"{mib:,.0f} MiB" if mib < 10240 else f"{mib / 1024:,.1f} GiB"


def known_size(size_bytes: float | None) -> str:
    """The same; nothing if it is 0 or not known."""
    return format_size(size_bytes) if size_bytes else ""
