"""The cache folder for downloads, token stores and plans.

Everything in the cache is compared with its recorded SHA-256 before it is read. If it differs,
because a file was changed, truncated or damaged on the disk, it is made or downloaded again.

If the cache folder cannot be written, a temporary folder takes its place until the process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs

from bertaccum.errors import NO_SPACE, InputError, reason
from bertaccum.system.atomic import write_text
from bertaccum.system.files import finite, json_digest, json_text, read_mapping, sha256
from bertaccum.system.progress import Progress, tell
from bertaccum.system.temporary_paths import beside, remove, scratch_folder

# The file in a cached folder that contains the digests of the others.
DIGESTS = "digests.json"
# The damage that the user has been told about.
_told: set[tuple[Path, tuple[tuple[Any, ...], ...]]] = set()
# The variable that tells the processes that this one starts which temporary folder to use.
_TEMPORARY = "BERTACCUM_TEMPORARY_CACHE"
# No folder can be created there.
_NOWHERE = Path(os.devnull, "bertaccum")


def cache_folder() -> Path:
    """Return the cache folder: `BERTACCUM_CACHE` if set, else one in the user's cache folder."""
    named = os.environ.get("BERTACCUM_CACHE")
    folder = Path(named) if named else platformdirs.user_cache_path("bertaccum")
    try:
        return folder.expanduser()
    except RuntimeError:  # The user has no home folder.
        return _NOWHERE


def cache_paths(path: Path) -> list[Path]:
    """Return the paths at which something in the cache may be: the temporary one first."""
    temporary = os.environ.get(_TEMPORARY)
    return [*([temporary / path.relative_to(cache_folder())] if temporary else []), path]


def cached_folder(
    path: Path, make: Callable[[Path], None], progress: Progress, if_full: bool = True
) -> Path:
    """Return an intact folder in the cache, which `make` writes if it is not there.

    If the cache cannot be written, or the disk is full and `if_full`, the folder is in a temporary
    one.
    """
    intact = (place for place in cache_paths(path) if is_cached(place, progress))
    return next(intact, None) or _made(path, make, progress, if_full)


def _made(path: Path, make: Callable[[Path], None], progress: Progress, if_full: bool) -> Path:
    """Call `make` with a path in the cache, or in a temporary folder; return the path."""
    if not os.environ.get(_TEMPORARY):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            make(path)
            return path
        except OSError as error:
            if not _is_of_cache(error) or (error.errno in NO_SPACE and not if_full):
                raise
            _replace_cache(error, progress)
    place = cache_paths(path)[0]
    place.parent.mkdir(parents=True, exist_ok=True)
    make(place)
    return place


def _is_of_cache(error: OSError) -> bool:
    """Return whether an error tells that the cache cannot be written."""
    named, folder = Path(os.fsdecode(error.filename or "/")), cache_folder()
    # The error is about a file in the cache folder or a folder above it.
    about = bool(error.filename) and (named.is_relative_to(folder) or folder.is_relative_to(named))
    # Other processes may remove a file from a cache that can be written.
    return about and not (error.errno == errno.ENOENT and folder.is_dir())


def _replace_cache(error: OSError, progress: Progress) -> None:
    """Use a temporary folder instead of the cache, in this process and those that it starts."""
    folder = cache_folder()
    where = "the user has no home folder" if folder == _NOWHERE else f"{folder} cannot be written"
    why = "" if folder == _NOWHERE else f" ({reason(error)})"
    if (folder, ()) not in _told:
        _told.add((folder, ()))
        remedy = "set BERTACCUM_CACHE to a folder for the cache"
        tell(progress, f"{where}{why}, so nothing new is cached; {remedy}")
    with contextlib.ExitStack() as stack:
        path = Path(tempfile.gettempdir(), "bertaccum-cache")
        os.environ[_TEMPORARY] = str(stack.enter_context(scratch_folder(path)))
        atexit.register(stack.pop_all().close)


def prepare_cache(progress: Progress) -> None:
    """Replace the cache by a temporary folder if it cannot be written.

    A process calls it before it starts others, which would all tell the user.
    """
    with contextlib.suppress(OSError):  # The others find out themselves.
        _made(cache_folder() / "checkpoints", _check_writable, progress, if_full=True)


def _check_writable(path: Path) -> None:
    with scratch_folder(path):
        pass


def seal(written: Path, folder: Path) -> None:
    """Record the digests of a complete folder, and make room for it in the cache.

    Args:
      folder: Its final path. A damaged folder with this path is removed.
    """
    write_text(written / DIGESTS, json_text(_digests(written, folder.name)))
    if folder.exists() and not is_intact(folder):
        away = beside(folder)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(away)
        remove(away)


def is_intact(folder: Path) -> bool:
    """Return whether a folder has exactly the contents that `seal` recorded."""
    try:
        return _matches(folder.resolve(), _stamps(folder))
    except OSError:
        return False


@functools.cache
def _matches(folder: Path, stamps: tuple[tuple[Any, ...], ...]) -> bool:
    """Compare the digests of a folder's files, once in this process for unchanged files."""
    recorded = read_mapping(folder / DIGESTS)
    try:
        return recorded is not None and recorded == _digests(folder, folder.name)
    except InputError:
        return False


def is_cached(folder: Path, progress: Progress) -> bool:
    """Return whether a folder is in the cache and intact; tell the user if it is damaged."""
    intact = is_intact(folder)
    with contextlib.suppress(OSError):  # The user may not be allowed to look.
        if folder.exists() and not intact:
            _tell_damaged(folder, (folder / DIGESTS).exists(), progress)
    return intact


def _digests(folder: Path, name: str) -> dict[str, Any]:
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return {"name": name, "files": {p.name: sha256(p) for p in files if p.name != DIGESTS}}


def write_cached(path: Path, values: dict[str, Any], progress: Progress) -> None:
    """Write a JSON file with its digest to the cache; nothing is lost if that fails."""
    values = finite(values)
    text = json_text({"digest": json_digest([path.name, values]), "values": values})
    with contextlib.suppress(OSError):
        _made(path, lambda place: write_text(place, text), progress, if_full=True)


def read_cached(path: Path, progress: Progress) -> dict[str, Any] | None:
    """Return what `write_cached` wrote, or None if the file is missing or damaged."""
    for place in filter(os.path.isfile, cache_paths(path)):
        stored = read_mapping(place) or {}
        values = stored.get("values")
        if isinstance(values, dict) and stored.get("digest") == json_digest([path.name, values]):
            return values
        _tell_damaged(place, not stored or "digest" in stored, progress)
    return None


def evict(path: Path) -> None:
    """Remove what `write_cached` wrote, if it can be removed."""
    for place in cache_paths(path):
        with contextlib.suppress(OSError):
            place.unlink()


def _tell_damaged(path: Path, recorded: bool, progress: Progress) -> None:
    """Tell the user once that a file or folder is not used, however often it is looked up."""
    state = path, _stamps(path)
    if state not in _told:
        _told.add(state)
        why = "does not match its recorded digest" if recorded else "has no recorded digest"
        tell(progress, f"{path} {why}, so it is not used")


def _stamps(path: Path) -> tuple[tuple[Any, ...], ...]:
    """Return what changes when a file, or a file in a folder, is written."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(one.name, one.stat()) for one in files]
    return tuple((name, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats)
