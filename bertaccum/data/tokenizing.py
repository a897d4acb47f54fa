"""Tokenization of TSVs and texts into token stores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import tensorflow as tf

from bertaccum.bert.packed_tokens import example_shapes
from bertaccum.bert.tokenization import TAG, Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.data.given_texts import read_unlabelled
from bertaccum.data.token_store import TokenStore, save_array, store_digest, unlabelled_digest
from bertaccum.data.truncation import Truncation
from bertaccum.errors import InputError
from bertaccum.options.commands import NAMES, NUMBERS
from bertaccum.system.atomic import new_folder, write_text
from bertaccum.system.cache import cache_folder, cached_folder, seal
from bertaccum.system.files import check_digest, json_text, read_object, sha256
from bertaccum.system.progress import Note, Progress
from bertaccum.tasks.kinds import task_in
from bertaccum.tasks.labels import Labels, label_column
from bertaccum.tasks.task import Task
from bertaccum.tasks.token_classification import TokenClassification
from data_prep.tables.columns import PAIR, TEXT, WEIGHT, ReadOptions
from data_prep.tables.manifest import is_prepared
from data_prep.tables.rows import clean
from data_prep.tables.spellings import class_finder, respelled, spelled_classes
from data_prep.tables.tsv import read_tsv

# The texts of some rows and, for pairs, their second texts.
Columns = Sequence[list[str]]

_BATCH = 1024

_TRUNCATION = "truncation.json"
# Maximum numbers of tokens that users may choose; most models have 512 positions.
_USUAL_LENGTHS = (128, 256, 512)
_USUAL_WINDOWS = (2, 4, 8)


def open_store(
    tsv: Path, task: Task, tokenization: Tokenization, progress: Progress, digest: str | None = None
) -> TokenStore:
    """Return the token store of a TSV, creating it if it is not in the cache.

    Args:
      digest: Name of the store, as `store_digest` returns it for the labels of `task`; None to
        compute it.

    Raises:
      InputError: The TSV cannot be used, or has changed since `digest` was computed.
    """
    own = task_in(tsv, task)
    labels = own.labels if digest is None else task.labels

    def name() -> str:
        return store_digest(tsv, sha256(tsv), labels, tokenization)

    named = digest or name()

    def make(folder: Path) -> None:
        table = read_tsv(tsv, ReadOptions(weight_if_named=True))
        check_digest(tsv, name(), named)
        _make_store(folder, tsv, table, own, Tokenizer(tokenization), progress)

    return _opened(named, make, progress)


def open_unlabelled(
    path: Path, task: Task, tokenization: Tokenization, progress: Progress, digest: str
) -> TokenStore:
    """Return the token store of a file of texts, creating it if it is not in the cache.

    Its labels are zeros; each word has the tag 0.

    Args:
      digest: Name of the store, as `unlabelled_digest` returns it.

    Raises:
      InputError: The file cannot be used, or has changed since `digest` was computed.
    """

    def make(folder: Path) -> None:
        columns, tokenizer = read_unlabelled(path, task.labels, progress), Tokenizer(tokenization)
        now = unlabelled_digest(path, sha256(path), task.labels, tokenization)
        check_digest(path, now, digest)
        count = len(columns[0])
        _write_store(
            folder, columns, None, np.ones(count, np.float32), task, tokenizer, progress, path
        )

    return _opened(digest, make, progress)


def _opened(digest: str, make: Callable[[Path], None], progress: Progress) -> TokenStore:
    folder = cached_folder(cache_folder() / "tokens" / digest, make, progress)
    return TokenStore(
        token_ids=np.memmap(folder / "token_ids.int32", np.int32, "r"),
        offsets=np.fromfile(folder / "offsets.int64", np.int64),
        shapes=np.load(folder / "shapes.npy"),
        labels=np.load(folder / "labels.npy"),
        weights=np.load(folder / "weights.npy"),
        truncation=Truncation(**read_object(folder / _TRUNCATION)),
    )


def store_of(columns: Columns, tokenizer: Tokenizer) -> TokenStore:
    """Return an in-memory token store of unlabeled texts or pairs; its labels are zeros."""
    cleaned = (tf.constant(_cleaned(column, tokenizer), tf.string) for column in columns)
    return store_of_tokens(tokenizer(*cleaned))


def store_of_tokens(tokens: tf.RaggedTensor) -> TokenStore:
    """Return an in-memory token store of tokens [examples, (length)]; its labels are zeros."""
    token_ids, offsets = tokens.flat_values.numpy(), tokens.row_splits.numpy()
    return TokenStore(
        token_ids=token_ids,
        offsets=offsets,
        shapes=example_shapes(token_ids, offsets),
        labels=np.zeros(len(offsets) - 1, np.int32),
        weights=np.ones(len(offsets) - 1, np.float32),
    )


def store_of_table(
    table: pd.DataFrame,
    path: Path,
    task: Task,
    tokenizer: Tokenizer,
    note: Note,
    separator: str | None = None,
    original: Path | None = None,
    form: str | None = None,
) -> TokenStore:
    """Return an in-memory token store of a user's table, with the names or the numbers of classes.

    Args:
      original: The file that `prepare` wrote and that the table is a copy of, or None.
      form: Whether the labels are names or numbers; None to detect it as the option `label_form`
        says.
    """
    task = task_in(original or path, task)
    labels = task.labels
    store = store_of(texts_of_table(path, table, labels.pairs), tokenizer)
    cells = set(label_column(path, table))
    written = {label for own in task.parts(cells, separator).values() for label in own}
    if form is None and original is not None:
        form = NUMBERS
        if labels.names != labels.values:
            note(f"{path}: is a copy of {original}, so its labels are class numbers")
    elif form is None:
        form = NUMBERS if is_prepared(path) else _form(path, written, labels, note)
    known = labels.names if form == NAMES else labels.values
    if others := respelled(spelled_classes(written, known)):
        note(f"{path}: reads the labels {others}")
    encoded = task.encode(path, table, separator, form == NAMES)
    if isinstance(task, TokenClassification):
        tokens = with_tags(store.token_ids, store.offsets, encoded, task.continued)
        store = dataclasses.replace(store, token_ids=tokens)
    return dataclasses.replace(store, labels=encoded)


def with_tags(
    token_ids: np.ndarray, offsets: np.ndarray, tags: np.ndarray, continued: np.ndarray
) -> np.ndarray:
    """Return tokens with the tags of their words, which are 0, or 1 inside of a word, before.

    Args:
      tags: Tags of the words of each example, [examples, words].
      continued: The tag inside of a word for each tag at its start, [tags].
    """
    places = np.flatnonzero(token_ids >= TAG)
    inside = token_ids[places] >= 2 * TAG
    rows = np.searchsorted(offsets, places, side="right") - 1
    starts = np.cumsum(~inside)  # Words up to here, in all examples.
    before = np.concatenate([[0], starts])[np.searchsorted(places, offsets[:-1])]
    own = tags[rows, starts - 1 - before[rows]]
    result = token_ids.copy()
    result[places] += TAG * np.where(inside, continued[own] - 1, own)
    return result


def _form(path: Path, cells: Collection[str], labels: Labels, note: Note) -> str:
    """Return whether the labels found in a user's table are names or numbers of classes."""
    # They decide only if no class has a name that spells the number of another class. Otherwise,
    # the answer would depend on the rows of the table.
    by_name, by_number = class_finder(labels.names), class_finder(labels.values)
    numbers = map(by_number, labels.names)
    if any(n not in (None, own) for n, own in zip(numbers, labels.values, strict=True)):
        note(
            f"{path}: its labels are read as class names, which are also class numbers; pass"
            " `label_form` numbers if they are class numbers"
        )
        return NAMES
    # Unknown labels among names are an error that lists the names.
    are_names = all(map(by_name, cells)) or not any(map(by_number, cells))
    return NAMES if are_names else NUMBERS


