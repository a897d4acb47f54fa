"""Which files of a data set on the Hugging Face Hub are the rows of which split."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from bertaccum.errors import ConfigError, InputError
from bertaccum.system.files import read_text
from bertaccum.system.yaml_loader import Loader

CARD = "README.md"
# For each configuration, the files of each split.
Configurations = dict[str, dict[str, list[str]]]
_PARQUET, _JSON, _CSV = ".parquet", ".json", ".csv"
_FORMATS = {
    _PARQUET: _PARQUET,
    **dict.fromkeys((_JSON, ".jsonl", ".ndjson"), _JSON),
    **dict.fromkeys((_CSV, ".tsv"), _CSV),
}
_PREFERRED = (_CSV, _JSON, _PARQUET)  # If a split has as many files of each, the last one.
_PACKED = frozenset({".gz", ".zip"})
# JSON files about the data set.
_ABOUT = frozenset({"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json"})
_DEFAULT = "default"
# The library datasets writes these names. Splits may have any names.
_SHARD = re.compile(r"data/([\w.-]+?)-\d{5}-of-\d{5}[^/]*")
# Words in the names of files and folders, as the Hub itself finds the splits.
_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}


def read_card(path: Path) -> dict[str, Any]:
    """Return the YAML at the beginning of a card; empty if the card has none."""
    match = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", read_text(path), re.DOTALL)
    try:
        values = Loader(match[1]).get_single_data() if match else {}
    except yaml.YAMLError as error:
        what = f"its YAML cannot be read ({str(error).splitlines()[0]})"
        raise InputError(what, "choose another revision", path=path) from None
    return values if isinstance(values, dict) else {}


def configurations(card: Mapping[str, Any], names: list[str]) -> Configurations:
    """Return the files of each split, by the card or else by their names; empty if there are none.

    Args:
      card: The YAML of the data set's card.
      names: The paths of all files that can be read.
    """
    described = _listed(card.get("configs"))
    if not described:
        return {_DEFAULT: splits} if (splits := _by_names(names)) else {}
    found = {str(one.get("config_name", _DEFAULT)): _files(one, names) for one in described}
    return {name: splits for name, splits in found.items() if splits}


def readable(names: Iterable[str]) -> list[str]:
    """Return the paths of the tables among the files of a data set."""
    return [name for name in names if _format(name) and PurePosixPath(name).name not in _ABOUT]


def of_one_format(names: list[str]) -> list[str]:
    """Return the files of a split in the most frequent format.

    Some data sets have the same rows in several formats, and the library datasets also reads one.
    """
    counts = Counter(map(_format, names))
    most = max(_PREFERRED, key=lambda one: (counts[one], _PREFERRED.index(one)))
    return [name for name in names if _format(name) == most]


def _format(name: str) -> str | None:
    path = PurePosixPath(name.lower())
    if path.suffix in _PACKED and not path.stem.endswith(_PARQUET):
        path = PurePosixPath(path.stem)
    return _FORMATS.get(path.suffix)


def converted(names: list[str]) -> Configurations:
    """Return the files in the branch for which the Hub has converted a data set to Parquet."""
    found: Configurations = {}
    for name in names:
        if name.endswith(_PARQUET) and name.count("/") == 2:
            configuration, split, _ = name.split("/")
            found.setdefault(configuration, {}).setdefault(split, []).append(name)
    return found


def chosen(found: Configurations, card: Mapping[str, Any], dataset: str, wanted: str | None) -> str:
    """Return the configuration to read: the wanted one, the default one or the only one."""
    listed = ", ".join(found)
    if wanted is not None:
        if wanted not in found:
            what = f"`dataset_config` {wanted} is no configuration of {dataset}"
            raise ConfigError(what, f"choose one of {listed}")
        return wanted
    default = [
        str(one.get("config_name")) for one in _listed(card.get("configs")) if one.get("default")
    ]
    if name := next((n for n in (*default, _DEFAULT) if n in found), None):
        return name
    if len(found) > 1:
        what = f"`dataset` {dataset} has several configurations"
        raise ConfigError(what, f"choose one with `dataset_config`: {listed}")
    return next(iter(found))


def described_features(card: Mapping[str, Any], configuration: str) -> Any:
    """Return the features of a configuration, as a card describes them; None if it does not."""
    described = _listed(card.get("dataset_info"))
    same = [one for one in described if one.get("config_name", _DEFAULT) == configuration]
    only = described if len(described) == 1 else []
    return next((one.get("features") for one in same or only), None)


def _listed(value: Any) -> list[dict[str, Any]]:
    """Return the mappings in a value of a card, which may be one or a list of them."""
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, dict)]


def _files(one: Mapping[str, Any], names: list[str]) -> dict[str, list[str]]:
    """Return the files of each split of a configuration that a card describes."""
    given = one.get("data_files")
    if isinstance(given, dict):
        parts = list(given.items())
    elif any(isinstance(part, dict) for part in given or ()):
        parts = [(part.get("split"), part.get("path")) for part in _listed(given)]
    else:
        parts = [("train", given)] if given else []
    folder = str(one.get("data_dir") or ".")
    if not parts:
        return _by_names(names, folder)
    splits = {str(split): _matching(patterns, folder, names) for split, patterns in parts}
    return {split: files for split, files in splits.items() if files}


def _matching(patterns: Any, folder: str, names: list[str]) -> list[str]:
    """Return the files whose path matches a pattern, in which `**` but not `*` matches `/`."""
    from fsspec.utils import glob_translate

    listed = patterns if isinstance(patterns, list) else [patterns]
    found = [re.compile(glob_translate(str(PurePosixPath(folder, str(one))))) for one in listed]
    return list(dict.fromkeys(name for one in found for name in sorted(names) if one.match(name)))


def _by_names(names: Iterable[str], folder: str = ".") -> dict[str, list[str]]:
    """Return the files of each split in a folder, by the words in their paths.

    Words in the names of folders have priority. If there are none at all, all files are `train`.
    """
    paths = {name: PurePosixPath(name) for name in sorted(names)}
    inside = {
        n: path.relative_to(folder) for n, path in paths.items() if path.is_relative_to(folder)
    }
    shards = {name: _SHARD.fullmatch(str(path)) for name, path in inside.items()}
    found = {name: match[1] for name, match in shards.items() if match}
    found = found or {name: split for name, path in inside.items() if (split := _split_of(path))}
    splits: dict[str, list[str]] = {}
    for name, split in (found or dict.fromkeys(inside, "train")).items():
        splits.setdefault(split, []).append(name)
    return splits


def _split_of(path: PurePosixPath) -> str | None:
    """Return the last split that is a word in the names of the folders, or else of the file."""
    for part in (str(path.parent), path.name):
        words = [_WORDS[word] for word in re.findall(r"[a-z]+", part.lower()) if word in _WORDS]
        if words:
            return words[-1]
    return None
