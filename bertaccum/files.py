"""Files that are whole or not there, and their digests. Standard library only."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Writes `path` so that a reader, or a crash, sees the old contents or the new, never half."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sha256(path: Path) -> str:
    """The sha256 of a file's contents, in hexadecimal, read piece by piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
