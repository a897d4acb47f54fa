"""Chooses the columns of a table, and makes an example of the cells of a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertaccum.errors import ConfigError, InputError
from bertaccum.options import fields
from bertaccum.system.progress import Note
from data_prep.tables.detection import (
    FASTTEXT_PREFIX,
    IDENTIFIERS,
    USUAL_LABELS,
    USUAL_TEXTS,
    has_only_words,
)
from data_prep.tables.manifest import is_prepared
from data_prep.tables.rows import LABEL_SEPARATOR, Row
from data_prep.tables.spellings import finite_number, number_remedy, visible

TEXT, LABEL, PAIR, WEIGHT = "text", "label", "text_pair", "weight"
_DEFAULT_COLUMNS = {"text_column": TEXT, "label_column": LABEL}
_YES, _NO = frozenset({"1", "1.0", "true"}), frozenset({"0", "0.0", "false"})


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a table."""

    text_column: str = TEXT  # Name of the text column, or its number counted from 1.
    # Name or number of the class column. None reads texts without classes.
    label_column: str | None = LABEL
    delimiter: str | None = None  # Character that separates the columns. None detects it.
    # Python's name for the encoding. None means UTF-8, unless a byte order mark says otherwise.
    encoding: str | None = None
    # Name or number of the column with the second text of each pair. None reads `text_pair` if
    # there is such a column, and single texts otherwise.
    text_pair_column: str | None = None
    # Name or number of the column with the weight of each row. None reads no weights, except those
    # of a file that `prepare` wrote.
    weight_column: str | None = None
    # Names or numbers of columns that contain 1 if the label with the column's name applies to the
    # row, else 0. They replace `label_column`.
    label_columns: tuple[str, ...] = ()
    # Separates the labels of a row; it joins those of `label_columns`.
    label_separator: str = LABEL_SEPARATOR
    # Whether a column named `weight` contains weights if `weight_column` is None.
    weight_if_named: bool = False
    several_labels: bool = False  # Whether a row may have any number of labels.
    may_lack_labels: bool = False  # Whether rows without a label are read, with an empty one.
    words: bool = False  # Whether a row is a sentence whose words have tags.
    tag_names: tuple[str, ...] = ()  # Names of tags that are numbers.
    # Whether the column with the weights may be missing, because evaluation ignores weights.
    may_lack_weights: bool = False
    # Whether `prepare` wrote the file, although it is in another folder.
    as_prepared: bool = False
    # Whether the user named the text column, perhaps by its default name.
    text_is_named: bool = False
    # Whether errors name the options of `test_file`, such as `test_text_column`.
    of_test_file: bool = False

    def is_prepared(self, path: Path) -> bool:
        """Return whether `prepare` wrote a file: in it, nothing is quoted, and a list is a text."""
        return self.as_prepared or is_prepared(path)

    @property
    def with_label(self) -> ReadOptions:
        """These options with a label column: with and without labels, a file has the same texts."""
        return dataclasses.replace(self, label_column=self.label_column or LABEL)

    @property
    def by_name(self) -> list[str]:
        """The columns that are requested by name instead of number."""
        return [column for _, column in self.named if not column.isdecimal()]

    @property
    def named(self) -> list[tuple[str, str]]:
        """The requested columns, each with the name of the option that requests it."""
        label: list[tuple[str, str | None]] = [("label_column", self.label_column)]
        wanted: list[tuple[str, str | None]] = [
            ("text_column", self.text_column),
            *([("label_columns", column) for column in self.label_columns] or label),
            ("text_pair_column", self.text_pair_column),
            ("weight_column", self.weight_column),
        ]
        return [(option, column) for option, column in wanted if column is not None]

    def shown(self, option: str) -> str:
        """Return the option to name in an error about the column that `option` requests."""
        of_test = f"test_{option}"
        return of_test if self.of_test_file and of_test in fields.TEST_COLUMNS else option

    @property
    def has_usual_columns(self) -> bool:
        """Whether the columns have their default names; only then is the CoLA layout accepted."""
        usual = self.text_column == TEXT and self.label_column in (LABEL, None)
        return usual and not (self.text_pair_column or self.weight_column or self.label_columns)


