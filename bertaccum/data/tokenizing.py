"""Tokenization of TSVs and texts into token stores."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import tensorflow as tf

from bertaccum.atomic import new_folder, write_text
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.cache import cache_folder
from bertaccum.data.labels import Labels, _class_numbers, labels_of
from bertaccum.data.token_store import TokenStore, store_digest
from bertaccum.data.truncation import Truncation
from bertaccum.files import json_text, read_text, sha256
from bertaccum.progress import Note, Progress
from data_prep.prepared_files import is_prepared
from data_prep.tsv import read_tsv

_BATCH = 1024


_TRUNCATION = "truncation.json"


def open_store(
    tsv: Path,
    labels: Labels,
    vocabulary: list[str],
    max_seq_length: int,
    progress: Progress,
    digest: str | None = None,
) -> TokenStore:
    """Return the token store of a TSV, creating it if it is not in the cache.

    Args:
      tsv: Path of the TSV.
      labels: Classes.
      vocabulary: Vocabulary of the tokenizer.
      max_seq_length: Maximum number of tokens per text; longer texts are truncated.
      progress: Called with the current activity, the number of texts done and the total.
      digest: Name of the store; None to compute it with `store_digest`.

    Raises:
      InputError: The TSV cannot be read, or has no labels or an unknown one.
    """
    digest = digest or store_digest(tsv, sha256(tsv), labels, vocabulary, max_seq_length)
    folder = cache_folder() / "tokens" / digest
    if not folder.is_dir():
        _make_store(folder, tsv, labels, Tokenizer(vocabulary, max_seq_length), progress)
    return TokenStore(
        token_ids=np.memmap(folder / "token_ids.int32", np.int32, "r"),
        offsets=np.fromfile(folder / "offsets.int64", np.int64),
        labels=np.fromfile(folder / "labels.int32", np.int32),
        truncation=Truncation(**json.loads(read_text(folder / _TRUNCATION))),
    )


def store_of(texts: list[str], tokenizer: Tokenizer) -> TokenStore:
    """Return an in-memory token store of unlabeled texts, with all labels 0."""
    tokens = tokenizer(tf.constant(texts, tf.string))
    return TokenStore(
        token_ids=tokens.flat_values.numpy(),
        offsets=tokens.row_splits.numpy(),
        labels=np.zeros(len(texts), np.int32),
    )


def store_of_table(
    table: pd.DataFrame, path: Path, labels: Labels, tokenizer: Tokenizer, note: Note
) -> TokenStore:
    """Return an in-memory token store of a user's table.

    Args:
      table: Table that `read_tsv` returned.
      path: Path of the table, for error messages and notes.
      labels: Classes. The table may contain their names or their numbers.
      tokenizer: Tokenizer of the model.
      note: Called with a sentence if the labels could be either names or numbers.

    Raises:
      InputError: The table has no labels, or an unknown one.
    """
    store = store_of(table["text"].tolist(), tokenizer)
    found = set(labels_of(path, table))
    by_name = found <= set(labels.names) and not is_prepared(path)
    if by_name and found <= set(labels.values) and labels.names != labels.values:
        note(f"{path}: its labels could be class names or class numbers; they are read as names")
    known = Labels(labels.names, labels.names) if by_name else labels
    return dataclasses.replace(store, labels=_class_numbers(path, table, known))


def _make_store(
    folder: Path, tsv: Path, labels: Labels, tokenizer: Tokenizer, progress: Progress
) -> None:
    table = read_tsv(tsv)
    numbers = _class_numbers(tsv, table, labels)
    texts = table["text"].tolist()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(folder, existing="keep") as temporary:
        kept, whole = [np.zeros(1, np.int64)], []
        with (temporary / "token_ids.int32").open("wb") as file:
            for done, (tokens, lengths) in enumerate(tokenized(texts, tokenizer), 1):
                file.write(tokens.flat_values.numpy().tobytes())
                kept.append(tokens.row_lengths().numpy())
                whole.append(lengths.numpy())
                progress(f"tokenizing {tsv}", min(done * _BATCH, len(texts)), len(texts))
        np.cumsum(np.concatenate(kept)).tofile(temporary / "offsets.int64")
        numbers.tofile(temporary / "labels.int32")
        truncation = _truncation(np.concatenate(whole), tokenizer.max_seq_length)
        write_text(temporary / _TRUNCATION, json_text(dataclasses.asdict(truncation)))


def _truncation(lengths: np.ndarray, max_seq_length: int) -> Truncation:
    return Truncation(
        max_seq_length=max_seq_length,
        texts=len(lengths),
        longer=int((lengths > max_seq_length).sum()),
        median=round(float(np.median(lengths))),
        longest=int(lengths.max()),
    )


def tokenized(
    texts: list[str], tokenizer: Tokenizer
) -> Iterator[tuple[tf.RaggedTensor, tf.Tensor]]:
    """Yield the result of `Tokenizer.with_lengths` for each batch of texts; use all cores."""

    def batches() -> Iterator[list[str]]:
        for start in range(0, len(texts), _BATCH):
            yield texts[start : start + _BATCH]

    data = tf.data.Dataset.from_generator(
        batches, output_signature=tf.TensorSpec([None], tf.string)
    )
    yield from data.map(tokenizer.with_lengths, num_parallel_calls=tf.data.AUTOTUNE).prefetch(1)
