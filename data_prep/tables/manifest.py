"""Reads manifest.json, and checks whether a data folder still matches it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import SPLITS
from bertaccum.system.atomic import REPLACED_SUFFIX
from bertaccum.system.files import read_json, read_mapping, read_object, sha256
from bertaccum.system.temporary_paths import is_temporary

MANIFEST, TOOL = "manifest.json", "bertaccum prepare"
VOCABULARY = "vocab.txt"
_OURS = (*(f"{split}.tsv" for split in SPLITS), VOCABULARY)
_CHOOSE = "choose another folder with `out`"
_INTERRUPTED = "an earlier `bertaccum prepare` was interrupted while it replaced these files"
# Things that the manifest records of a file, by the end of their names.
_OF_FILES = {"_sha256": "contents", "_labels": "class names"}
_KINDS = {"tool": str, "source": str, "task": str, "labels": list, "options": dict, "files": dict}


def read_manifest(folder: str | Path) -> dict[str, Any] | None:
    """Return the manifest of a data folder, or None if it has none.

    Raises:
      InputError: The manifest is damaged, or its files may be partly those of an earlier one.
    """
    path = Path(folder) / MANIFEST
    _refuse_interrupted(path.parent)
    if not path.exists():
        return None
    remedy = f"choose another folder for {TOOL}, or delete {folder}"
    try:
        manifest = read_json(path)
    except InputError as error:
        raise InputError(f"is damaged ({error.message})", remedy, path=path) from error
    if not _is_ours(manifest):
        raise InputError(f"was not written by {TOOL}", remedy, path=path)
    return manifest


def _is_interrupted(folder: Path) -> bool:
    """Return whether `prepare` was interrupted while it replaced the files in a folder."""
    return (folder / f"{MANIFEST}{REPLACED_SUFFIX}").exists() and not (folder / MANIFEST).exists()


def _refuse_interrupted(folder: Path) -> None:
    if _is_interrupted(folder):
        raise InputError(_INTERRUPTED, "run it again with `overwrite`", path=folder)


def _is_ours(manifest: Any) -> bool:
    if not isinstance(manifest, dict) or manifest.get("tool") != TOOL:
        return False
    valid = all(isinstance(manifest.get(key), kind) for key, kind in _KINDS.items())
    counts, findings = manifest.get("counts", {}), manifest.get("findings", {})
    valid = valid and isinstance(counts, dict) and isinstance(findings, dict)
    valid = valid and all(isinstance(of, dict) and "rows" in of for of in counts.values())
    # `prepare` removes the files that it has written.
    return valid and all(name in _OURS for name in manifest["files"])


def is_prepared(path: Path) -> bool:
    """Return whether the manifest in a file's folder lists the file.

    In such a file, no fields are quoted.

    Raises:
      InputError: The file may be that of an earlier manifest, or of one that is missing.
    """
    if path.name in _OURS:
        _refuse_interrupted(path.parent)
    manifest = read_mapping(path.parent / MANIFEST) or {}
    files = manifest.get("files")
    return manifest.get("tool") == TOOL and isinstance(files, dict) and path.name in files


def is_changed(path: Path) -> bool:
    """Return whether a file that `prepare` wrote, as `is_prepared` says, was changed since."""
    return sha256(path) != read_object(path.parent / MANIFEST)["files"][path.name]


def original_of(path: Path, folder: Path) -> Path | None:
    """Return the file that `prepare` wrote to a data folder and that a file is a copy of.

    Returns None if the checksum of the file is not in the folder's manifest.
    """
    manifest = read_mapping(folder / MANIFEST) or {}
    if not path.is_file() or not _is_ours(manifest):
        return None
    digest = sha256(path)
    names = (name for name, recorded in manifest["files"].items() if recorded == digest)
    return next((folder / name for name in names), None)


def manifest_of(path: Path) -> dict[str, Any] | None:
    """Return the manifest that lists a file, or None if `prepare` did not write the file."""
    return read_manifest(path.parent) if is_prepared(path) else None


def earlier_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest that an earlier `prepare` wrote to a folder; None without files.

    If `prepare` was killed while it replaced files, the old manifest has another name. In that
    case, the result has no options, and lists every file that `prepare` can write.

    Raises:
      ConfigError: `prepare` did not write the files in the folder.
    """
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise ConfigError("is a file, not a folder", _CHOOSE, path=folder)
    if _is_interrupted(folder):
        return {"options": {}, "files": dict.fromkeys(_OURS, "")}
    earlier = read_manifest(folder)
    if earlier is None and not all(is_temporary(path, MANIFEST) for path in folder.iterdir()):
        raise ConfigError(f"is not empty and was not written by {TOOL}", _CHOOSE, path=folder)
    return earlier


def refuse_input(path: Path, folder: Path) -> None:
    """Raise ConfigError if an input is a file that `prepare` would replace in a data folder."""
    resolved, target = path.resolve(), folder.resolve()
    if resolved == target or (resolved.parent == target and resolved.name in _OURS):
        what = f"is an input, which {TOOL} would replace"
        raise ConfigError(what, _CHOOSE, path=path)


def is_unchanged(
    folder: Path, earlier: dict[str, Any], options: dict[str, Any], overwrite: bool
) -> bool:
    """Return whether the folder already contains the files that these options would produce.

    Raises:
      ConfigError: The files differ and `overwrite` is False, or `prepare` would replace a file that
        it did not write.
    """
    differences = _differences(earlier["options"], options)
    damaged = [] if differences else _damaged(folder, earlier["files"])
    if not differences and not damaged:
        return True
    if overwrite:
        for name in _OURS:
            if name not in earlier["files"] and (folder / name).exists():
                what = f"was not written by {TOOL}"
                raise ConfigError(what, "move it to another folder", path=folder / name)
        return False
    remedy = "pass `overwrite` to replace its files, or choose another folder with `out`"
    raise ConfigError(_reason(earlier, differences, damaged), remedy, path=folder)


def _differences(earlier: dict[str, Any], options: dict[str, Any]) -> list[str]:
    """Return a clause for each option that differs, or only for the source if it differs."""
    names = [n for n in {**earlier, **options} if earlier.get(n) != options.get(n)]
    if "source" in names:
        names = ["source"]
    clauses = []
    for name in names:
        suffix = next((suffix for suffix in _OF_FILES if name.endswith(suffix)), "")
        option = name.removesuffix(suffix)
        if not suffix:
            was, now = _short(earlier.get(name)), _short(options.get(name))
            clauses.append(f"`{name}` was {was}, is now {now}")
        elif option not in names:
            clauses.append(f"the {_OF_FILES[suffix]} of `{option}` differ")
    return clauses


def _short(value: Any) -> str:
    return "unset" if value is None else repr(value)[:40]


def _damaged(folder: Path, files: dict[str, str]) -> list[str]:
    """Return the names of files that are missing or whose checksum differs from the manifest."""
    return [
        name
        for name, recorded in files.items()
        if not (folder / name).is_file() or sha256(folder / name) != recorded
    ]


def _reason(earlier: dict[str, Any], differences: list[str], damaged: list[str]) -> str:
    if not earlier["options"]:
        return _INTERRUPTED
    if differences:
        return f"was prepared with different options ({'; '.join(differences)})"
    return f"no longer matches its manifest ({', '.join(damaged)} changed or missing)"
