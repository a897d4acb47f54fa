"""What a source of labelled texts hands over, whichever it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Example(NamedTuple):
    """One labelled text as its source spells it.

    Args:
      row: 1-based row of the file or stream it comes from, for messages.
      label: the class as the source names it, stripped, never empty.
      text: not cleaned yet.
    """

    row: int
    label: str
    text: str


@dataclass(frozen=True)
class Part:
    """The rows of one file or split, read once.

    Args:
      where: the file or data set, for messages.
      examples: the rows, in the source's order.
      total: how many there are, when that is known before reading.
    """

    where: str | Path
    examples: Iterable[Example]
    total: int | None = None


@dataclass(frozen=True)
class Source:
    """Everything there is to prepare.

    Args:
      description: what the texts are, for the manifest.
      train: the rows that train.tsv and dev.tsv share.
      test: the rows of test.tsv, if there are any.
      names: readable class names by source label, where those differ.
    """

    description: str
    train: Part
    test: Part | None
    names: Mapping[str, str] = field(default_factory=dict)
