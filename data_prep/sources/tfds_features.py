"""Chooses the texts and the label among the features of a data set of tensorflow-datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertaccum.errors import ConfigError, InputError
from bertaccum.options.fields import column_names
from bertaccum.options.prepare import PrepareConfig
from data_prep.tables.rows import Row

CLASS, NUMBER, STRING, SEVERAL, FLAGS = "class", "number", "text", "several classes", "flags"
# Joins the labels of a row. No name of a class contains this character.
SEPARATOR = "\x1f"
_ROWS_A_BATCH = 512
# Names that many data sets give to the two texts of a pair.
_PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question1", "question2"),
)


@dataclass(frozen=True)
class ChosenFeatures:
    """The features that `prepare` reads."""

    texts: tuple[str, ...]  # The feature of the text, or those of the two texts of a pair.
    labels: tuple[str, ...]  # The feature of the label, or one feature for each label.
    kind: str  # Kind of the label: `CLASS`, `NUMBER`, `STRING`, `SEVERAL` or `FLAGS`.
    names: tuple[str, ...]  # Names of the classes in the order of the class numbers; may be empty.


def choose(features: Mapping[str, Any], config: PrepareConfig) -> ChosenFeatures:
    """Return the features that the options name, or else the obvious ones.

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
    return ChosenFeatures(_texts(texts, config, listed), labels, kind, names)


def _kind(feature: Any) -> str | None:
    """Return what a feature can be read as, or None if it is neither a text nor a label."""
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
        what = f"`{option}` {name} is not a suitable feature of {config.dataset}"
        raise ConfigError(what, f"choose one of its features: {listed}")


def _label(kinds: Mapping[str, str | None], config: PrepareConfig, listed: str) -> str:
    name = config.label_column
    if name in kinds or name != PrepareConfig.label_column:
        _check("label_column", name, kinds.get(name) is not None, config, listed)
        return name
    candidates = [name for name, kind in kinds.items() if kind in (CLASS, SEVERAL)]
    if len(candidates) != 1:
        what = f"{config.dataset} has no feature label"
        raise ConfigError(what, f"name the feature of the label with `label_column`: {listed}")
    return candidates[0]


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
        what = f"{config.dataset} has {'several texts' if left else 'no text'} and no feature text"
        raise ConfigError(what, f"name the feature of the text with `text_column`: {listed}")
    return (left[0],) if other is None else (left[0], other)


def batches_of(builder: Any, split: str, names: Sequence[str], ragged: bool) -> Iterator[Any]:
    """Yield some features of a split, in batches."""
    import tensorflow_datasets as tfds

    wanted = tfds.decode.PartialDecoding(dict.fromkeys(names, True))
    # One shard after another: the same order on every machine, and little memory.
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    rows = builder.as_dataset(split=split, read_config=in_order, decoders=wanted)
    batches = rows.ragged_batch(_ROWS_A_BATCH) if ragged else rows.batch(_ROWS_A_BATCH)
    return iter(tfds.as_numpy(batches))


def examples_of(builder: Any, split: str, chosen: ChosenFeatures, labeled: bool) -> Iterator[Row]:
    """Yield the rows of a split of a prepared data set, without their labels unless `labeled`."""
    names, read = [*chosen.texts, *chosen.labels], _label_reader(chosen)
    row = 0
    for batch in batches_of(builder, split, names, chosen.kind == SEVERAL):
        labels = read([batch[name] for name in chosen.labels])
        columns = [batch[name].tolist() for name in chosen.texts]
        for label, *texts in zip(labels, *columns, strict=True):
            row += 1
            text, *pair = (text.decode("utf-8", "replace") for text in texts)
            yield Row(row, label if labeled else None, text, pair[0] if pair else None)


def _label_reader(chosen: ChosenFeatures) -> Callable[[list[Any]], list[str]]:
    """Return a function that returns the source labels in the label features of a batch."""

    def named(value: Any) -> str:
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace").strip()
        return chosen.names[value].strip() if chosen.names and value >= 0 else str(value)

    def several(values: Iterable[Any]) -> str:
        return SEPARATOR.join(map(named, values)) or SEPARATOR

    if chosen.kind == SEVERAL:
        return lambda columns: [several(values) for values in columns[0].to_list()]
    if chosen.kind == FLAGS:
        return lambda columns: [several(np.flatnonzero(row)) for row in _flags(columns, chosen)]
    # A float32 number, converted to text, has no more digits than it needs.
    return lambda columns: [named(value) for value in columns[0]]


def _flags(columns: list[Any], chosen: ChosenFeatures) -> Iterator[tuple[Any, ...]]:
    for name, column in zip(chosen.labels, columns, strict=True):
        for value in column[(column != 0) & (column != 1)]:
            what = f"the feature {name!r} contains {value}, which is neither 0 nor 1"
            raise InputError(what, "name other features with `label_columns`")
    return zip(*columns, strict=True)
