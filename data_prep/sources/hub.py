"""Any data set of the Hugging Face Hub with files of texts and labels as a source of `prepare`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from bertaccum.errors import ConfigError, InputError
from bertaccum.options.fields import delimiter_character
from bertaccum.options.prepare import PrepareConfig
from bertaccum.options.task_names import (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)
from bertaccum.system import hub
from bertaccum.system.hub_errors import UnreachableError
from bertaccum.system.hub_names import DATASET, Repository, parse
from bertaccum.system.phrases import counted, listed
from bertaccum.system.progress import Note, Progress, silent
from data_prep.sources import hub_files
from data_prep.sources.hub_files import CARD
from data_prep.sources.published_splits import check_fractions, published_splits
from data_prep.tables.cell_lists import items_in
from data_prep.tables.columns import LABEL, ReadOptions, read_options, with_usual_columns
from data_prep.tables.other_formats import parquet_features
from data_prep.tables.rows import Part, Row, Source
from data_prep.tables.table import read_rows
from data_prep.tables.tagged_words import TAG_COLUMNS
from data_prep.tables.text_files import is_parquet

_CONVERTED = "refs/convert/parquet"
_UNLABELED = "-1"
_LISTED = 5
_SEPARATOR = "\x1f"  # Joins the labels of a row. No name of a class contains this character.


@dataclass(frozen=True)
class _Feature:
    """A column, as the library datasets describes it."""

    names: tuple[str, ...] = ()  # Names of the classes; empty for other columns.
    several: bool = False  # Whether a row has a list of classes.
    is_float: bool = False


def hub_options(config: PrepareConfig) -> dict[str, Any]:
    """Return the options and the commit that determine the result."""
    names = ("dataset", "dataset_config", "text_column", "label_column", "test_fraction")
    options = {name: getattr(config, name) for name in (*names, "encoding")}
    options["delimiter"] = delimiter_character(config.delimiter)
    return options | {"commit": hub.resolve(_repository(config), silent).commit}


def hub_source(config: PrepareConfig, progress: Progress, note: Note) -> Source:
    """Download the files of a data set, unless they are in the cache, and open them."""
    repository = hub.resolve(_repository(config), progress)
    note(f"{repository}: commit {repository.commit}")
    files, described = _files(repository, config, progress, note)
    splits = published_splits(files, config.dataset)
    first = files["train"][0]
    features = _features(first, described)
    reading = _reading(config, features, first, note)
    label = _label(config, features, reading)
    evaluated = dataclasses.replace(reading, may_lack_weights=True, may_lack_labels=True)
    parts = {
        ours: _Split(
            f"{repository} {theirs}",
            files[theirs],
            reading if ours == "train" else evaluated,
            label,
            note,
        )
        for ours, theirs in splits.items()
    }
    for split in [split for split in parts if split != "train"]:
        if not parts[split].has_labels():
            note(f"{parts.pop(split).where}: has no labels, so it is not used")
    check_fractions(parts, config, str(repository))
    given = {split: part.part() for split, part in parts.items()}
    is_joined = label.several and bool(label.names)
    return Source(
        description=f"{repository} of the Hugging Face Hub, commit {repository.commit}",
        train=given.pop("train"),
        given=given,
        task=_task(config, label),
        order=label.names or reading.tag_names,
        separator=_SEPARATOR if is_joined else config.label_separator,
        joined=is_joined or bool(config.label_columns),
    )


def _files(
    repository: Repository, config: PrepareConfig, progress: Progress, note: Note
) -> tuple[dict[str, list[Path]], Any]:
    """Return the files of each split that is used, and what the card says about the columns."""
    names, card = hub.file_names(repository, progress), {}
    if CARD in names:
        card = hub_files.read_card(hub.fetch(repository, CARD, progress))
    tables = hub_files.readable(names)
    found = hub_files.configurations(card, tables)
    if not found:
        repository = _parquet_branch(repository, names, progress)
        tables = hub_files.readable(hub.file_names(repository, progress))
        found = hub_files.converted(tables)
    name = hub_files.chosen(found, card, repository.name, config.dataset_config)
    used = published_splits(found[name], config.dataset, note).values()
    read = {split: hub_files.of_one_format(found[name][split]) for split in used}
    known = {file for splits in found.values() for files in splits.values() for file in files}
    others = [file for file in tables if file not in known]
    others += [file for split in used for file in found[name][split] if file not in read[split]]
    if others:
        note(f"{repository}: these files are not read: {listed(others, _LISTED)}")
    paths = {
        split: [hub.fetch(repository, file, progress) for file in files]
        for split, files in read.items()
    }
    return paths, hub_files.described_features(card, name)


def _repository(config: PrepareConfig) -> Repository:
    assert config.dataset is not None  # PrepareConfig checks this.
    found = parse(config.dataset, DATASET)
    if found is None:
        what = f"`dataset` {config.dataset} is no name of a data set on the Hugging Face Hub"
        raise ConfigError(what, "pass OWNER/NAME or OWNER/NAME@REVISION, as in stanfordnlp/sst2")
    return found


def _parquet_branch(repository: Repository, names: list[str], progress: Progress) -> Repository:
    """Return the branch with the Parquet files to which the Hub has converted a data set."""
    try:
        wanted = Repository(repository.name, _CONVERTED, kind=DATASET)
        if repository.revision is not None:
            raise InputError("only the main branch is converted")
        return hub.resolve(wanted, progress)
    except UnreachableError:
        raise
    except InputError:
        what = f"has no Parquet, CSV or JSON Lines files of a split, only {listed(names, _LISTED)}"
        raise InputError(what, "choose another `dataset`", path=str(repository)) from None


def _reading(
    config: PrepareConfig, features: dict[str, _Feature], path: Path, note: Note
) -> ReadOptions:
    """Return how to read the files: the columns that the options name, or else the obvious ones."""
    reading = read_options(config, several_labels=config.task == MULTI_LABEL)
    if config.task == TOKEN_CLASSIFICATION:
        usual = TAG_COLUMNS if config.label_column == LABEL else (config.label_column,)
        tags = next((name for name in usual if name in features), "")
        names = reading.tag_names or features.get(tags, _Feature()).names
        return dataclasses.replace(reading, words=True, tag_names=names)
    # The card may list the columns in another order than a CSV file.
    label = reading.label_column
    if is_parquet(path):
        label = _named(label, features)
    reading = dataclasses.replace(reading, label_column=label, may_lack_labels=True)
    classes = [name for name, feature in features.items() if feature.names]
    unnamed = reading.label_column == LABEL not in features and not reading.label_columns
    if unnamed and len(classes) == 1:
        reading = dataclasses.replace(reading, label_column=classes[0])
    return with_usual_columns([*features], reading, path, note) if features else reading


def _named(column: str | None, features: dict[str, _Feature]) -> str | None:
    """Return the name of a column that may be given as a number, counted from 1."""
    if column is None or not column.isdecimal():
        return column
    return dict(enumerate(features, 1)).get(int(column), column)


def _label(config: PrepareConfig, features: dict[str, _Feature], reading: ReadOptions) -> _Feature:
    """Return the description of the column with the label."""
    if config.task == TOKEN_CLASSIFICATION:
        return _Feature()
    if config.label_columns or config.task == REGRESSION:  # The numbers of classes can be scores.
        return _Feature(is_float=config.task == REGRESSION)
    return features.get(str(reading.label_column), _Feature())


def _task(config: PrepareConfig, label: _Feature) -> str | None:
    if config.label_columns or label.several:
        return MULTI_LABEL
    if label.is_float:
        return REGRESSION
    return CLASSIFICATION if label.names else None


def _features(path: Path, described: Any) -> dict[str, _Feature]:
    """Return the columns, as a Parquet file or else the card describes them; empty if unknown."""
    listed = [one for one in described or () if isinstance(one, dict) and "name" in one]
    of_card = {str(one["name"]): _of_card(one) for one in listed}
    if not is_parquet(path):
        return of_card
    found = parquet_features(path)
    return {
        name: _of_parquet(v) if v else of_card.get(name, _Feature()) for name, v in found.items()
    }


def _of_parquet(value: Any, several: bool = False) -> _Feature:
    """Return a feature in the metadata that datasets writes to a Parquet file."""
    if isinstance(value, list) and value:
        return _of_parquet(value[0], several=True)
    if not isinstance(value, dict):
        return _Feature()
    if isinstance(value.get("feature"), dict):
        return _of_parquet(value["feature"], several=True)
    names = value.get("names") if value.get("_type") == "ClassLabel" else ()
    return _Feature(_stripped(names or ()), several, _is_float(value.get("dtype")))


def _of_card(one: dict[str, Any], several: bool = False) -> _Feature:
    """Return a feature in the YAML of a card."""
    for key in ("sequence", "list"):
        if one.get(key):
            inner = one[key] if isinstance(one[key], dict) else {"dtype": one[key]}
            return _of_card(inner if "dtype" in inner else {"dtype": inner}, several=True)
    kind = one.get("dtype")
    described = kind.get("class_label") if isinstance(kind, dict) else None
    names = described.get("names") if isinstance(described, dict) else ()
    names = names.values() if isinstance(names, dict) else names or ()
    return _Feature(_stripped(names), several, _is_float(kind))


def _stripped(names: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of the classes as the cells of a file have them."""
    return tuple(str(name).strip() for name in names)


