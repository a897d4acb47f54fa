"""What several of these tests do."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertaccum.config import PrepareConfig
from data_prep.preparation import PrepareResult, prepare

YELP_FOLDER = "yelp_review_polarity_csv"


def ignore(what: str, done: int, total: int | None) -> None:
    """A progress callback for tests that do not look at it."""


def words(texts: Iterable[str]) -> list[str]:
    """A vocabulary that tells which texts it was learned from."""
    return sorted({word for text in texts for word in text.split()})


def run(**options: Any) -> PrepareResult:
    """`prepare` with these options."""
    return prepare(PrepareConfig(**options), ignore, words)


def write_archive(path: Path, train: bytes, test: bytes, folder: str = YELP_FOLDER) -> Path:
    """An archive laid out as Yelp's."""
    with tarfile.open(path, "w:gz") as tar:
        for name, data in (("train.csv", train), ("test.csv", test)):
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def yelp_lines(rows: int, first: int = 0) -> bytes:
    """Lines of a Yelp file, of both classes, all different; numbered from `first`."""
    numbers = range(first, first + rows)
    return b"".join(b'"%d","Review %d said ""fine""."\n' % (i % 2 + 1, i) for i in numbers)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
