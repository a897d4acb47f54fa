"""A folder's files appear all at once or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bertaccum.errors import RunError
from bertaccum.files import sync

# Where the marker waits while the files it vouches for are being replaced: a
# folder with this name in it and no marker was interrupted at that moment.
REPLACED_SUFFIX = ".replaced"


@contextmanager
def staged(folder: Path, marker: str, replaced: Iterable[str]) -> Iterator[Path]:
    """Gives a temporary folder whose files are moved into `folder` at the end.

    A folder that does not exist yet appears with one rename. In one that does,
    only files of the same names and those in `replaced` are touched, and the
    marker is away while that happens: whoever finds it finds a whole set.

    Args:
      folder: where the files go.
      marker: name of the file that says that the others are complete.
      replaced: names of files of an earlier run, to be removed or replaced.

    Yields:
      The temporary folder, beside `folder`; it is removed whatever happens.

    Raises:
      RunError: something cannot be written.
    """
    folder = folder.resolve()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        temporary.mkdir()
        try:
            yield temporary
            _publish(temporary, folder, marker, replaced)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise RunError(
            f"cannot be written ({error.strerror or error})",
            "check the permissions and the free space",
            path=folder,
        ) from error


def _publish(temporary: Path, folder: Path, marker: str, replaced: Iterable[str]) -> None:
    for path in [*temporary.iterdir(), temporary]:
        sync(path)
    if not folder.exists():
        temporary.rename(folder)
    else:
        _replace(temporary, folder, marker, replaced)
    sync(folder.parent)


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