def _is_float(dtype: Any) -> bool:
    return isinstance(dtype, str) and dtype.startswith("float")


@dataclass(frozen=True)
class _Split:
    """The files of a published split."""

    where: str
    paths: list[Path]
    reading: ReadOptions
    label: _Feature
    note: Note

    def part(self) -> Part:
        """Return the rows, of which those without a class are skipped."""
        return Part(self.where, self._labeled(), files=self.paths)

    def has_labels(self) -> bool:
        """Return whether any row has a label; benchmarks publish test sets without them."""
        try:
            rows = self._rows(lambda _: None)
            missing = {"", _UNLABELED, "-1.0"}
            if self.reading.words:
                return any(not missing.issuperset((row.label or "").split()) for row in rows)
            return any(row.label not in missing for row in rows)
        except ConfigError:
            texts = dataclasses.replace(self.reading, label_column=None, label_columns=())
            for path in self.paths:  # If not only the label is missing, this raises the error.
                next(read_rows(path, texts, lambda _: None), None)
            return False

    def _rows(self, note: Note) -> Iterator[Row]:
        return chain.from_iterable(read_rows(path, self.reading, note) for path in self.paths)

    def _labeled(self) -> Iterator[Row]:
        missing = 0
        for number, row in enumerate(self._rows(self.note), 1):
            # Without names, -1 may be a class.
            if row.label == "" or (row.label == _UNLABELED and self.label.names):
                missing += 1
            else:
                yield row._replace(row=number, label=self._named(row))
        if missing:
            self.note(f"{self.where}: skipped {counted(missing, 'row')} without a label")

    def _named(self, row: Row) -> str | None:
        """Return the name of the class of a row, or those of its classes."""
        if not self.label.names or row.label is None:
            return row.label
        is_list = self.label.several and row.label.startswith("[")
        values = items_in(row.label) if is_list else [(row.label, False)]
        if values is None:
            what = f"the list of labels {row.label[:40]!r} cannot be read"
            raise InputError(what, "choose another revision", path=self.where, row=row.row)
        names = [self._name(value, row) for value, _ in values]
        return _SEPARATOR.join(names) or _SEPARATOR

    def _name(self, value: str, row: Row) -> str:
        names = self.label.names
        is_number = value.isdecimal() and int(value) < len(names)
        if value in names and (not is_number or names[int(value)] == value):
            return value
        if value in names and not self._has_numbers:
            what = f"the label {value} may be the name of a class or its number, counted from 0"
            remedy = "choose the revision refs/convert/parquet"
            raise InputError(what, remedy, path=self.where, row=row.row)
        if not is_number:
            what = f"the label {value[:40]!r} is no class from 0 to {len(names) - 1}"
            raise InputError(what, "choose another revision", path=self.where, row=row.row)
        return names[int(value)]

    @cached_property
    def _has_numbers(self) -> bool:
        """Whether the files contain the numbers of classes, as Parquet files do."""
        return all(map(is_parquet, self.paths))
