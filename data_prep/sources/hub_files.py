"""Which files of a data set on the Hugging Face Hub are the rows of which split."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import filter as matching
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from bertaccum.errors import ConfigError, InputError
from bertaccum.system.files import read_text
from bertaccum.system.yaml_loader import Loader

CARD = "README.md"
# For each configuration, the files of each split.
Configurations = dict[str, dict[str, list[str]]]
_PARQUET = ".parquet"
_READABLE = (_PARQUET, ".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".csv.gz", ".jsonl.gz")
# JSON files about the data set.
_ABOUT = frozenset({"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json"})
_DEFAULT = "default"
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
      names: The paths of all files.
    """
    readable = [n for n in names if n.endswith(_READABLE) and PurePosixPath(n).name not in _ABOUT]
    described = _listed(card.get("configs"))
    found = {str(one.get("config_name", _DEFAULT)): _files(one, readable) for one in described}
    found = {name: splits for name, splits in found.items() if splits}
    return found or _by_names(readable)


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
    folder = f"{one['data_dir']}/" if isinstance(one.get("data_dir"), str) else ""
    if folder and not parts:
        return _by_names(name for name in names if name.startswith(folder)).get(_DEFAULT, {})
    splits = {str(split): _matching(patterns, folder, names) for split, patterns in parts}
    return {split: files for split, files in splits.items() if files}


def _matching(patterns: Any, folder: str, names: list[str]) -> list[str]:
    listed = patterns if isinstance(patterns, list) else [patterns]
    wanted = [folder + str(one).removeprefix("./").replace("**/", "*") for one in listed]
    return list(dict.fromkeys(name for one in wanted for name in sorted(matching(names, one))))


def _by_names(names: Iterable[str]) -> Configurations:
    """Return the files of each split, by the words in their paths; Parquet has priority."""
    names = sorted(names)
    names = [name for name in names if name.startswith("data/")] or names
    names = [name for name in names if name.endswith(_PARQUET)] or names
    splits: dict[str, list[str]] = {}
    for name in names:
        words = re.findall(r"[a-z]+", name.removeprefix("data/").lower())
        known = [_WORDS[word] for word in words if word in _WORDS]
        if known:
            splits.setdefault(known[-1], []).append(name)
    if not splits and names:
        splits = {"train": names}
    return {_DEFAULT: splits} if splits else {}
