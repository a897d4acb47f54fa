"""Whether a file is one that `bertaccum prepare` wrote. Standard library only."""

from __future__ import annotations

import json
from pathlib import Path

MANIFEST, TOOL = "manifest.json", "bertaccum prepare"


def is_prepared(path: Path) -> bool:
    """Whether a manifest says that `bertaccum prepare` wrote this file, which quotes nothing."""
    try:
        manifest = json.loads((path.parent / MANIFEST).read_text("utf-8-sig"))
        return manifest["tool"] == TOOL and path.name in dict(manifest["files"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False
