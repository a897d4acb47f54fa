"""Options from a YAML file: the keys are the flags' names, a flag beats its key."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bertaccum.errors import ConfigError, InputError
from bertaccum.files import read_text


def read_config_file(
    path: Path,
    keys: Iterable[str],
    check: Callable[[str, Any], Any],
    others: Iterable[str] = (),
) -> dict[str, Any]:
    """Reads a YAML mapping of option names to values.

    Args:
      path: the file; only plain YAML, no tags.
      keys: the names that are known.
      check: converts a key's value; raises ValueError with the reason if it cannot.
      others: names that are known, and passed over.

    Raises:
      InputError: the file is missing or not YAML.
      ConfigError: a key is unknown or there twice, or a value is not valid.
    """
    import yaml

    known, values = list(keys), {}
    try:
        loader = yaml.SafeLoader(read_text(path))
        root = loader.get_single_node()
        pairs = [] if root is None else _pairs(root, path)
        for key_node, value_node in pairs:
            row = key_node.start_mark.line + 1
            key = str(loader.construct_object(key_node, deep=True)).replace("-", "_")
            value = loader.construct_object(value_node, deep=True)
            if key in others:
                continue
            if key not in known:
                raise ConfigError(f"unknown key {key!r}", _closest(key, known), path=path, row=row)
            if key in values:
                raise ConfigError(f"{key} is there twice", "drop one", path=path, row=row)
            values[key] = _checked(key, value, check, path, row)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not plain YAML ({error})", path=path) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or error
        row = mark.line + 1 if mark else None
        raise InputError(f"is not plain YAML ({problem})", path=path, row=row) from None
    return {key: value for key, value in values.items() if value is not None}


def _pairs(root: Any, path: Path) -> Any:
    if root.id != "mapping":
        raise InputError("holds no `key: value` lines", "see configs/ for examples", path=path)
    return root.value


def _checked(key: str, value: Any, check: Callable[[str, Any], Any], path: Path, row: int) -> Any:
    try:
        return None if value is None else check(key, value)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}", path=path, row=row) from None


def _closest(key: str, known: list[str]) -> str:
    match = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return f"did you mean {match[0]}?" if match else ""