def _make_store(
    folder: Path,
    tsv: Path,
    table: pd.DataFrame,
    task: Task,
    tokenizer: Tokenizer,
    progress: Progress,
) -> None:
    ones = np.ones(len(table), np.float32)
    weights = table[WEIGHT].to_numpy(np.float32) if WEIGHT in table else ones
    columns, encoded = texts_of_table(tsv, table, task.labels.pairs), task.encode(tsv, table)
    _write_store(folder, columns, encoded, weights, task, tokenizer, progress, tsv)


def _write_store(
    folder: Path,
    columns: Columns,
    encoded: np.ndarray | None,
    weights: np.ndarray,
    task: Task,
    tokenizer: Tokenizer,
    progress: Progress,
    source: Path,
) -> None:
    """Write a token store.

    Args:
      encoded: Labels of the examples; None for texts without labels.
      weights: Weight of each example, [examples] float32.
      source: The file of the texts.
    """
    total = len(columns[0])
    with new_folder(folder, existing="keep") as temporary:
        kept, whole, shapes, counts = [np.zeros(1, np.int64)], [], [], list[np.ndarray]()
        with (temporary / "token_ids.int32").open("wb") as file:
            for done, (tokens, lengths) in enumerate(tokenized(columns, tokenizer), 1):
                token_ids = tokens.flat_values.numpy()
                if isinstance(task, TokenClassification):
                    if encoded is not None:
                        own = encoded[(done - 1) * _BATCH : done * _BATCH]
                        splits = tokens.row_splits.numpy()
                        token_ids = with_tags(token_ids, splits, own, task.continued)
                    starts = tokens.row_starts().numpy()
                    counts.append(np.add.reduceat(token_ids >= TAG, starts, dtype=np.float32))
                file.write(token_ids.tobytes())
                shapes.append(example_shapes(token_ids, tokens.row_splits.numpy()))
                kept.append(tokens.row_lengths().numpy())
                whole.append(lengths.numpy())
                progress(f"tokenizing {source}", min(done * _BATCH, total), total)
        (temporary / "offsets.int64").write_bytes(np.cumsum(np.concatenate(kept)).tobytes())
        save_array(temporary / "shapes.npy", np.concatenate(shapes))
        labels = np.zeros(total, np.int32) if encoded is None else encoded
        save_array(temporary / "labels.npy", labels)
        if counts:  # The loss of an example is the mean of its words.
            weights = weights * np.concatenate(counts)
        save_array(temporary / "weights.npy", weights)
        truncation = _truncation(np.concatenate(whole), tokenizer.tokenization, task.labels.pairs)
        write_text(temporary / _TRUNCATION, json_text(dataclasses.asdict(truncation)))
        seal(temporary, folder)


