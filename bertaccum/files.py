"""Reading what the user named, and writing files that are whole or not there.

Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bertaccum.errors import InputError


@contextmanager
def open_input(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that the user named.

    Yields:
      The open binary file.

    Raises:
      InputError: it is missing, a folder, or cannot be opened or read.
    """
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise InputError("there is no such file", "check the path", path=path) from error
    except IsADirectoryError as error:
        raise InputError("is a folder, not a file", "name the file in it", path=path) from error
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", path=path) from error


def read_text(path: Path) -> str:
    """The text of a UTF-8 file that the user named.

    Raises:
      InputError: it cannot be read, or a row of it is not UTF-8.
    """
    with open_input(path) as file:
        raw = file.read()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = raw[: error.start].count(b"\n") + 1
        raise InputError("is not UTF-8", "save it as UTF-8 text", path=path, row=row) from error


def read_mapping(path: Path) -> dict[str, Any] | None:
    """What a JSON file of ours holds; None if it is not there, or damaged."""
    try:
        values = json.loads(read_text(path))
    except (InputError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def write_text(path: Path, text: str) -> None:
    """Writes `path`, in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, contents: bytes) -> None:
    """Writes `path` so that a reader, or a crash, sees the old contents or the new, never half."""
    with new_file(path) as file:
        file.write(contents)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which then appears as `path`, whole, or not at all.

    Raises:
      OSError: it cannot be made, or put there.
    """
    temporary = beside(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Has the system put a file, or the names in a folder, on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write to, which then appears as `path`, whole, or not at all.

    Raises:
      OSError: it cannot be made, or put there.
    """
    temporary = beside(path)
    try:
        temporary.mkdir()
        yield temporary
        put_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put_folder(written: Path, path: Path) -> None:
    """Puts a finished folder where another one may be.

    Two folders cannot change places in one step: a crash in between leaves the old one where
    `standing` finds it.
    """
    for part in [*written.rglob("*"), written]:
        sync(part)
    old = _old(path)
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    try:
        written.rename(path)
    except OSError:
        if old.exists():
            old.rename(path)
        raise
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def standing(path: Path) -> Path:
    """Where a folder is that `put_folder` puts: elsewhere, if a crash cut that short."""
    return path if path.exists() or not _old(path).exists() else _old(path)


def settle(path: Path) -> None:
    """Undoes a `put_folder` that a crash cut short; for who alone writes there."""
    old = _old(path)
    if not path.exists() and old.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Removes what a process that was killed has left under the names of `beside`."""
    for path in folder.glob(".*-*"):
        if not re.fullmatch(r"\..+-[0-9a-f]{12}", path.name):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}-old")


def json_text(values: dict[str, Any], indent: int | None = 2) -> str:
    """A record as JSON with a line end; null for NaN and infinity, which JSON does not know."""
    return json.dumps(finite(values), indent=indent, ensure_ascii=False) + "\n"


def finite(value: Any) -> Any:
    """The same, with None for each number in it that is none, or infinite."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def beside(path: Path) -> Path:
    """A name that nobody else uses, for what will be renamed to `path`.

    Unlike those of `tempfile`, what is made under it gets the user's usual permissions.
    """
    return path.with_name(f".{path.name}-{secrets.token_hex(6)}")


def sha256(path: Path) -> str:
    """The SHA-256 of a file's contents, in hexadecimal.

    Raises:
      InputError: it cannot be read.
    """
    digest = hashlib.sha256()
    with open_input(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
