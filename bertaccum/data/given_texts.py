"""Texts to predict, checked, and split into the texts of a pair or into words."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bertaccum.errors import InputError
from bertaccum.options.task_names import TOKEN_CLASSIFICATION
from bertaccum.system.progress import Progress, tell
from bertaccum.tasks.labels import Labels
from data_prep.tables.columns import PAIR, TEXT, ReadOptions
from data_prep.tables.texts_to_classify import read_texts
from data_prep.tables.words import SplitText, word_spans


def read_unlabelled(path: Path, labels: Labels, progress: Progress) -> list[list[str]]:
    """Return the texts of a file and, for pairs, their second texts; skip empty ones.

    Args:
      path: A table or one text per line, as `bertaccum predict` reads it.
      labels: Labels of the data, which decide whether texts are pairs or words.

    Raises:
      InputError: The file has no texts, or not of this form.
    """
    words = labels.task == TOKEN_CLASSIFICATION
    reading = ReadOptions(label_column=None, words=words)
    read = read_texts(path, reading, partial(tell, progress))
    try:
        texts = [given(text, labels.pairs) for text in read]
    except InputError as error:
        if error.path is not None:
            raise
        hint = "name the columns text and text_pair" if labels.pairs else "rename the second column"
        raise InputError(error.message, hint, path=path) from None
    columns = [list(column) for column in zip(*(t for t in texts if t[0].strip()), strict=True)]
    if not columns:
        raise InputError("has no texts", "add some, or omit `unlabelled`", path=path)
    return [[*map(words_between_spaces, columns[0])]] if words else columns[: 1 + labels.pairs]


def words_between_spaces(text: str) -> str:
    """Return the words of a text between spaces."""
    return SplitText.of(text[start:end] for start, end in word_spans(text))


def given(text: str | Sequence[str], pairs: bool) -> tuple[str, str | None]:
    """Return a text and, for a model of pairs, its second text.

    Args:
      text: A string, or a tuple or list of one or two strings, such as a row of a table.

    Raises:
      InputError: The text is something else, or does not suit the model.
    """
    strings = tuple(text) if isinstance(text, tuple | list) else (text,)
    if len(strings) not in (1, 2) or not all(isinstance(one, str) for one in strings):
        wrong = f"the text {str(text)[:40]} is neither a string nor a pair of strings"
        raise InputError(wrong, "omit it, or convert it to a string")
    result = _split(*strings, pairs=pairs)
    try:
        "".join(filter(None, result)).encode()
    except UnicodeEncodeError:
        wrong = f"the text {str(text)[:40]!r} contains a character that UTF-8 cannot encode"
        raise InputError(wrong, "write it in UTF-8") from None
    return result


def _split(text: str, pair: str | None = None, *, pairs: bool) -> tuple[str, str | None]:
    """Return a text as `given` does."""
    # A string contains a pair as `{"text": …, "text_pair": …}`, or separated by a tab. The second
    # text may be empty; null in JSON stands for an empty text, as in a table.
    if pair is not None and not pairs:
        raise InputError(
            f"the text {text[:40]!r} has a second text, but the model takes single texts",
            "omit `text_pair_column`, or rename the column text_pair",
        )
    if pair is not None or not pairs:
        return text, pair
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        record = json.loads(text)
        one, other = ("" if cell is None else cell for cell in (record[TEXT], record[PAIR]))
        if isinstance(one, str) and isinstance(other, str):
            return one, other
    first, tab, second = text.partition("\t")
    if not tab:
        raise InputError(
            f"the text {text[:40]!r} is single, but the model takes pairs",
            "separate the two texts with a tab, or choose a column with `text_pair_column`",
        )
    return first, second
