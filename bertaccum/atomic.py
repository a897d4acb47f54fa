"""Atomic writing of files and folders: they appear complete or not at all, even after a crash.

A file or folder is written under a temporary name next to the final one, and is renamed when it is
complete. This module imports only the standard library.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from bertaccum.errors import RunError, reason

# While `new_files` replaces files, it adds this suffix to the name of the marker. If a folder
# contains the renamed marker but not the marker itself, the replacement was interrupted.
REPLACED_SUFFIX = ".replaced"


def beside(path: Path) -> Path:
    """Return an unused temporary name next to `path`.

    A file with this name gets the user's usual permissions, unlike a file that `tempfile` creates.
    """
    return path.with_name(f".{path.name}-{secrets.token_hex(6)}")


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically.

    A byte of a file name that is not UTF-8 is written as an escape, which JSON reads back.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, contents: bytes) -> None:
    """Write a file atomically: readers see its old or its new contents, even after a crash."""
    with new_file(path) as file:
        file.write(contents)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to, and rename it to `path` when it is complete.

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


def new_folder(path: Path, existing: str = "replace") -> AbstractContextManager[Path]:
    """Return a context with a folder to write to, which is renamed to `path` when it is complete.

    Args:
      path: The final folder. Its parent folder must exist.
      existing: What to do if `path` exists when the new folder is complete: `replace` it, `keep` it
        and discard the new folder, or `refuse`, which raises an OSError unless `path` is an empty
        folder.

    Raises:
      OSError: The folder cannot be created or renamed.
    """

    def put(temporary: Path) -> None:
        if existing == "replace":
            _put_folder(temporary, path)
            return
        try:
            temporary.rename(path)
        except OSError:
            if existing == "refuse" or not path.exists():
                raise

    return _folder_beside(path, put)


@contextmanager
def _folder_beside(path: Path, put: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a temporary folder next to `path`, and call `put` with it when it is complete."""
    temporary = beside(path)
    try:
        temporary.mkdir()
        yield temporary
        for part in [*temporary.rglob("*"), temporary]:
            sync(part)
        put(temporary)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put_folder(written: Path, path: Path) -> None:
    """Rename a complete folder to `path`, replacing an existing folder.

    Two folders cannot be swapped in one step. If the process crashes between the steps, `standing`
    finds the old folder.
    """
    old = _old(path)
    if path.exists():
        remove(old)
        path.rename(old)
    try:
        written.rename(path)
    except OSError:
        if old.exists():
            old.rename(path)
        raise
    remove(old)


def standing(path: Path) -> Path:
    """Return the current path of a folder that `new_folder` wrote.

    If `new_folder` crashed while it replaced the folder, the old folder has another name.
    """
    return path if path.exists() or not _old(path).exists() else _old(path)


def settle(path: Path) -> None:
    """Restore the old folder if `new_folder` crashed while it replaced the folder.

    No other process may write to the folder during the call.
    """
    old = _old(path)
    if not path.exists() and old.exists():
        old.rename(path)
    remove(old)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files and folders, named by `beside`, that a killed process has left."""
    for path in folder.glob(".*-*"):
        if re.fullmatch(r"\..+-[0-9a-f]{12}", path.name):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, a folder or a link, if it exists; the target of a link is not touched."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}-old")


@contextmanager
def new_files(folder: Path, marker: str, replaced: Iterable[str]) -> Iterator[Path]:
    """Yield a folder to write to, and move its files into `folder` when they are complete.

    If `folder` does not exist, it appears with one rename. Otherwise only files with the same names
    and those in `replaced` are changed. The marker is absent during the change, so its presence
    means that the set of files is complete.

    Args:
      folder: The final folder. Other files in it are not changed.
      marker: The name of the file whose presence means that the other files are complete.
      replaced: The names of files that an earlier call wrote. They are replaced or removed.

    Raises:
      RunError: A file cannot be written.
    """
    folder = folder.resolve()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        put = partial(_replace, folder=folder, marker=marker, replaced=replaced)
        new = new_folder(folder, existing="refuse")
        making = _folder_beside(folder, put) if folder.exists() else new
        with making as temporary:
            yield temporary
    except OSError as error:
        raise RunError(
            f"cannot be written ({reason(error)})",
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
