"""The user's own tables, or folders of texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bertaccum.config import PrepareConfig
from bertaccum.errors import InputError
from bertaccum.progress import Note, unheard
from bertaccum.settings import delimiter_character
from data_prep.rows import Example, Part, Source
from data_prep.table import Reading, read_rows


def csv_source(config: PrepareConfig, note: Note = unheard) -> Source:
    """Return the rows of `train_file` and `test_file`.

    Args:
      config: names the files and says how to read them.
      note: is told how they are written.

    Returns:
      A source without test rows when no test file is named.
    """
    assert config.train_file is not None  # PrepareConfig sees to it
    train, test = Path(config.train_file), config.test_file and Path(config.test_file)
    files = train.name if not test else f"{train.name} and {test.name}"
    return Source(
        description=f"the user's own texts ({files})",
        train=_part(train, config, note),
        test=_part(test, config, note) if test else None,
    )


def read_examples(path: Path, reading: Reading, note: Note = unheard) -> Iterator[Example]:
    """Yield the rows of a labelled table.

    Raises:
      ConfigError: an option does not fit the file.
      InputError: the file or a row of it cannot be used, or has no label.
    """
    for row, label, text in read_rows(path, reading, note):
        if label is None:
            raise InputError("has no labels", "name a file with a column of classes", path=path)
        yield Example(row, label, text)


def _part(path: Path, config: PrepareConfig, note: Note) -> Part:
    delimiter = delimiter_character(config.delimiter)
    reading = Reading(config.text_column, config.label_column, delimiter, config.encoding)
    return Part(path, read_examples(path, reading, note))
