"""manifest.json: what stands in a data folder, what decided it, and whether that is still so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertaccum.atomic import REPLACED_SUFFIX
from bertaccum.config import SPLITS
from bertaccum.errors import ConfigError, InputError
from bertaccum.files import open_input, sha256
from data_prep.prepared_files import MANIFEST, TOOL

VOCABULARY = "vocab.txt"
_OURS = (*(f"{split}.tsv" for split in SPLITS), VOCABULARY)
_CHOOSE = "choose another folder with `out`"
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


def earlier_manifest(folder: Path) -> dict[str, Any] | None:
    """What an earlier run says of the folder.

    A run that was killed while it replaced files left no manifest, but the name
    it moved the old one to. Then every file that we ever write counts as ours,
    and the options as unknown.

    Args:
      folder: the output folder; it need not exist.

    Returns:
      The manifest, or None if the folder is free.

    Raises:
      ConfigError: there are files in it that are not ours.
      InputError: its manifest is damaged.
    """
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise ConfigError("is a file, not a folder", _CHOOSE, path=folder)
    earlier = read_manifest(folder)
    if earlier is None and (folder / f"{MANIFEST}{REPLACED_SUFFIX}").exists():
        return {"options": {}, "files": dict.fromkeys(_OURS, "")}
    if earlier is None and any(folder.iterdir()):
        raise ConfigError(f"is not empty, and {TOOL} did not write it", _CHOOSE, path=folder)
    return earlier


def is_unchanged(
    folder: Path, earlier: dict[str, Any], options: dict[str, Any], overwrite: bool
) -> bool:
    """Whether the folder already holds what these options make.

    Args:
      folder: the output folder.
      earlier: its manifest.
      options: what decides the result of this run.
      overwrite: whether other files of ours may be replaced.

    Returns:
      True if there is nothing to do, False if the folder is to be written.

    Raises:
      ConfigError: it would have to be written, but that is not allowed.
    """
    differences = _differences(earlier["options"], options)
    damaged = [] if differences else _damaged(folder, earlier["files"])
    if not differences and not damaged:
        return True
    if overwrite:
        _check_strangers(folder, earlier)
        return False
    raise ConfigError(
        _reason(earlier, differences, damaged),
        "add `overwrite` to write it again, or choose another `out`",
        path=folder,
    )


def _differences(earlier: dict[str, Any], options: dict[str, Any]) -> list[str]:
    return [
        f"{name} was {earlier.get(name)!r}, is {options.get(name)!r}"
        for name in {**earlier, **options}
        if earlier.get(name) != options.get(name)
    ]


def _damaged(folder: Path, files: dict[str, str]) -> list[str]:
    """The files that are missing or no longer what the manifest says."""
    return [
        name
        for name, recorded in files.items()
        if not (folder / name).is_file() or sha256(folder / name) != recorded
    ]


def _check_strangers(folder: Path, earlier: dict[str, Any]) -> None:
    """The user may have put a vocab.txt of their own beside our files."""
    for name in _OURS:
        if name not in earlier["files"] and (folder / name).exists():
            raise ConfigError(f"{TOOL} did not write this file", "move it away", path=folder / name)


def _reason(earlier: dict[str, Any], differences: list[str], damaged: list[str]) -> str:
    if not earlier["options"]:
        return "an earlier run was interrupted while it replaced these files"
    if differences:
        return f"was prepared with other options ({'; '.join(differences)})"
    return f"is no longer as it was prepared ({', '.join(damaged)} changed or missing)"
