"""Atomic writing of files and folders, which appear complete or not at all, even after a crash.

Data is written under a temporary name next to the final one, and renamed when complete. This module
imports only the standard library.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from bertaccum.errors import RunError

# `new_files` renames its marker to this suffix while it replaces files. A folder with this name but
# no marker was interrupted at that moment.
REPLACED_SUFFIX = ".replaced"


def beside(path: Path) -> Path:
    """Return an unused temporary name next to `path`, to be renamed to `path`.

    Unlike files of `tempfile`, files with this name get the usual permissions of the user.
    """
    return path.with_name(f".{path.name}-{secrets.token_hex(6)}")


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, contents: bytes) -> None:
    """Write a file atomically: readers see its old or new contents, even after a crash."""
    with new_file(path) as file:
        file.write(contents)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to, and rename it to `path` when complete.

    Raises:
      OSError: The file cannot be created or renamed.
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


@contextmanager
def new_folder(path: Path, existing: str = "replace") -> Iterator[Path]:
    """Yield a folder to write to, and rename it to `path` when complete.

    Args:
      path: The final folder, whose parent must exist.
      existing: The handling of a folder that already exists at the end: `replace` it, `keep` it
        and drop the new one, or `refuse`, which raises.

    Raises:
      OSError: The folder cannot be created or renamed.
    """
    temporary = beside(path)
    try:
        temporary.mkdir()
        yield temporary
        for part in [*temporary.rglob("*"), temporary]:
            sync(part)
        if existing == "replace":
            _put_folder(temporary, path)
        elif existing == "refuse" or not path.exists():
            temporary.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put_folder(written: Path, path: Path) -> None:
    """Rename a complete folder to `path`, replacing an existing folder.

    Two folders cannot be swapped in one step. After a crash in between, `standing` finds the old
    folder.
    """
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
    shutil.rmtree(old, ignore_errors=True)


def standing(path: Path) -> Path:
    """Return the current path of a folder of `new_folder`; a crash may have left it elsewhere."""
    return path if path.exists() or not _old(path).exists() else _old(path)


def settle(path: Path) -> None:
    """Restore the old folder after a crash in `new_folder`; no other process may write there."""
    old = _old(path)
    if not path.exists() and old.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files and folders that a killed process left under names of `beside`."""
    for path in folder.glob(".*-*"):
        if not re.fullmatch(r"\..+-[0-9a-f]{12}", path.name):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}-old")


@contextmanager
def new_files(folder: Path, marker: str, replaced: Iterable[str]) -> Iterator[Path]:
    """Yield a folder to write to, and move its files into `folder` when complete.

    If `folder` does not exist, it appears with one rename. Otherwise only files of the same names
    and those in `replaced` are changed. The marker is absent during the change, so its presence
    means that the set of files is complete.

    Args:
      folder: The final folder; other files in it stay.
      marker: The name of the file whose presence means that the others are complete.
      replaced: The names of files of an earlier run, to be removed or replaced.

    Raises:
      RunError: A file cannot be written.
    """
    folder = folder.resolve()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.exists():
            with new_folder(folder) as temporary:
                yield temporary
            return
        temporary = beside(folder)
        temporary.mkdir()
        try:
            yield temporary
            for path in [*temporary.iterdir(), temporary]:
                sync(path)
            _replace(temporary, folder, marker, replaced)
            sync(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise RunError(
            f"cannot be written ({error.strerror or error})",
            "check the permissions and the free space",
            path=folder,
        ) from error


def _replace(temporary: Path, folder: Path, marker: str, replaced: Iterable[str]) -> None:
    names = {path.name for path in temporary.iterdir()} - {marker}
    away = folder / f"{marker}{REPLACED_SUFFIX}"
    if (folder / marker).exists():
        (folder / marker).replace(away)
    for name in names:
        (temporary / name).replace(folder / name)
    for name in set(replaced) - names - {marker}:
        (folder / name).unlink(missing_ok=True)
    sync(folder)
    (temporary / marker).replace(folder / marker)
    away.unlink(missing_ok=True)
    sync(folder)
