"""Helpers for the tests of data preparation."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertaccum.options.prepare import PrepareConfig
from bertaccum.system.progress import Note, ignore_note
from data_prep.preparation import PrepareResult, prepare

YELP_FOLDER = "yelp_review_polarity_csv"


def ignore(what: str, done: int, total: int | None) -> None:
    """Ignore progress: a callback for tests that do not check it."""


def words(texts: Iterable[str]) -> list[str]:
    """Return the words of the texts as a vocabulary that shows which texts it comes from."""
    return sorted({word for text in texts for word in text.split()})


def run(note: Note = ignore_note, **options: Any) -> PrepareResult:
    """Run `prepare` with these options."""
    return prepare(PrepareConfig(**options), ignore, words, note)


def write_archive(path: Path, train: bytes, test: bytes, folder: str = YELP_FOLDER) -> Path:
    """Write an archive with the layout of Yelp Polarity."""
    with tarfile.open(path, "w:gz") as tar:
        for name, data in (("train.csv", train), ("test.csv", test)):
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def yelp_lines(rows: int, first: int = 0) -> bytes:
    """Return different lines of a Yelp file, alternating in class and numbered from `first`."""
    numbers = range(first, first + rows)
    return b"".join(b'"%d","Review %d said ""fine""."\n' % (i % 2 + 1, i) for i in numbers)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of each file in a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
