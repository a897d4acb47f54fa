"""Texts that are safe to print: no character of a name or text can control the terminal."""

from __future__ import annotations

import re

# C0 and C1 control characters, the line and paragraph separators, and the characters that change
# the direction of the text after them.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str, kept: str = "") -> str:
    r"""Return a text in which escapes such as `\x1b` replace characters that control a terminal.

    Args:
      kept: Control characters to keep, such as a line break.
    """
    return _CONTROLS.sub(lambda match: match[0] if match[0] in kept else _escape(match[0]), text)


def printable_json(text: str) -> str:
    """Return the same JSON value, with its control characters written as escapes of JSON."""
    return _CONTROLS.sub(
        lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
