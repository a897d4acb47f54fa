"""The cache folder for downloads, token stores and plans.

Everything in the cache is compared with its recorded SHA-256 before it is read. If it differs,
because a file was changed, truncated or damaged on the disk, it is made or downloaded again.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import Any

import platformdirs

from bertaccum.atomic import write_text
from bertaccum.errors import InputError
from bertaccum.files import finite, json_digest, json_text, read_mapping, sha256
from bertaccum.progress import Progress, tell
from bertaccum.temporary_paths import beside, remove

# The file in a cached folder that contains the digests of the others.
DIGESTS = "digests.json"
# The damage that the user has been told about.
_told: set[tuple[Path, tuple[tuple[Any, ...], ...]]] = set()


def cache_folder() -> Path:
    """Return the cache folder: `BERTACCUM_CACHE` if set, else one in the user's cache folder."""
    named = os.environ.get("BERTACCUM_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("bertaccum")


def seal(written: Path, folder: Path) -> None:
    """Record the digests of a complete folder, and make room for it in the cache.

    Args:
      written: The folder, under its temporary name.
      folder: Its final path. A damaged folder with this path is removed.
    """
    record_digests(written, folder.name)
    if folder.exists() and not is_intact(folder):
        away = beside(folder)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(away)
        remove(away)


def record_digests(folder: Path, name: str) -> None:
    """Record the digests of the files in a folder that has this name in the cache."""
    write_text(folder / DIGESTS, json_text(_digests(folder, name)))


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
    if folder.exists() and not intact:
        _tell_damaged(folder, (folder / DIGESTS).exists(), progress)
    return intact


def _digests(folder: Path, name: str) -> dict[str, Any]:
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return {"name": name, "files": {p.name: sha256(p) for p in files if p.name != DIGESTS}}


def write_cached(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file with its digest to the cache, creating its folder."""
    values = finite(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json_text({"digest": json_digest([path.name, values]), "values": values}))


def read_cached(path: Path, progress: Progress) -> dict[str, Any] | None:
    """Return what `write_cached` wrote, or None if the file is missing or damaged.

    Args:
      path: The file.
      progress: Told about a damaged file.
    """
    found = read_mapping(path) or {}
    values = found.get("values")
    if isinstance(values, dict) and found.get("digest") == json_digest([path.name, values]):
        return values
    if path.exists():
        _tell_damaged(path, not found or "digest" in found, progress)
    return None


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
