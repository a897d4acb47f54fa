"""Recognizes files that `bertaccum prepare` wrote. Imports only the standard library."""

from __future__ import annotations

import json
from pathlib import Path

MANIFEST, TOOL = "manifest.json", "bertaccum prepare"


def is_prepared(path: Path) -> bool:
    """Return whether the manifest in a file's folder lists the file.

    In such a file, no fields are quoted.
    """
    try:
        manifest = json.loads((path.parent / MANIFEST).read_text("utf-8-sig"))
        return manifest["tool"] == TOOL and path.name in dict(manifest["files"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False
