"""Prepares data: reads a source, splits its texts, and writes the splits and a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertaccum.atomic import new_files
from bertaccum.config import SPLITS, PrepareConfig
from bertaccum.errors import InputError
from bertaccum.files import json_text, sha256
from bertaccum.progress import Note, Progress, unheard
from bertaccum.settings import delimiter_character
from bertaccum.version import __version__
from data_prep.archive import checked_sha256, recorded_download
from data_prep.findings import findings, rows_to_keep
from data_prep.manifest import VOCABULARY, earlier_manifest, is_unchanged
from data_prep.prepared_files import MANIFEST, TOOL
from data_prep.rows import Part, Source, class_numbers, class_order, gather
from data_prep.sample import sample_source
from data_prep.split import split_rows
from data_prep.table import Reading, digest, read_rows
from data_prep.tsv import write_tsv
from data_prep.yelp import yelp_source

_ROWS_A_REPORT = 1000

LearnVocabulary = Callable[[Iterable[str]], list[str]]


@dataclass(frozen=True)
class PrepareResult:
    """The result of `prepare`.

    Args:
      folder: The data folder.
      manifest: Contents of its manifest.json.
      unchanged: Whether the folder already contained these files, so that nothing was written.
    """

    folder: Path
    manifest: dict[str, Any]
    unchanged: bool


@dataclass(frozen=True)
class _Data:
    """The rows of each split, ready to be written.

    Args:
      splits: Class number and text of each row, keyed by split: train, dev and possibly test.
      source_labels: Labels of the source, in the order of the class numbers.
      findings: Counts of unusual rows, for the manifest.
    """

    splits: dict[str, list[tuple[int, bytes]]]
    source_labels: list[str]
    findings: dict[str, Any]


def prepare(
    config: PrepareConfig,
    progress: Progress,
    learn_vocabulary: LearnVocabulary,
    note: Note = unheard,
) -> PrepareResult:
    """Write train.tsv, dev.tsv, test.tsv and manifest.json.

    No text occurs in two splits, unless `drop_duplicates=False` keeps training rows whose text is
    also in the test set. With `source="csv"`, test.tsv is written only if `test_file` or
    `test_fraction` is given.

    Args:
      config: The source to prepare and the folder to write to.
      progress: Called with the name of a phase, the amount of finished work, and the total amount
        or None, possibly from several threads.
      learn_vocabulary: Returns a WordPiece vocabulary for texts. It is called only for
        `source="sample"`, with the training texts; the vocabulary is written to vocab.txt.
      note: Called with a message about the format of each of the user's files.

    Returns:
      The folder and its manifest.

    Raises:
      ConfigError: `prepare` must not write to the folder, or an option does not suit the source.
      InputError: The source or one of its rows cannot be used.
      RunError: The files cannot be written.
    """
    folder = Path(config.folder)
    earlier = earlier_manifest(folder)
    options = _options(config)
    if earlier is not None and is_unchanged(folder, earlier, options, config.overwrite):
        return PrepareResult(folder, earlier, unchanged=True)
    with _opened(config, progress, note) as source:
        data = _split(source, config, progress)
    manifest = _manifest(source, data, options)
    texts = (text.decode() for _, text in data.splits["train"])
    words = learn_vocabulary(texts) if config.source == "sample" else None
    with new_files(folder, MANIFEST, earlier["files"] if earlier else ()) as temporary:
        manifest["files"] = _write(temporary, data, words, config.layout, progress)
        (temporary / MANIFEST).write_bytes(json_text(manifest).encode())
    return PrepareResult(folder, manifest, unchanged=False)


def _options(config: PrepareConfig) -> dict[str, Any]:
    """Return the options and input checksums that determine the files."""
    options: dict[str, Any] = {
        "source": config.source,
        "layout": config.layout,
        "split": "stratified",
        "dev_fraction": config.dev_fraction,
        "drop_duplicates": config.drop_duplicates,
        "seed": config.seed,
    }
    if config.source == "yelp":
        options["archive_sha256"] = _archive_sha256(config)
    if config.source == "csv":
        options |= {"text_column": config.text_column, "label_column": config.label_column}
        options |= {"test_fraction": config.test_fraction}
        options["delimiter"] = delimiter_character(config.delimiter)
        options["encoding"] = config.encoding
        options |= _input("train_file", config.train_file)
        options |= _input("test_file", config.test_file)
    return options


def _archive_sha256(config: PrepareConfig) -> str:
    if config.archive is None:
        return recorded_download().sha256
    return checked_sha256(Path(config.archive), config.allow_unverified_archive)


def _input(option: str, name: str | None) -> dict[str, str]:
    if name is None:
        return {}
    path = Path(name)
    return {option: path.name, f"{option}_sha256": digest(path)}


def _opened(
    config: PrepareConfig, progress: Progress, note: Note
) -> AbstractContextManager[Source]:
    if config.source == "yelp":
        return yelp_source(config, progress)
    if config.source == "csv":
        return nullcontext(_users_own(config, note))
    return nullcontext(sample_source(config.seed))


def _users_own(config: PrepareConfig, note: Note) -> Source:
    """Return the rows of `train_file` and, if given, `test_file`."""
    assert config.train_file is not None  # PrepareConfig checks this.
    train, test = Path(config.train_file), config.test_file and Path(config.test_file)
    files = train.name if not test else f"{train.name} and {test.name}"
    return Source(
        description=f"your own texts ({files})",
        train=_part(train, config, note),
        test=_part(test, config, note) if test else None,
    )


def _part(path: Path, config: PrepareConfig, note: Note) -> Part:
    delimiter = delimiter_character(config.delimiter)
    reading = Reading(config.text_column, config.label_column, delimiter, config.encoding)
    return Part(path, read_rows(path, reading, note))


def _split(source: Source, config: PrepareConfig, progress: Progress) -> _Data:
    rows = gather(source.train, "training", progress)
    test = gather(source.test, "test", progress) if source.test else None
    order = class_order(source.train, rows)
    labels = class_numbers(source.train, rows, order)
    given: dict[str, list[tuple[int, bytes]]] = {}
    if source.test and test:
        numbers = class_numbers(source.test, test, order)
        given["test"] = list(zip(numbers, test.texts, strict=True))
    kept = rows_to_keep(rows.texts, test.texts if test else (), config.drop_duplicates)
    splits = given | _held_out(source.train, [(labels[r], rows.texts[r]) for r in kept], config)
    found = findings(rows, test) | {"dropped_rows": len(labels) - len(kept)}
    return _Data({name: splits[name] for name in SPLITS if name in splits}, order, found)


def _held_out(
    part: Part, rows: list[tuple[int, bytes]], config: PrepareConfig
) -> dict[str, list[tuple[int, bytes]]]:
    """Split the training rows that were kept; return the rows of each split, keyed by its name."""
    labels, texts = [label for label, _ in rows], [text for _, text in rows]
    _check_kept(part, labels)
    shares = {"test": config.test_fraction, "dev": config.dev_fraction}
    shares = {name: share for name, share in shares.items() if share}
    splits = split_rows(texts, labels, shares, config.seed)
    for name in shares:
        if not splits[name]:
            raise InputError(
                f"has too few different texts to hold out any of them as {name}.tsv",
                "add rows with other texts: rows with the same text stay in one split",
                path=part.where,
            )
    return {name: [rows[number] for number in split] for name, split in splits.items()}


def _check_kept(part: Part, labels: list[int]) -> None:
    if not labels:
        raise InputError(
            "all its texts are also in the test set",
            "choose another `test_file`, or replace the option with `test_fraction` 0.1",
            path=part.where,
        )
    if len(set(labels)) == 1:
        raise InputError(
            "has rows of only one class after duplicates are dropped",
            "add rows of other classes, or keep duplicates with `drop_duplicates=False`",
            path=part.where,
        )


def _manifest(source: Source, data: _Data, options: dict[str, Any]) -> dict[str, Any]:
    names = [source.names.get(label, label) for label in data.source_labels]
    return {
        "tool": TOOL,
        "version": __version__,
        "source": source.description,
        "labels": names,
        "source_labels": data.source_labels,
        "counts": {split: _counts(rows, names) for split, rows in data.splits.items()},
        **{key: options[key] for key in ("layout", "dev_fraction", "seed")},
        "findings": data.findings,
        "options": options,
    }


def _counts(rows: list[tuple[int, bytes]], names: list[str]) -> dict[str, Any]:
    counted = Counter(label for label, _ in rows)
    classes = {name: counted[number] for number, name in enumerate(names)}
    return {"rows": len(rows), "classes": classes}


def _write(
    folder: Path, data: _Data, words: list[str] | None, layout: str, progress: Progress
) -> dict[str, str]:
    """Write all files except the manifest; return the SHA-256 of each file, keyed by its name."""
    files = {}
    for split, rows in data.splits.items():
        path = folder / f"{split}.tsv"
        files[path.name] = write_tsv(path, split, _told(rows, path.name, progress), layout)
    if words is not None:
        path = folder / VOCABULARY
        path.write_bytes("".join(f"{word}\n" for word in words).encode())
        files[path.name] = sha256(path)
    return files


def _told(
    rows: list[tuple[int, bytes]], name: str, progress: Progress
) -> Iterator[tuple[int, bytes]]:
    for done, row in enumerate(rows, 1):
        yield row
        if done % _ROWS_A_REPORT == 0 or done == len(rows):
            progress(f"writing {name}", done, len(rows))
