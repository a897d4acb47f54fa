"""The cache folder for downloads, token stores and plans.

Whatever is read from the cache is first compared with its recorded SHA-256. If it differs, because
a file was changed, truncated or damaged on the disk, it is made or downloaded again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import platformdirs

from bertaccum.atomic import write_text
from bertaccum.errors import InputError
from bertaccum.files import finite, json_text, read_mapping, sha256
from bertaccum.progress import Progress, tell
from bertaccum.temporary_paths import beside, remove

# The file in a cached folder that contains the digests of the others.
DIGESTS = "digests.json"


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
    write_text(written / DIGESTS, json_text(_digests(written, folder.name)))
    if not is_intact(folder):
        away = beside(folder)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(away)
        remove(away)


def is_intact(folder: Path) -> bool:
    """Return whether a folder has exactly the contents that `seal` recorded."""
    recorded = read_mapping(folder / DIGESTS)
    try:
        return recorded is not None and recorded == _digests(folder, folder.name)
    except InputError:
        return False


def is_cached(folder: Path, progress: Progress) -> bool:
    """Return whether a folder is in the cache and intact; tell the user if it is damaged."""
    intact = is_intact(folder)
    if folder.exists() and not intact:
        _tell_damaged(folder, progress)
    return intact


def _digests(folder: Path, name: str) -> dict[str, Any]:
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return {"name": name, "files": {p.name: sha256(p) for p in files if p.name != DIGESTS}}


def write_cached(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file with its digest to the cache, creating its folder."""
    values = finite(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json_text({"digest": _digest(path, values), "values": values}))


def read_cached(path: Path, progress: Progress) -> dict[str, Any] | None:
    """Return what `write_cached` wrote, or None if the file is missing or damaged.

    Args:
      path: The file.
      progress: Told about a damaged file.
    """
    found = read_mapping(path) or {}
    values = found.get("values")
    if isinstance(values, dict) and found.get("digest") == _digest(path, values):
        return values
    if path.exists():
        _tell_damaged(path, progress)
    return None


def _digest(path: Path, values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([path.name, values]).encode()).hexdigest()


def _tell_damaged(path: Path, progress: Progress) -> None:
    tell(progress, f"{path} does not match its recorded digest, so it is not used")
