"""The folder where downloads, token stores and plans are kept."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Where downloads and tokenized text are kept: `BERTACCUM_CACHE` or the user's cache."""
    named = os.environ.get("BERTACCUM_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("bertaccum")
