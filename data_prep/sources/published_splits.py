"""Which published split becomes which of ours."""

from __future__ import annotations

from collections.abc import Collection

from bertaccum.errors import ConfigError, InputError
from bertaccum.options.prepare import PrepareConfig

# Names of published splits, in order of preference, by ours.
_SPLITS = {
    "train": ("train",),
    "dev": ("validation", "validation_matched", "dev", "valid", "val"),
    "test": ("test", "test_matched"),
    "dev-mismatched": ("validation_mismatched",),
    "test-mismatched": ("test_mismatched",),
}


def published_splits(names: Collection[str], config: PrepareConfig) -> dict[str, str]:
    """Return the published name of each of our splits that a data set has.

    Raises:
      InputError: The data set has no split train.
      ConfigError: `test_fraction` is set, but the data set has a test set.
    """
    if "train" not in names:
        what = f"{config.dataset} has no split train, only {', '.join(names)}"
        raise InputError(what, "choose another `dataset`")
    known = {ours: [name for name in theirs if name in names] for ours, theirs in _SPLITS.items()}
    splits = {ours: found[0] for ours, found in known.items() if found}
    if config.test_fraction and "test" in splits:
        given = f"`test_fraction` {config.test_fraction} cannot be used with {config.dataset}"
        raise ConfigError(f"{given}, which already has test rows", "omit `test_fraction`")
    return splits
