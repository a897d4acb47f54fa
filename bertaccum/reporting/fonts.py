"""Fonts for names with characters that matplotlib's own font lacks, such as Chinese ones."""

from __future__ import annotations

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

_OWN = "DejaVu Sans"
# This font draws a box with a description for every character.
_BOXES = "Last Resort"


def fonts_for(text: str) -> tuple[list[str], str]:
    """Return installed fonts that together have the characters of a text.

    Returns:
      The names of the fonts, matplotlib's own font first, and the characters that none of them has.
    """
    missing, families = set(text.replace(" ", "")), [_OWN]
    missing -= _characters(font_manager.findfont(_OWN))
    for font in font_manager.fontManager.ttflist:
        if not missing:
            break
        if font.style == "normal" and font.weight == 400 and not font.name.startswith(_BOXES):
            found = missing & _characters(font.fname)
            families += [font.name] * bool(found)
            missing -= found
    return families, "".join(sorted(missing))


def _characters(path: str) -> set[str]:
    """Return the characters of a font file; none if it cannot be read."""
    try:
        return set(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):
        return set()
