"""Which published split becomes which of ours."""

from __future__ import annotations

from collections.abc import Collection, Container

from bertaccum.errors import ConfigError, InputError
from bertaccum.options.prepare import PrepareConfig
from bertaccum.system.phrases import listed
from bertaccum.system.progress import Note, ignore_note

# Names of published splits, in order of preference, by ours.
_SPLITS = {
    "train": ("train",),
    "dev": ("validation", "validation_matched", "dev", "valid", "val"),
    "test": ("test", "test_matched"),
    "dev-mismatched": ("validation_mismatched",),
    "test-mismatched": ("test_mismatched",),
}


def published_splits(
    names: Collection[str], dataset: str | None, note: Note = ignore_note
) -> dict[str, str]:
    """Return the published name of each of our splits that a data set has; note the others.

    Raises:
      InputError: The data set has no split train.
    """
    if "train" not in names:
        what = f"{dataset} has no split train, only {', '.join(names)}"
        raise InputError(what, "choose another `dataset`")
    known = {ours: [name for name in theirs if name in names] for ours, theirs in _SPLITS.items()}
    splits = {ours: found[0] for ours, found in known.items() if found}
    if others := [name for name in names if name not in splits.values()]:
        note(f"{dataset}: these splits are not read: {listed(others)}")
    return splits


def check_fractions(given: Container[str], config: PrepareConfig, where: str) -> None:
    """Raise ConfigError if rows are to be held out for a split that a source has."""
    for split in ("test", "dev"):
        fraction = getattr(config, f"{split}_fraction")
        if fraction and split in given:
            what = f"`{split}_fraction` {fraction} cannot be used with {where}"
            remedy = f"omit `{split}_fraction`"
            raise ConfigError(f"{what}, which already has {split} rows", remedy)
