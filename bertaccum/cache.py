"""The cache folder for downloads, token stores and plans."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Return the cache folder: `BERTACCUM_CACHE` if set, else one in the user's cache folder."""
    named = os.environ.get("BERTACCUM_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("bertaccum")
