"""Temporary files and folders: those of a killed process are removed by a later one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

# Opening a named pipe would wait for its writer.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def beside(path: Path) -> Path:
    """Return an unused temporary name next to `path`.

    A file with this name gets the user's usual permissions, unlike a file that `tempfile` creates.
    """
    return path.with_name(f".{path.name}-{secrets.token_hex(6)}")


@contextmanager
def temporary_path(path: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a temporary file or folder next to `path`, and delete what is left of it at the end.

    While this process lives, it holds a lock on it.

    Args:
      path: The final path, which replaces the temporary one in errors.
    """
    remove_abandoned(path.parent, path.name)
    temporary, lock = beside(path), None
    try:
        while lock is None:
            temporary = beside(path)
            create(temporary)
            lock = _locked(temporary)
        yield temporary
    except OSError as error:
        # An error in writing names no file.
        own = error.filename is None or str(error.filename).startswith(str(temporary))
        if own and error.errno is not None:
            error.filename = str(path)
        raise
    finally:
        remove(temporary)
        if lock is not None:
            os.close(lock)


def scratch_folder(path: Path) -> AbstractContextManager[Path]:
    """Return a context with a new folder next to `path`, which is deleted at the end."""
    return temporary_path(path, lambda temporary: temporary.mkdir(0o700))


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files and folders that killed processes have left in a folder.

    Args:
      name: Name of the final file or folder; None for those of any name.
    """
    with contextlib.suppress(OSError):
        for left in [path for path in folder.iterdir() if is_temporary(path, name)]:
            _remove_unlocked(left)


def is_temporary(path: Path, name: str | None = None) -> bool:
    """Return whether a path has the temporary name of a file or folder; None for one of any name.

    Args:
      name: Name of the final file or folder.
    """
    final = ".+" if name is None else re.escape(name)
    return re.fullmatch(rf"\.{final}-[0-9a-f]{{12}}", path.name) is not None


def _locked(temporary: Path) -> int | None:
    """Lock a new file or folder, and return the descriptor that holds the lock."""
    # Returns None if another process has removed it, because it was not locked yet.
    try:
        lock = os.open(temporary, _FLAGS)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):  # A network file system may have no such locks.
        fcntl.flock(lock, fcntl.LOCK_EX)
    if temporary.exists():
        return lock
    os.close(lock)
    return None


def _remove_unlocked(left: Path) -> None:
    """Remove a temporary file or folder unless a process that writes to it holds the lock."""
    with contextlib.suppress(OSError):
        lock = os.open(left, _FLAGS)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(left)
        finally:
            os.close(lock)


def remove(path: Path) -> None:
    """Remove a file, a folder or a link, if it exists; the target of a link is not touched."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
