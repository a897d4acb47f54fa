"""manifest.json: what stands in a data folder, and what decided it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertaccum.errors import InputError
from bertaccum.files import open_input
from data_prep.prepared_files import MANIFEST, TOOL

_KINDS = {"tool": str, "source": str, "labels": list, "options": dict, "files": dict}


def read_manifest(folder: str | Path) -> dict[str, Any] | None:
    """Reads a data folder's manifest.

    Args:
      folder: the data folder.

    Returns:
      The manifest, or None where there is none.

    Raises:
      InputError: the file is there, but it is not a manifest of ours.
    """
    path = Path(folder) / MANIFEST
    if not path.exists():
        return None
    with open_input(path) as file:
        raw = file.read()
    remedy = f"run {TOOL} into another folder, or remove this one"
    try:
        manifest = json.loads(raw)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"is damaged ({error})", remedy, path=path) from error
    if not _is_ours(manifest):
        raise InputError(f"was not written by {TOOL}", remedy, path=path)
    return manifest


def _is_ours(manifest: Any) -> bool:
    if not isinstance(manifest, dict) or manifest.get("tool") != TOOL:
        return False
    return all(isinstance(manifest.get(key), kind) for key, kind in _KINDS.items())


def label_names(folder: str | Path) -> list[str] | None:
    """Class names by class number.

    Args:
      folder: the data folder.

    Returns:
      The names, or None where there is no manifest.

    Raises:
      InputError: the manifest is damaged.
    """
    manifest = read_manifest(folder)
    return None if manifest is None else [str(name) for name in manifest["labels"]]
