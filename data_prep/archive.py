"""An already downloaded Yelp archive: is it the recorded one, and can the builder read it?"""

from __future__ import annotations

import importlib.util
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from bertaccum.errors import ConfigError, InputError
from bertaccum.files import sha256

DATASET = "yelp_polarity_reviews"
_MEMBERS = ("yelp_review_polarity_csv/train.csv", "yelp_review_polarity_csv/test.csv")
# The builder takes characters 5 to -2 of each line for the text and character 1
# for the label, whatever stands there.
_LINE = re.compile(rb'"[12]","(?:[^"\r]|"")*"\Z')


class Download(NamedTuple):
    """The one line that tensorflow-datasets records about the archive."""

    url: str
    size: int
    sha256: str
    filename: str


def recorded_download() -> Download:
    """Reads tensorflow-datasets' record of the archive, without importing it.

    Returns:
      Where the archive is downloaded from, and what it must be.
    """
    package = importlib.util.find_spec("tensorflow_datasets")
    assert package is not None and package.origin is not None  # a dependency of ours
    record = Path(package.origin).parent / "url_checksums" / f"{DATASET}.txt"
    url, size, digest, filename = record.read_text().splitlines()[0].split("\t")
    return Download(url, int(size), digest, filename)


def checked_sha256(archive: Path, allow_unverified: bool) -> str:
    """The archive's checksum, if the archive may be used.

    Args:
      archive: the user's file.
      allow_unverified: whether another checksum than the recorded one will do.

    Returns:
      Its SHA-256, in hexadecimal.

    Raises:
      InputError: the file cannot be read.
      ConfigError: it is not the recorded archive, and that is not allowed.
    """
    found, recorded = sha256(archive), recorded_download()
    if found != recorded.sha256 and not allow_unverified:
        raise ConfigError(
            f"its SHA-256 is {found}, but {recorded.filename} has {recorded.sha256}",
            "download it again, or add `allow_unverified_archive` if you trust this file",
            path=archive,
        )
    return found


def rewrite(archive: Path, target: Path) -> None:
    """Copies an unverified archive into one that the builder reads without losing text.

    The builder cuts two characters off every line: the quote and the line feed.
    So a last line without line feed, or carriage returns, would cost a
    character; anything but `"label","text"` would give wrong texts without a word.

    Args:
      archive: the user's file, left alone.
      target: the tar file to write, uncompressed.

    Raises:
      InputError: it is no such archive, or one of its lines is not a review.
    """
    try:
        with tarfile.open(archive) as source, tarfile.open(target, "w") as copy:
            for name in _MEMBERS:
                lines = _checked_lines(_open_member(source, name, archive), f"{archive}:{name}")
                _add_member(copy, name, lines, target.parent)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(
            f"cannot be unpacked ({error})", "download it again", path=archive
        ) from error


def _add_member(archive: tarfile.TarFile, name: str, lines: Iterator[bytes], folder: Path) -> None:
    """A member starts with its size, so its lines go through a file in `folder`."""
    csv = folder / Path(name).name
    with csv.open("wb") as plain:
        plain.writelines(line + b"\n" for line in lines)
    archive.add(csv, name)
    csv.unlink()


def _open_member(source: tarfile.TarFile, name: str, path: Path) -> IO[bytes]:
    for member in source.getmembers():
        if os.path.normpath(member.name) == name and member.isfile():
            file = source.extractfile(member)
            assert file is not None  # isfile
            return file
    raise InputError(f"holds no {name}", "name the archive of Yelp Polarity reviews", path=path)


def _checked_lines(file: IO[bytes], where: str) -> Iterator[bytes]:
    row = 0
    for row, raw in enumerate(file, 1):
        line = raw.removesuffix(b"\n").removesuffix(b"\r")
        if not _LINE.match(line):
            raise InputError(
                'is not a line "1","text" or "2","text"',
                'write line ends inside a text as \\n, and double quotes as ""',
                path=where,
                row=row,
            )
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"byte {line[error.start]:#04x} at position {error.start + 1} is not UTF-8",
                "save it as UTF-8 text",
                path=where,
                row=row,
            ) from error
        yield line
    if not row:
        raise InputError("has no rows", path=where)
