"""manifest.json: what stands in a data folder, and what decided it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertaccum.errors import InputError
from bertaccum.files import open_input, sha256
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
    try:
        manifest = json.loads(raw)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"is damaged ({error})", _prepare_again(), path=path) from error
    if not _is_ours(manifest):
        raise InputError(f"was not written by {TOOL}", _prepare_again(), path=path)
    return manifest


def _prepare_again() -> str:
    return f"run {TOOL} into another folder, or remove this one"


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


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """The manifest as it is written.

    Args:
      manifest: its keys and values.

    Returns:
      Indented JSON in UTF-8.
    """
    return (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()


def changed_options(manifest: dict[str, Any], options: dict[str, Any]) -> list[str]:
    """Names what differs between a manifest's options and those of this run.

    Args:
      manifest: of an earlier run.
      options: what decides the result of this one.

    Returns:
      `name was X, is Y` for each difference.
    """
    earlier = manifest["options"]
    return [
        f"{name} was {earlier.get(name)!r}, is {options.get(name)!r}"
        for name in {**earlier, **options}
        if earlier.get(name) != options.get(name)
    ]


def changed_files(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """Names the files that are no longer what the manifest says.

    Args:
      folder: the data folder.
      manifest: its manifest.

    Returns:
      Names of changed and missing files.
    """
    return list(_changed(folder, manifest["files"]))


def _changed(folder: Path, files: dict[str, Any]) -> Iterator[str]:
    for name, recorded in files.items():
        path = folder / name
        if not path.is_file() or sha256(path) != recorded:
            yield name
