"""Chooses the texts and the label among the features of a data set of tensorflow-datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertaccum.errors import ConfigError
from bertaccum.prepare_config import PrepareConfig
from bertaccum.settings import column_names

CLASS, NUMBER, STRING, SEVERAL, FLAGS = "class", "number", "text", "several classes", "flags"
# Names that many data sets give to the two texts of a pair.
_PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question1", "question2"),
)


@dataclass(frozen=True)
class Chosen:
    """The features that `prepare` reads.

    Args:
      texts: The feature of the text, or those of the two texts of a pair.
      labels: The feature of the label, or one feature for each label.
      kind: What the label is: `CLASS`, `NUMBER`, `STRING`, `SEVERAL` or `FLAGS`.
      names: Names of the classes in the order of the class numbers; may be empty.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    kind: str
    names: tuple[str, ...]


def choose(features: Mapping[str, Any], config: PrepareConfig) -> Chosen:
    """Return the features that the options name, or else the obvious ones.

    Args:
      features: The features of the data set, keyed by name.
      config: Options of `prepare`.

    Raises:
      ConfigError: An option names no suitable feature, or it is not obvious which one to read.
    """
    kinds = {name: _kind(feature) for name, feature in features.items()}
    listed = ", ".join(f"{name} ({kind or 'unusable'})" for name, kind in kinds.items())
    if config.label_columns:
        labels, kind = column_names(config.label_columns), FLAGS
        for label in labels:
            _check("label_columns", label, kinds.get(label) == NUMBER, config, listed)
        names = labels
    else:
        labels = (_label(kinds, config, listed),)
        kind = kinds[labels[0]] or ""
        feature = features[labels[0]]
        names = tuple(getattr(getattr(feature, "feature", feature), "names", None) or ())
    texts = [name for name, kind in kinds.items() if kind == STRING and name not in labels]
    return Chosen(_texts(texts, config, listed), labels, kind, names)


def _kind(feature: Any) -> str | None:
    """Return what a feature can be read as, or None if it is neither a text nor a label."""
    import numpy as np
    import tensorflow_datasets as tfds

    if isinstance(feature, tfds.features.ClassLabel):
        return CLASS
    if isinstance(feature, tfds.features.Text):
        return STRING
    if isinstance(feature, tfds.features.Sequence):
        return SEVERAL if _kind(feature.feature) in (CLASS, STRING) else None
    if not isinstance(feature, tfds.features.Tensor) or feature.shape != ():
        return None
    return STRING if feature.np_dtype in (np.object_, np.str_, np.bytes_) else NUMBER


def _check(option: str, name: str, fits: bool, config: PrepareConfig, listed: str) -> None:
    if not fits:
        raise ConfigError(
            f"`{option}` {name} is not a suitable feature of {config.dataset}",
            f"choose one of its features: {listed}",
        )


def _label(kinds: Mapping[str, str | None], config: PrepareConfig, listed: str) -> str:
    name = config.label_column
    if name in kinds or name != PrepareConfig.label_column:
        _check("label_column", name, kinds.get(name) is not None, config, listed)
        return name
    found = [name for name, kind in kinds.items() if kind in (CLASS, SEVERAL)]
    if len(found) != 1:
        raise ConfigError(
            f"{config.dataset} has no feature label",
            f"name the feature of the label with `label_column`: {listed}",
        )
    return found[0]


def _texts(texts: list[str], config: PrepareConfig, listed: str) -> tuple[str, ...]:
    text, other = config.text_column, config.text_pair_column
    if other is not None:
        _check("text_pair_column", other, other in texts, config, listed)
    if text in texts or text != PrepareConfig.text_column:
        _check("text_column", text, text in texts and text != other, config, listed)
        return (text,) if other is None else (text, other)
    for pair in _PAIRS:
        if set(pair) <= set(texts) and other in (None, pair[1]):
            return pair
    left = [name for name in texts if name != other]
    if len(left) != 1:
        raise ConfigError(
            f"{config.dataset} has {'several texts' if left else 'no text'} and no feature text",
            f"name the feature of the text with `text_column`: {listed}",
        )
    return (left[0],) if other is None else (left[0], other)
