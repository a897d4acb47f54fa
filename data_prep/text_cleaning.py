"""Text that survives a reader which splits on line ends and tabs."""

from __future__ import annotations

import re

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
