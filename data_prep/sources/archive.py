"""Checks of a downloaded Yelp archive: its checksum and the format of its lines."""

from __future__ import annotations

import importlib.util
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from bertaccum.errors import ConfigError, InputError, RunError, reason
from bertaccum.system.files import check_unpacked, sha256
from data_prep.tables.text_files import LONGEST

DATASET = "yelp_polarity_reviews"
_MEMBERS = ("yelp_review_polarity_csv/train.csv", "yelp_review_polarity_csv/test.csv")
# The builder of tensorflow-datasets does not parse CSV: for each line, it takes `line[1]` as the
# label and `line[5:-2]` as the text.
_LINE = re.compile(rb'"[12]","(?:[^"\r]|"")*"\Z')


class Download(NamedTuple):
    """An entry in the checksum file of tensorflow-datasets."""

    url: str
    sha256: str
    filename: str


def recorded_download() -> Download:
    """Return the archive's URL, checksum and name as tensorflow-datasets records them."""
    package = importlib.util.find_spec("tensorflow_datasets")
    assert package is not None and package.origin is not None  # It is a required dependency.
    record = Path(package.origin).parent / "url_checksums" / f"{DATASET}.txt"
    url, _, digest, filename = record.read_text().splitlines()[0].split("\t")
    return Download(url, digest, filename)


def checked_sha256(archive: Path, allow_unverified: bool) -> str:
    """Return the SHA-256 of an archive, in hexadecimal.

    Raises:
      ConfigError: It differs from the recorded one, and `allow_unverified` is False.
    """
    digest, recorded = sha256(archive), recorded_download()
    if digest != recorded.sha256 and not allow_unverified:
        raise ConfigError(
            f"has the SHA-256 {digest}, but the original {recorded.filename} has {recorded.sha256}",
            "download it again, or pass `allow_unverified_archive` if you trust this file",
            path=archive,
        )
    return digest


def rewrite(archive: Path, target: Path) -> None:
    """Copy an unverified archive into an archive that the builder reads without losing text.

    The builder cuts the last two characters off every line, because it expects a double quote and a
    line feed. If the last line has no line feed, the builder cuts off a character of the text. It
    can also misread carriage returns, and it silently reads a wrong text from a line that is not of
    the form `"label","text"`.
    """
    try:
        with _Archive.open(archive) as source, tarfile.open(target, "w") as copy:
            members = {name: _member(source, name, archive) for name in _MEMBERS}
            check_unpacked(archive, sum(member.size for member in members.values()))
            assert source.fileobj is not None  # The archive is open.
            for name, member in members.items():
                file = source.extractfile(member)
                assert file is not None  # It is None only if the member is not a file.
                lines = _checked_lines(file, f"{archive}:{name}")
                _add_member(copy, name, lines, target.parent)
            # tarfile does not read the end of the compressed file, which contains its checksum.
            while source.fileobj.read(1 << 20):
                check_unpacked(archive, source.fileobj.tell())
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if getattr(error, "errno", None) is not None:  # Not a damaged archive.
            what = f"cannot be unpacked into {target.parent} ({reason(error)})"
            remedy = "free space there, or set TMPDIR to another folder"
            raise RunError(what, remedy, path=archive) from None
        what = f"cannot be unpacked ({error})"
        raise InputError(what, "download it again", path=archive) from error


def _add_member(archive: tarfile.TarFile, name: str, lines: Iterator[bytes], folder: Path) -> None:
    """Add a member to a tar file; write its lines to a temporary file in `folder` first."""
    # A tar member starts with its size, which is unknown until all lines are written.
    csv = folder / Path(name).name
    with csv.open("wb") as plain:
        plain.writelines(line + b"\n" for line in lines)
    archive.add(csv, name)
    csv.unlink()


class _Bounded:
    """An unpacked file whose `read` refuses to return more than the longest line has."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int) -> bytes:
        if size > LONGEST:
            raise tarfile.ReadError("a header is too large")
        return self._file.read(size)


class _Archive(tarfile.TarFile):
    """A tar file; tarfile itself reads a header of any size at once, such as a long name."""

    def __init__(self, name: Any, mode: Any, fileobj: Any = None, **options: Any) -> None:
        super().__init__(name, mode, fileobj and _Bounded(fileobj), **options)


def _member(source: tarfile.TarFile, name: str, path: Path) -> tarfile.TarInfo:
    for member in source.getmembers():
        if os.path.normpath(member.name) == name and member.isfile():
            return member
    raise InputError(f"contains no {name}", "pass the Yelp Polarity archive", path=path)


def _checked_lines(file: IO[bytes], where: str) -> Iterator[bytes]:
    row = 0
    for row, raw in enumerate(iter(partial(file.readline, LONGEST), b""), 1):
        if len(raw) == LONGEST:
            raise InputError(f"is longer than {LONGEST >> 20} MiB", path=where, row=row)
        line = raw.removesuffix(b"\n").removesuffix(b"\r")
        if not _LINE.match(line):
            what = 'is not of the form "1","text" or "2","text"'
            remedy = 'write a line break inside a text as \\n, and a double quote as ""'
            raise InputError(what, remedy, path=where, row=row)
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
