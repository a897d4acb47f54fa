"""Entities in sequences of tags, such as `B-PER I-PER O`, and the schemes of such tags.

A tag is `O`, or a prefix and a type. BIO marks the first word of each entity with B, IOB1 only that
of an entity which follows another one of its type. BIOES and BILOU also mark the last word and
single words, with other letters. Tags without prefixes, such as parts of speech, have no scheme.

Sources: Ramshaw and Marcus 1995; Tjong Kim Sang and Veenstra 1999, for the schemes; the script
`conlleval` of CoNLL-2000 and seqeval 1.2.2, for the entities in sequences that a scheme forbids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from bertaccum.system.phrases import listed
from data_prep.tables.words import OUTSIDE

BIO, IOB1, BIOES, BILOU = "BIO", "IOB1", "BIOES", "BILOU"
_PREFIXES = {BIO: "BI", IOB1: "BI", BIOES: "BIES", BILOU: "BILU"}
_KNOWN = frozenset("BIESLU")
# Letters of other schemes that mean E and S.
_AS_BIOES = {"L": "E", "U": "S"}


class Entity(NamedTuple):
    """The words from `start` to before `end`, counted from 0."""

    type: str
    start: int
    end: int


def split_tag(tag: str) -> tuple[str, str]:
    """Return the prefix and the type of a tag of a scheme; `O` has no type."""
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def find_scheme(sequences: Collection[Sequence[str]]) -> str | None:
    """Return the scheme of the tags of a data set; None if they have no scheme."""
    tags = {tag for sequence in sequences for tag in sequence} - {OUTSIDE}
    prefixes = set(map(_prefix, tags))
    for scheme, ending in ((BIOES, "ES"), (BILOU, "LU")):
        if prefixes & {*ending} and prefixes <= {*_PREFIXES[scheme]}:
            return scheme
    if not prefixes or not prefixes <= {"B", "I"}:
        return None
    forbidden = {scheme: sum(_forbidden(sequences, scheme)) for scheme in (BIO, IOB1)}
    return min(forbidden, key=lambda scheme: forbidden[scheme])


def why_no_scheme(tags: Collection[str]) -> str | None:
    """Return why tags have no scheme, if it seems that they should have one."""
    prefixes = {tag: _prefix(tag) for tag in tags if tag != OUTSIDE}
    others = [tag for tag, prefix in prefixes.items() if prefix not in _KNOWN]
    if not prefixes:
        return None
    if len(others) <= len(prefixes) / 2:
        if others:
            return f"these tags have no prefix and type, as in B-PER: {listed(others)}"
        return f"they mix the prefixes {', '.join(sorted({*prefixes.values()}))}"
    if _KNOWN.issuperset(others):
        return "they have no type, as in B-PER"
    alike = [tag for tag in others if _prefix(tag[:1].upper() + "-" + tag[2:]) in _KNOWN]
    if alike := [tag for tag in alike if tag[1:2] in ("-", "_")]:
        return f"a prefix is a capital letter before a hyphen, unlike in {listed(alike)}"
    return "they are numbers; `tag_names` names them" if all(map(str.isdecimal, tags)) else None


def _prefix(tag: str) -> str:
    """Return the letter before the hyphen and the type of a tag, or an empty string."""
    return tag[0] if tag[1:2] == "-" and tag[2:] else ""


def forbidden_tags(tags: Sequence[str], scheme: str) -> int:
    """Return the number of words whose tag the scheme forbids after the tag before it."""
    return sum(_forbidden([tags], scheme))


def _forbidden(sequences: Iterable[Sequence[str]], scheme: str) -> Iterator[bool]:
    for tags in sequences:
        before, kind = OUTSIDE, ""
        for tag in (*tags, OUTSIDE):
            prefix, own = split_tag(tag)
            prefix, inside = _AS_BIOES.get(prefix, prefix), before in ("B", "I") and kind == own
            if scheme == BIO:
                yield prefix == "I" and not inside
            elif scheme == IOB1:
                yield prefix == "B" and not inside
            else:
                # An open entity must go on, and only an open one can.
                yield (before in ("B", "I")) != (prefix in ("I", "E")) or (
                    prefix in ("I", "E") and not inside
                )
            before, kind = prefix, own


def entities(tags: Sequence[str], scheme: str, strict: bool = False) -> list[Entity]:
    """Return the entities in the tags of a sentence.

    Args:
      strict: Whether only the entities count whose tags all follow the scheme. If not, an entity
        starts wherever a prefix or another type lets it, as in conlleval.
    """
    if strict:
        return _strict([_parts(tag) for tag in tags], scheme)
    found, start, before = list[Entity](), 0, OUTSIDE
    for position, tag in enumerate([*tags, OUTSIDE]):
        if ends_before(before, tag):
            found.append(Entity(split_tag(before)[1], start, position))
        if begins_at(before, tag):
            start = position
        before = tag
    return found


def ends_before(before: str, tag: str) -> bool:
    """Return whether an entity ends between the words with two tags."""
    (first, kind), (second, own) = _parts(before), _parts(tag)
    return first != OUTSIDE and (kind != own or first in "ES" or second in "BSO")


def begins_at(before: str, tag: str) -> bool:
    """Return whether an entity begins at a word, given the tag of the word before it."""
    return tag != OUTSIDE and (before == OUTSIDE or ends_before(before, tag))


def _parts(tag: str) -> tuple[str, str]:
    """Return the prefix and the type of a tag, with the prefixes of BIOES."""
    prefix, kind = split_tag(tag)
    return _AS_BIOES.get(prefix, prefix), kind


# For each scheme, the letters before and of a word that start, continue and end an entity, and
# whether both have the same type (None: either). BILOU has become BIOES.
_Rules = tuple[tuple[str, str, bool | None], ...]
_ANY = "OBIES"
_OF_ENDS: tuple[_Rules, _Rules, _Rules] = (
    ((_ANY, "BS", None),),
    (("BI", "IE", True),),
    (("ES", _ANY, None),),
)
_RULES: dict[str, tuple[_Rules, _Rules, _Rules]] = {
    BIO: (((_ANY, "B", None),), (("BI", "I", True),), (("BI", _ANY, None),)),
    IOB1: (
        (("OB", "I", None), ("I", "I", False), ("BI", "B", True)),
        (("BI", "I", True),),
        (("I", "OB", None), ("BI", "I", False), ("B", "O", None), ("B", "B", True)),
    ),
    BIOES: _OF_ENDS,
    BILOU: _OF_ENDS,
}


def _strict(parts: list[tuple[str, str]], scheme: str) -> list[Entity]:
    starts, continues, ends = _RULES[scheme]
    outside, found, at = (OUTSIDE, ""), list[Entity](), 0
    parts = [*parts, outside]
    while at < len(parts):
        start, before = at, parts[at - 1] if at else outside
        at += 1
        if _matches(starts, before, parts[start]):
            while at < len(parts) and _matches(continues, parts[at - 1], parts[at]):
                at += 1
            if at < len(parts) and _matches(ends, parts[at - 1], parts[at]):
                found.append(Entity(parts[start][1], start, at))
    return found


def _matches(rules: _Rules, before: tuple[str, str], now: tuple[str, str]) -> bool:
    same = before[1] == now[1]
    return any(
        before[0] in first and now[0] in second and wanted in (None, same)
        for first, second, wanted in rules
    )
