"""Files and folders that appear whole or not at all, whatever a crash or another process does.

What is written has a name of its own beside the final one until it is finished. Standard library
only.
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

# Where the marker of `new_files` waits while the files it vouches for are replaced: a folder with
# this name in it and no marker was interrupted at that moment.
REPLACED_SUFFIX = ".replaced"


def beside(path: Path) -> Path:
    """Return a name that nobody else uses, for what will be renamed to `path`.

    Unlike those of `tempfile`, what is made under it gets the user's usual permissions.
    """
    return path.with_name(f".{path.name}-{secrets.token_hex(6)}")


def sync(path: Path) -> None:
    """Have the system put a file, or the names in a folder, on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, contents: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old contents or the new, never half."""
    with new_file(path) as file:
        file.write(contents)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to, which then appears as `path`.

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


@contextmanager
def new_folder(path: Path, existing: str = "replace") -> Iterator[Path]:
    """Yield a folder to write to, which then appears as `path`.

    Args:
      path: the folder; its parent exists.
      existing: what happens to a folder that is there when this one is finished: `replace` it,
        `keep` it and drop the new one, or `refuse`, which raises.

    Raises:
      OSError: it cannot be made, or put there.
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
    """Put a finished folder where another one may be.

    Two folders cannot change places in one step: a crash in between leaves the old one where
    `standing` finds it.
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
    """Return where a folder of `new_folder` is: elsewhere, if a crash cut that short."""
    return path if path.exists() or not _old(path).exists() else _old(path)


def settle(path: Path) -> None:
    """Undo what a crash cut short in `new_folder`; for a process that alone writes there."""
    old = _old(path)
    if not path.exists() and old.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what a process that was killed has left under the names of `beside`."""
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
    """Yield a folder to write to, whose files then appear together in `folder`.

    A folder that does not exist yet appears with one rename. In one that does, only files of the
    same names and those in `replaced` are touched, and the marker is away while that happens:
    whoever finds it finds a whole set.

    Args:
      folder: where the files go; what else is in it stays.
      marker: name of the file that says that the others are complete.
      replaced: names of files of an earlier run, to be removed or replaced.

    Raises:
      RunError: something cannot be written.
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