def read_options(config: Any, **others: Any) -> ReadOptions:
    """Return the options of a command for reading its table."""
    shared = fields.field_names(ReadOptions) & fields.field_names(type(config))
    options = {name: getattr(config, name) for name in shared} | others
    options["text_is_named"] = options["text_column"] is not None
    options["text_column"] = options["text_column"] or TEXT
    options["label_separator"] = options.get("label_separator") or LABEL_SEPARATOR
    options["delimiter"] = fields.delimiter_character(options["delimiter"])
    options["label_columns"] = fields.column_names(options.get("label_columns"))
    options["tag_names"] = fields.tag_names(options.get("tag_names"))
    return ReadOptions(**options)


class ColumnIndices(NamedTuple):
    """Positions of the requested columns, counted from 0."""

    text: int
    label: int | None = None  # The label, or None.
    pair: int | None = None  # The second text, or None.
    weight: int | None = None  # The weight, or None.
    flags: tuple[tuple[str, int], ...] = ()  # The name and the position of each column of 0 and 1.
    separator: str = LABEL_SEPARATOR  # Joins the names of the columns that contain 1.
    several_labels: bool = False  # Whether a row may have any number of labels.
    may_lack_labels: bool = False  # Whether rows without a label are read.

    @property
    def used(self) -> list[int]:
        """The positions, each of another column."""
        found = [self.text, self.label, self.pair, self.weight, *(p for _, p in self.flags)]
        return [position for position in found if position is not None]


# Names of columns without labels; pandas names a column that has no name `Unnamed: 0`.
_NOT_READ = IDENTIFIERS | {"", "unnamed: 0"}
_USUAL_PAIRS = [("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis")]


def with_usual_columns(
    names: Sequence[str], reading: ReadOptions, path: Path, note: Note
) -> ReadOptions:
    """Return options that name the columns of a header which lacks `text` or `label`.

    A column is found if no other one has a usual name, or if no other one is left. A note names the
    columns that are found; if one is not, the options remain as they are. The text is the same with
    and without labels.
    """
    default = dict(_DEFAULT_COLUMNS)
    if reading.label_columns:
        del default["label_column"]
    labeled = reading.with_label
    missing = [o for o, name in default.items() if getattr(labeled, o) == name not in names]
    if not missing:
        return reading
    found: dict[str, Any] = {}
    for pair in _USUAL_PAIRS:
        if "text_column" in missing and not reading.text_pair_column and {*pair} <= {*names}:
            found = dict(zip(("text_column", "text_pair_column"), pair, strict=True))
    for option in missing:
        usual = USUAL_TEXTS if option == "text_column" else USUAL_LABELS
        those = [name for name in names if has_only_words(name, usual)]
        if len(those) == 1:
            found.setdefault(option, those[0])
    left = [option for option in missing if option not in found]
    if reading.label_column is None:  # A file without labels need not have their column.
        left = [option for option in left if option != "label_column"]
    requested = {column for _, column in labeled.named}
    rest = {*names} - {*found.values(), *requested, TEXT, PAIR, WEIGHT}
    rest = {name for name in rest if name.casefold() not in _NOT_READ}
    # A number is the position of a column, not its name.
    by_name = not any(column.isdecimal() for column in requested | rest)
    if by_name and len(names) == len(default) == 2 and len(rest) == len(left) == 1:
        found[left.pop()] = rest.pop()
    if reading.label_column is None:
        found.pop("label_column", None)
    if left or not found:  # An error will name the first column that is not found.
        return dataclasses.replace(reading, **found)
    read = ", ".join(f"`{reading.shown(option)}` {name}" for option, name in found.items())
    note(f"{path}: reading {read}, as the header suggests")
    return dataclasses.replace(reading, **found)


def find_columns(
    names: Sequence[str], reading: ReadOptions, path: Path, prepared: bool = False
) -> ColumnIndices:
    """Find the requested columns in the header of a file.

    Args:
      prepared: Whether `prepare` wrote the file; it may then have no labels, and its weights are
        read.
    """
    wanted = reading.named
    if reading.may_lack_weights and reading.weight_column not in names:
        wanted = [one for one in wanted if one[0] != "weight_column"]
    if reading.text_pair_column is None and names.count(PAIR) == 1:
        wanted.append(("text_pair_column", PAIR))
    if prepared and LABEL not in names:
        wanted = [one for one in wanted if one != ("label_column", LABEL)]
    named = reading.weight_column is None and WEIGHT in names
    if named and (prepared or reading.weight_if_named):
        wanted.append(("weight_column", WEIGHT))
    taken: dict[int, tuple[str, str]] = {}
    for option, column in wanted:
        position = _position(reading.shown(option), column, names, path)
        if position in taken:
            first, other = taken[position]
            both = f"`{reading.shown(first)}` {other} and `{reading.shown(option)}` {column}"
            what = f"{both} are the same column"
            raise ConfigError(what, "choose two different columns", path=path)
        taken[position] = option, column
    at = {option: position for position, (option, _) in taken.items()}
    flags = [position for position, (option, _) in taken.items() if option == "label_columns"]
    return ColumnIndices(
        at["text_column"],
        at.get("label_column"),
        at.get("text_pair_column"),
        at.get("weight_column"),
        _flags(flags, names, reading.label_separator, path),
        reading.label_separator,
        reading.several_labels,
        reading.may_lack_labels,
    )


