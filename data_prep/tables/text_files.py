"""Reads users' text files line by line, also from gzip and zip files; errors name the row."""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, cast

from bertaccum.errors import InputError
from bertaccum.system.files import check_unpacked, open_input
from bertaccum.system.phrases import listed

_UTF_8 = "utf-8"
# UTF-32 comes first because its byte order mark starts with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Files with these endings are always tables; other files may contain one text per line.
TABLE_ENDINGS = frozenset({".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".json", ".parquet"})
_SAVE_AS = "save it as UTF-8, or pass its encoding with `encoding`"
# Control characters of ISO 8859. In their place, Windows has quotes, dashes and the euro sign.
_CONTROLS, _OF_WINDOWS = re.compile("[\x80-\x9f]"), "cp1252"
# Bytes in the longest line that is read: a file without line ends must not fill the memory.
LONGEST = 1 << 26
HAS_RETURN = "contains a carriage return in the middle of a line"


def text_lines(path: Path | zipfile.Path, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """Read a text file line by line.

    Only a line feed ends a line, or a carriage return in a file without line feeds, as old programs
    for the Macintosh write it. `str.splitlines` and text mode would also split at other characters,
    which can be part of a text.

    Args:
      path: The file, also one in a zip archive. Byte order marks at the beginning of each line are
        skipped, because they are inside a file if several files were concatenated.

    Yields:
      (row, line): The row, counted from 1, and the line with its line ending.
    """
    with open_bytes(path) as file:
        codec = encoding or _marked(file.peek()) or _UTF_8
        is_iso = codecs.lookup(codec).name.startswith("iso8859-")
        for row, line in _decoded(file, codec, Path(str(path))):
            if is_iso and (found := _CONTROLS.search(line)):
                control = f"contains the control character U+{ord(found[0]):04X}"
                what = f"{control}, so its encoding is probably {_OF_WINDOWS}"
                remedy = f"pass `encoding` {_OF_WINDOWS}"
                raise InputError(what, remedy, path=Path(str(path)), row=row)
            yield row, line.lstrip("\ufeff")


def marked_encoding(path: Path) -> str | None:
    """Return the encoding given by a file's UTF-16 or UTF-32 byte order mark, or None."""
    with open_bytes(path) as file:
        return _marked(file.peek())


def _marked(head: bytes) -> str | None:
    return next((name for mark, name in _MARKS if head.startswith(mark)), None)


def _decoded(file: BufferedReader, codec: str, path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line."""
    # The file is read in chunks that end with the byte 0x0A. In UTF-16 this byte can also be half
    # of another character, so lines are split after decoding.
    decoder, row, rest, end = codecs.getincrementaldecoder(codec)(), 1, "", "\n"
    for raw in iter(partial(file.readline, LONGEST), b""):
        has_end, is_long = raw.endswith(b"\n"), len(raw) == LONGEST
        if codec == _UTF_8:
            _check_zeros(raw, path, row)
        try:
            # Only the last chunk has no line feed at its end, unless a chunk is too long.
            rest += decoder.decode(raw, final=not has_end and not is_long)
        except UnicodeError as error:
            raise InputError(*_undecodable(error, codec), path=path, row=row) from error
        if row == 1 and not has_end and "\n" not in rest and "\r" in rest:
            end = "\r"
        *lines, rest = rest.split(end)
        if is_long and not lines:
            what = f"is longer than {LONGEST >> 20} MiB, so the file is not lines of text"
            raise InputError(what, path=path, row=row)
        for line in lines:
            if "\0" in line:
                raise InputError("contains NUL characters", _SAVE_AS, path=path, row=row)
            yield row, f"{line}\n"
            row += 1
    if rest:
        if "\0" in rest:
            raise InputError("contains NUL characters", _SAVE_AS, path=path, row=row)
        yield row, rest


def _check_zeros(raw: bytes, path: Path, row: int) -> None:
    if b"\0" not in raw:
        return
    share = len(raw) // 4
    for start, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        if raw[start::2].count(0) > share:
            what = "looks like UTF-16 without a byte order mark"
            raise InputError(what, f"pass `encoding` {name}", path=path, row=row)
    raise InputError("contains NUL bytes, so it is not text", path=path, row=row)


def _undecodable(error: UnicodeError, codec: str) -> tuple[str, str]:
    """Return what is wrong and what to do."""
    if not isinstance(error, UnicodeDecodeError):
        return f"is not {codec} ({error})", _SAVE_AS
    byte, name, remedy = error.object[error.start], codec, _SAVE_AS
    if codec == _UTF_8:
        name = codec.upper()
        remedy += f", such as {_OF_WINDOWS if 0x80 <= byte <= 0x9F else 'latin-1'}"
    return f"byte {byte:#04x} at position {error.start + 1} is not {name}", remedy


_PARQUET = b"PAR1"
_GZIP, _ZIP, _TAR_AT, _TAR = b"\x1f\x8b", b"PK\x03\x04", 257, b"ustar"
_TO_CSV = "save the table as CSV"
_UNPACK = "unpack it and pass the table inside"
_AGAIN = "create or download it again"
# First bytes of file formats other than text, each with an error message and a hint.
_KINDS = (
    (_PARQUET, "is a Parquet file inside another file", _UNPACK),
    (_GZIP, "is compressed twice", _UNPACK),
    (_ZIP, "is a zip archive inside another file", _UNPACK),
    (b"BZh", "is bzip2-compressed", _UNPACK),
    (b"\xfd7zXZ\0", "is xz-compressed", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "is zstd-compressed", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "is a 7-Zip archive", _UNPACK),
    (b"Rar!", "is a RAR archive", _UNPACK),
    (b"\xd0\xcf\x11\xe0", "is an old Excel workbook or another Office document", _TO_CSV),
    (b"%PDF", "is a PDF document", _TO_CSV),
    (b"SQLite format 3\0", "is an SQLite database", _TO_CSV),
    (b"ARROW1", "is an Arrow (Feather) file", "save it as Parquet or CSV"),
    (b"\x89HDF", "is an HDF5 file", _TO_CSV),
    (b"\x93NUMPY", "is a NumPy array", _TO_CSV),
)
_OFFICE = {
    "xl/": "an Excel workbook",
    "word/": "a Word document",
    "content.xml": "an OpenDocument file",
}
_NAMED_MEMBERS = 3
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile)
_PACKED = frozenset({".gz", ".zip"})


@contextmanager
def open_bytes(path: Path | zipfile.Path) -> Iterator[io.BufferedReader]:
    """Open a text file, or a gzip or zip file that contains one text file.

    Compressed contents are unpacked while they are read, so they are never in memory as a whole.
    """
    name = Path(str(path))
    with open_input(path) if isinstance(path, Path) else nullcontext() as file:
        try:
            try:
                if isinstance(path, Path):
                    unpacked = _unpacked(cast(io.BufferedReader, file), path)
                else:
                    unpacked = _unpacked_member(path)
            except UnicodeDecodeError as error:  # The name before a file is not UTF-8.
                raise zipfile.BadZipFile(str(error)) from error
            _check_kind(unpacked.peek(), name)
            yield unpacked
        except _DAMAGED as error:
            raise InputError(f"is damaged ({error})", _AGAIN, path=name) from error
        except (RuntimeError, NotImplementedError) as error:  # Encrypted, or unknown compression.
            raise InputError(f"cannot be unpacked ({error})", _UNPACK, path=name) from error


def is_parquet(path: Path) -> bool:
    """Return whether the first bytes of a file are those of Parquet."""
    with open_input(path) as file:
        return file.read(len(_PARQUET)) == _PARQUET


def ending(path: Path | zipfile.Path) -> str:
    """Return the ending of a file's name in lower case, such as `.csv`.

    `.gz` is ignored, and for a zip file the name of the file inside counts.
    """
    name = Path(str(path))
    if isinstance(path, Path) and path.suffix.lower() in _PACKED:
        name = Path(path.stem)
        with open_input(path) as file:
            if file.read(len(_ZIP)) == _ZIP:
                name = Path(_only_member(file, path)[1])
    elif name.suffix.lower() == ".gz":
        name = Path(name.stem)
    return name.suffix.lower()


class _Unpacked(io.RawIOBase):
    """The contents of a compressed file, which must not be far larger than the file."""

    def __init__(self, contents: gzip.GzipFile | IO[bytes], path: Path) -> None:
        self._contents, self._path, self._read = contents, path, 0
        self._is_file = path.is_file()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self._contents.read(len(buffer))
        buffer[: len(read)] = read
        self._read += len(read)
        if self._is_file:
            check_unpacked(self._path, self._read)
        return len(read)


def _unpacked(file: io.BufferedReader, path: Path) -> io.BufferedReader:
    head = file.peek()
    if head.startswith(_GZIP):
        return io.BufferedReader(_Unpacked(gzip.GzipFile(fileobj=file), path))
    if head.startswith(_ZIP):
        archive, name = _only_member(file, path)
        return io.BufferedReader(_Unpacked(archive.open(name), path))
    if head.startswith(_PARQUET):
        what = "is a Parquet file, not text"
        raise InputError(what, "save it as CSV, or as a file with one text per line", path=path)
    if path.suffix.lower() == ".zip":
        raise InputError("is not a zip archive, despite its name", _AGAIN, path=path)
    return file


def _unpacked_member(path: zipfile.Path) -> io.BufferedReader:
    member: io.BufferedReader = io.BufferedReader(cast(io.RawIOBase, path.open("rb")))
    if not member.peek().startswith(_GZIP):
        return member
    contents, archive = gzip.GzipFile(fileobj=member), Path(str(path.root.filename))
    return io.BufferedReader(_Unpacked(contents, archive))


def zip_members(path: Path) -> tuple[zipfile.ZipFile | None, list[str]]:
    """Return the zip archive at a path and the names of its files; None if it is another file."""
    if not path.is_file():
        return None, []
    with open_input(path) as file:
        if file.read(len(_ZIP)) != _ZIP:
            return None, []
    return _members(path, path)


def _members(file: Path | IO[bytes], path: Path) -> tuple[zipfile.ZipFile, list[str]]:
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise InputError(f"is a damaged zip archive ({error})", path=path) from error
    for member in archive.infolist():
        # Some programs for Windows write backslashes, against the standard.
        member.filename = member.filename.replace("\\", "/")
        archive.NameToInfo[member.filename] = member
    names = [name for name in archive.namelist() if not name.endswith("/")]
    for part, what in _OFFICE.items():
        if any(name.startswith(part) for name in names):
            raise InputError(f"is {what}", _TO_CSV, path=path)
    return archive, [
        name for name in names if not name.startswith("__MACOSX/") and Path(name).name[:1] != "."
    ]


def _only_member(file: IO[bytes], path: Path) -> tuple[zipfile.ZipFile, str]:
    if not file.seekable():
        raise InputError("is a zip archive, which cannot be read from a pipe", _UNPACK, path=path)
    archive, names = _members(file, path)
    if not names:
        raise InputError("is a zip archive without any file", path=path)
    if len(names) > 1:
        message = f"is a zip archive of {len(names)} files ({listed(names, _NAMED_MEMBERS)})"
        raise InputError(message, "unpack it and pass one of them", path=path)
    return archive, names[0]


def _check_kind(head: bytes, path: Path) -> None:
    for start, what, remedy in _KINDS:
        if head.startswith(start):
            raise InputError(what, remedy, path=path)
    if head[_TAR_AT:].startswith(_TAR):
        raise InputError("is a tar archive", "unpack it and pass the file or folder", path=path)