def _truncation(lengths: np.ndarray, tokenization: Tokenization, pairs: bool) -> Truncation:
    most = tokenization.longest_text
    cut = lengths.max() > most
    windows = _USUAL_WINDOWS if cut and not pairs else ()
    return Truncation(
        max_seq_length=tokenization.max_seq_length,
        texts=len(lengths),
        longer=int((lengths > most).sum()),
        median=round(float(np.median(lengths))),
        longest=int(lengths.max()),
        kept=_kept(lengths, tokenization, "max_seq_length", _USUAL_LENGTHS) if cut else {},
        windows=tokenization.passages,
        kept_by_windows=_kept(lengths, tokenization, "passages", windows) if windows else {},
    )


def _kept(
    lengths: np.ndarray, tokenization: Tokenization, name: str, usual: tuple[int, ...]
) -> dict[str, float]:
    """Return the fraction of tokens that each value of a field keeps: its own and larger ones."""
    own = getattr(tokenization, name)
    values = [own, *(value for value in usual if value > own)]
    most = [dataclasses.replace(tokenization, **{name: value}).longest_text for value in values]
    return {
        str(value): float(np.minimum(lengths, length).sum() / lengths.sum())
        for value, length in zip(values, most, strict=True)
    }


def texts_of_table(path: Path, table: pd.DataFrame, pairs: bool) -> Columns:
    """Return the texts of a table and, for pairs, its second texts."""
    if pairs and PAIR not in table:
        raise InputError(
            "has single texts, but the model was trained on pairs",
            "name the column of second texts with `text_pair_column`",
            path=path,
        )
    if not pairs and PAIR in table:
        raise InputError(
            "has pairs of texts, but the model was trained on single texts",
            "omit `text_pair_column`, or rename the column text_pair",
            path=path,
        )
    return [table[name].tolist() for name in (TEXT, PAIR)[: 1 + pairs]]


def _cleaned(texts: list[str], tokenizer: Tokenizer) -> list[str]:
    """Return texts as files of `prepare` contain them, so that a text has the same tokens there."""
    # Words that get tags are separated already, and a tag belongs to each of them.
    return texts if tokenizer.tokenization.words else [*map(clean, texts)]


def tokenized(
    columns: Columns, tokenizer: Tokenizer, batch: int = _BATCH
) -> Iterator[tuple[tf.RaggedTensor, tf.Tensor]]:
    """Yield the result of `Tokenizer.with_lengths` for each `batch` of rows; use all cores."""

    def batches() -> Iterator[tuple[list[str], ...]]:
        for start in range(0, len(columns[0]), batch):
            parts = (column[start : start + batch] for column in columns)
            yield tuple(_cleaned(part, tokenizer) for part in parts)

    data = tf.data.Dataset.from_generator(
        batches, output_signature=(tf.TensorSpec([None], tf.string),) * len(columns)
    )
    # AutoGraph would convert the tokenizer, which takes longer than tokenizing a few texts.
    traced = tf.autograph.experimental.do_not_convert(tokenizer.with_lengths)
    yield from data.map(traced, num_parallel_calls=tf.data.AUTOTUNE).prefetch(1)