def _flags(
    positions: list[int], names: Sequence[str], separator: str, path: Path
) -> tuple[tuple[str, int], ...]:
    labels = [names[position] or str(position + 1) for position in positions]
    for label in labels:
        if labels.count(label) > 1:
            what = f"two of the columns of `label_columns` are named {label!r}"
            raise ConfigError(what, "rename one", path=path)
        if separator in label:
            what = f"the column name {label!r} contains the `label_separator` {separator!r}"
            raise ConfigError(what, "choose another `label_separator`", path=path)
    return tuple(zip(labels, positions, strict=True))


def _position(option: str, column: str, names: Sequence[str], path: Path) -> int:
    if column.isdecimal():
        if not 1 <= int(column) <= len(names):
            what = f"`{option}` {column} is not one of the columns 1 to {len(names)}"
            raise ConfigError(what, "count columns from 1", path=path)
        for number, name in enumerate(names, 1):
            if name == column and number != int(column):
                what = (
                    f"`{option}` {column} may be column {column} or {number}, which is named {name}"
                )
                raise ConfigError(what, "rename the columns", path=path)
        return int(column) - 1
    if names.count(column) != 1:
        times = "occurs more than once" if column in names else "does not occur"
        header = f"which is: {', '.join(names)[:200]}"
        remedy, of = "choose another column, or pass its number, counted from 1", f" of `{option}`"
        if column not in names and column == _DEFAULT_COLUMNS.get(option.removeprefix("test_")):
            remedy, of = f"name another one with `{option}`", ""  # The user named none.
        if len(names) == 1 and set(names[0]) & set(fields.DELIMITERS.values()):
            header = f"which has only one column, {names[0][:200]!r}"
            remedy = "check `delimiter`"
        if names[0].startswith(FASTTEXT_PREFIX):
            remedy += "; in fastText's format, the first label must not contain ',', ';' or '|'"
        what = f"the column {column!r}{of} {times} in the header, {header}"
        raise ConfigError(what, remedy, path=path)
    return names.index(column)


def example(
    row: int, cells: Sequence[str] | Mapping[int, str], indices: ColumnIndices, path: Path
) -> Row:
    """Return the example in a row of a table."""
    label = None if indices.label is None else cells[indices.label].strip()
    if label is not None and not label[:1].isalnum() and not visible(label):
        if indices.may_lack_labels:
            return Row(row, "", cells[indices.text])
        no_label = f"if no label applies to this text, write {indices.separator} alone in the cell"
        remedy = no_label if indices.several_labels else "add one or delete the row"
        raise InputError("has no label", remedy, path=path, row=row)
    if indices.flags:
        applies = [name for name, at in indices.flags if _is_set(row, name, cells[at], path)]
        label = indices.separator.join(applies) or indices.separator
    pair = None if indices.pair is None else cells[indices.pair]
    weight = None if indices.weight is None else _weight(row, cells[indices.weight], path)
    return Row(row, label, cells[indices.text], pair, weight)


def _is_set(row: int, name: str, cell: str, path: Path) -> bool:
    value = cell.strip().lower()
    if value not in _YES and value not in _NO:
        what = f"the column {name!r} contains {cell[:40]!r}, which is neither 0 nor 1"
        raise InputError(what, "correct it or delete the row", path=path, row=row)
    return value in _YES


def _weight(row: int, cell: str, path: Path) -> float:
    weight = finite_number(cell)
    if weight is None or weight < 0:
        what = f"the weight {cell.strip()[:40]!r} is not a finite number of at least 0"
        remedy = number_remedy(cell) or "correct it or delete the row"
        raise InputError(what, remedy, path=path, row=row)
    return weight
