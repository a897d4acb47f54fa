"""Labels that differ only in their spelling, such as `True` and `true`, and so are one class."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping

from bertaccum.system.phrases import listed

# Characters without a glyph. The tags U+E0020 to U+E007F are not among them, because they tell some
# flags apart.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb"
    "\U000e0100-\U000e01ef]"
)
# Those that no spelling needs. Persian words, emoji and others contain some of the rest.
_STRAY = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u2060\ufeff]")
_LARGEST = (2 - 2**-23) * 2.0**127  # The largest finite float32 number.
# A number whose thousands are separated, such as 1,234.5 or 1'000.
_GROUPED = re.compile(
    r"(?P<whole>[-+]?[1-9]\d{0,2}(?P<mark>[,.'\u2019 \u00a0\u202f_])\d{3}"
    r"(?P<more>(?:(?P=mark)\d{3})*))"
    r"(?P<rest>(?!(?P=mark))[.,]\d+)?",
    re.ASCII,
)
_MINUS = "\u2212"  # The minus sign of typeset tables.
# Returns the class that a label spells, or None.
Finder = Callable[[str], str | None]
# Labels that may stand for a missing value. MySQL and PostgreSQL write `\N`.
_MISSING = frozenset({"#n/a", "<na>", "\\n", "n/a", "na", "nan", "none", "null"})
_WHOLE = re.compile(r"\+?(-?(?:0|[1-9][0-9]*))(?:\.0+)?\Z")


def finite_number(text: str) -> float | None:
    """Return the number that a cell contains, or None if it is not a finite float32 number."""
    try:
        number = float(text.replace(_MINUS, "-"))
    except ValueError:
        return None
    # Python also accepts underscores between digits, which other programs do not write.
    return number if abs(number) <= _LARGEST and "_" not in text else None


def number_remedy(cell: str) -> str | None:
    """Return how to write the number that a cell such as `3,5` or `1.234,5` may contain."""
    cell = cell.strip().replace(_MINUS, "-")
    if match := _GROUPED.fullmatch(cell):
        whole = match["whole"].replace(match["mark"], "")
        if match["mark"] == "," and not match["more"] and not match["rest"]:
            decimal = match["whole"].replace(",", ".")
            return f"write it as {whole}, or as {decimal} if the comma is a decimal mark"
        return f"write it as {whole}{(match['rest'] or '').replace(',', '.')}"
    decimal = cell.replace(",", ".")
    if finite_number(decimal) is not None:
        return f"write a decimal point instead of the comma, as in {decimal}"
    return None


def flags_remedy(flags: int) -> str:
    """Return how to correct a cell in a column of 0 and 1 for each label; empty for no labels."""
    return f"write 0 or 1 for each of the {flags} labels" if flags else ""


def visible(label: str) -> str:
    """Return a label without invisible characters, and with one space between its words."""
    return " ".join(_INVISIBLE.sub("", label).split())


def is_missing(label: str) -> bool:
    """Return whether a label may stand for a missing value, such as `NaN`."""
    return label.casefold() in _MISSING


def has_stray(label: str) -> bool:
    """Return whether a label contains an invisible character that no spelling needs."""
    return bool(_STRAY.search(label))


def shown(label: str) -> str:
    r"""Return a label in quotes, in which escapes such as `\u200b` replace what cannot be seen.

    Labels that are not in the Unicode form NFC look like others, so they are escaped as a whole.
    """
    quoted = repr(label) if unicodedata.is_normalized("NFC", label) else ascii(label)
    return _INVISIBLE.sub(lambda match: ascii(match[0])[1:-1], quoted)


def merged(counts: Mapping[str, int]) -> dict[str, str]:
    """Map each label to the most frequent spelling of its class.

    Two labels are one class if they differ only in case, in invisible characters and spaces, or in
    their Unicode form, or if they are the same whole number, such as `1`, `1.0` and `+1`. Codes
    such as `01` and `1`, or chapters such as `1.1` and `1.10`, are different classes. Of spellings
    that are equally frequent, the name is one in the form NFC, without stray characters, and the
    shortest of them.
    """
    classes = dict[str, list[str]]()
    for label in sorted(counts):
        classes.setdefault(_key(label), []).append(label)

    def preference(label: str) -> tuple[int, bool, bool, int]:
        is_usual = unicodedata.is_normalized("NFC", label)
        return counts[label], is_usual, not has_stray(label), -len(label)

    names = {folded: max(labels, key=preference) for folded, labels in classes.items()}
    return {label: names[folded] for folded, labels in classes.items() for label in labels}


def class_finder(names: Iterable[str], as_written: bool = False) -> Finder:
    """Return a function that finds the class that a label spells, or None.

    It is the same spelling or, unless `as_written`, the only class with another spelling of it.
    """
    exact, classes = set(names), dict[str, list[str]]()
    for name in exact:
        classes.setdefault(_key(name), []).append(name)

    def find(label: str) -> str | None:
        if label in exact:
            return label
        found = [] if as_written else classes.get(_key(label), [])
        return found[0] if len(found) == 1 else None

    return find


def spelled_classes(labels: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Map each label to the one of the classes `names` that it spells, or to itself."""
    find = class_finder(names)
    return {label: find(label) or label for label in labels}


def respelled(classes: Mapping[str, str]) -> str:
    """Return which labels are other spellings of their class, such as `'1.0' as '1'`, or ''."""
    others = [(label, name) for label, name in sorted(classes.items()) if label != name]
    return listed([f"{shown(label)} as {shown(name)}" for label, name in others])


def _key(label: str) -> str:
    """Return a text that is equal for different spellings of a label."""
    plain = visible(label).replace(_MINUS, "-")
    whole = _WHOLE.match(plain)
    return whole[1] if whole else unicodedata.normalize("NFC", plain.casefold())
