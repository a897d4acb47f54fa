"""Atomic writing of files and folders: they appear complete or not at all, even after a crash.

A file or folder is written under a temporary name next to the final one, and is renamed when it is
complete. A folder that exists may be a mount point, and its parent may not be writable, so what is
added to it is written in a temporary folder inside it. If the process is killed, the next writer of
the same file or folder removes what is left.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from bertaccum.errors import RunError, reason
from bertaccum.system.temporary_paths import is_temporary, remove, temporary_path

# While `new_files` replaces files, it adds this suffix to the name of the marker. If a folder
# contains the renamed marker but not the marker itself, the replacement was interrupted.
REPLACED_SUFFIX = ".replaced"
# Some file systems, such as shared folders of virtual machines, cannot flush a folder's entries.
_CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder if its file system can do that, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_FLUSH or not path.is_dir():
            raise
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
    """Yield a file to write to, and rename it to `path` when complete; OSErrors name `path`."""
    with temporary_path(path, lambda temporary: temporary.open("xb").close()) as temporary:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def new_folder(path: Path, existing: str = "replace") -> AbstractContextManager[Path]:
    """Return a context with a folder to write to, which is renamed to `path` when it is complete.

    Args:
      existing: What to do if `path` exists when the new folder is complete: `replace` it, `keep` it
        and discard the new folder, or `refuse`, which raises an OSError unless `path` is an empty
        folder. If that exists already, the new folder is inside it until its contents are moved.
    """
    if existing == "refuse" and path.is_dir():
        return _folder_beside(path / path.name, partial(_fill, folder=path))

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
    with temporary_path(path, Path.mkdir) as temporary:
        yield temporary
        for part in [*temporary.rglob("*"), temporary]:
            sync(part)
        put(temporary)
        sync(path.parent)


def _put_folder(written: Path, path: Path) -> None:
    """Rename a complete folder to `path`, replacing an existing folder."""
    # Two folders cannot be swapped in one step. If the process crashes between the steps,
    # `complete_folder` finds the old folder.
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


def _fill(written: Path, folder: Path) -> None:
    """Move the contents of a complete folder into an empty folder that contains it."""
    if not all(is_temporary(path, folder.name) for path in folder.iterdir()):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))
    for path in [*written.iterdir()]:
        path.rename(folder / path.name)


def complete_folder(path: Path) -> Path:
    """Return the current path of a folder that `new_folder` wrote.

    If `new_folder` crashed while it replaced the folder, the old folder has another name.
    """
    return path if path.exists() or not _old(path).exists() else _old(path)


def recover_folder(path: Path) -> None:
    """Restore the old folder if `new_folder` crashed while it replaced the folder.

    No other process may write to the folder during the call.
    """
    old = _old(path)
    if not path.exists() and old.exists():
        old.rename(path)
    remove(old)


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}-old")


@contextmanager
def new_files(folder: Path, marker: str, replaced: Iterable[str]) -> Iterator[Path]:
    """Yield a folder to write to, and move its files into `folder` when they are complete.

    If `folder` does not exist, it appears with one rename. Otherwise only files with the same names
    and those in `replaced` are changed. The marker is absent during the change, so its presence
    means that the set of files is complete. If the first file cannot be moved, it stays.

    Args:
      marker: The name of the file whose presence means that the other files are complete.
      replaced: The names of files that an earlier call wrote. They are replaced or removed.
    """
    folder = folder.resolve()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        put = partial(_replace, folder=folder, marker=marker, replaced=replaced)
        new = new_folder(folder, existing="refuse")
        making = _folder_beside(folder / marker, put) if folder.exists() else new
        with making as temporary:
            yield temporary
    except OSError as error:
        what = f"cannot be written ({reason(error)})"
        raise RunError(what, "check the permissions and the free space", path=folder) from error


def _replace(temporary: Path, folder: Path, marker: str, replaced: Iterable[str]) -> None:
    names = {path.name for path in temporary.iterdir()} - {marker}
    away = folder / f"{marker}{REPLACED_SUFFIX}"
    was_complete = (folder / marker).exists()
    if was_complete:
        (folder / marker).replace(away)
    for moved, name in enumerate(names):
        try:
            (temporary / name).replace(folder / name)
        except OSError:
            if was_complete and not moved:
                away.replace(folder / marker)
            raise
    for name in set(replaced) - names - {marker}:
        (folder / name).unlink(missing_ok=True)
    sync(folder)
    (temporary / marker).replace(folder / marker)
    away.unlink(missing_ok=True)
    sync(folder)
