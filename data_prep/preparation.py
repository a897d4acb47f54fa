"""Prepares data: reads a source, splits its texts, and writes the splits and a manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from bertaccum.options.fields import TEST_COLUMNS, named_options
from bertaccum.options.prepare import MIN_DEV_FRACTION, PrepareConfig
from bertaccum.system.atomic import new_files, write_text
from bertaccum.system.files import json_text, sha256
from bertaccum.system.progress import Note, Progress, ignore_note
from bertaccum.version import __version__
from data_prep.assembly import Assembled, SplitRows, assemble, default_dev_fraction
from data_prep.labels.kinds import LabelKind
from data_prep.sources.glue import glue_options, glue_source
from data_prep.sources.hub import hub_options, hub_source
from data_prep.sources.own_files import own_options, own_source, saved_pipes
from data_prep.sources.sample import sample_source
from data_prep.sources.tfds import tfds_options, tfds_source
from data_prep.sources.yelp import yelp_options, yelp_source
from data_prep.tables.manifest import (
    MANIFEST,
    TOOL,
    VOCABULARY,
    earlier_manifest,
    is_unchanged,
    refuse_input,
)
from data_prep.tables.rows import Source
from data_prep.tables.tsv import Lines, write_tsv

_ROWS_A_REPORT = 1000
# Sources with splits that are kept as they were published, unless `drop_duplicates` is set.
_PUBLISHED = ("glue", "tfds", "hub")
# Options that the manifest records only if they are set.
_ONLY_IF_SET = (
    *("text_pair_column", "weight_column", "task", "label_columns", "label_separator"),
    *("labels_as_written", "tag_names", *TEST_COLUMNS),
)

# For each source, functions that return the options that determine the result, and the rows.
_SOURCES: dict[str, tuple[Callable[..., dict[str, Any]], Callable[..., Any]]] = {
    "yelp": (yelp_options, yelp_source),
    "csv": (own_options, own_source),
    "glue": (glue_options, glue_source),
    "tfds": (tfds_options, tfds_source),
    "hub": (hub_options, hub_source),
    "sample": (lambda config: {}, lambda config, *_: sample_source(config.seed)),
}

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


def prepare(
    config: PrepareConfig,
    progress: Progress,
    learn_vocabulary: LearnVocabulary,
    note: Note = ignore_note,
) -> PrepareResult:
    """Write train.tsv, dev.tsv, test.tsv and manifest.json.

    No text of the training rows occurs in another split, unless `drop_duplicates=False` keeps rows
    whose text is also in the test set; this is the default for the published splits of
    `source="glue"`, `source="tfds"` and `source="hub"`. With `source="csv"`, test.tsv is written
    only if `test_file` or `test_fraction` is given.

    Args:
      learn_vocabulary: Returns a WordPiece vocabulary for texts. It is called only for
        `source="sample"`, with the training texts; the vocabulary is written to vocab.txt.

    Raises:
      ConfigError: `prepare` must not write to the folder, or an option does not suit the source.
      RunError: The files cannot be written.
    """
    with saved_pipes(config, note) as (config, note):
        if config.drop_duplicates is None and config.source in _PUBLISHED:
            config = dataclasses.replace(config, drop_duplicates=False)
        if config.dev_fraction is None and config.source == "yelp":
            config = dataclasses.replace(config, dev_fraction=MIN_DEV_FRACTION)
        folder = Path(config.data_folder)
        earlier = earlier_manifest(folder)
        options = _options(config)
        same = _same_share(config, earlier) if earlier and earlier["options"] else {}
        if earlier is not None and is_unchanged(folder, earlier, options | same, config.overwrite):
            return PrepareResult(folder, earlier, unchanged=True)
        opened = _SOURCES[config.source][1](config, progress, note)
        with nullcontext(opened) if isinstance(opened, Source) else opened as source:
            for part in (source.train, *source.given.values()):
                for path in (part.where, *part.files):
                    if isinstance(path, Path):
                        refuse_input(path, folder)
            data = assemble(source, config, progress, note)
        manifest = _manifest(source, data, options)
        texts = (text.decode() for text in data.splits["train"].texts)
        words = learn_vocabulary(texts) if config.source == "sample" else None
        with new_files(folder, MANIFEST, earlier["files"] if earlier else ()) as temporary:
            manifest["files"] = _write(temporary, data, words, config.layout, progress)
            write_text(temporary / MANIFEST, json_text(manifest))
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
    options |= _SOURCES[config.source][0](config)
    given = named_options(config)
    return options | {name: given[name] for name in _ONLY_IF_SET if name in given}


def _same_share(config: PrepareConfig, earlier: dict[str, Any]) -> dict[str, Any]:
    """Return an earlier `dev_fraction` if this one holds out the same rows, else no option."""
    # Unset and 0.01 are the same for many rows.
    test_fraction, counts = config.test_fraction, earlier.get("counts", {})
    held_out = ("train", "dev", "test") if test_fraction else ("train", "dev")
    rows = sum(counts[split]["rows"] for split in held_out if split in counts)
    share = config.dev_fraction or default_dev_fraction(rows, test_fraction)
    # The findings contain this if the source has its own dev set.
    is_own = config.dev_fraction is None and "also_in_dev" in earlier.get("findings", {})
    same = is_own or share == earlier.get("dev_fraction")
    return {"dev_fraction": earlier["options"].get("dev_fraction")} if same else {}


def _manifest(source: Source, data: Assembled, options: dict[str, Any]) -> dict[str, Any]:
    names = [source.names.get(label, label) for label in data.kind.labels]
    label_format = {} if source.joined else data.kind.format.record()
    return {
        "tool": TOOL,
        "version": __version__,
        "source": source.description,
        "task": data.kind.task,
        "labels": names,
        "source_labels": data.kind.labels,
        **({"label_format": label_format} if label_format else {}),
        "counts": {split: _counts(rows, data.kind, names) for split, rows in data.splits.items()},
        **source.facts,
        "layout": options["layout"],
        "dev_fraction": data.dev_fraction,
        "seed": options["seed"],
        "findings": data.findings,
        "options": options,
    }


def _counts(rows: SplitRows, kind: LabelKind, names: list[str]) -> dict[str, Any]:
    return {"rows": len(rows.texts)} if rows.labels is None else kind.counts(rows.labels, names)


def _write(
    folder: Path, data: Assembled, words: list[str] | None, layout: str, progress: Progress
) -> dict[str, str]:
    """Write all files except the manifest; return the SHA-256 of each file, keyed by its name."""
    files = {}
    for split, rows in data.splits.items():
        path = folder / f"{split}.tsv"
        lines = zip(rows.labels or repeat(None), rows.texts, strict=False)
        reported = _reporting(lines, len(rows.texts), path.name, progress)
        files[path.name] = write_tsv(path, split, reported, layout, rows.columns)
    if words is not None:
        path = folder / VOCABULARY
        path.write_bytes("".join(f"{word}\n" for word in words).encode())
        files[path.name] = sha256(path)
    return files


def _reporting(rows: Lines, total: int, name: str, progress: Progress) -> Lines:
    for done, row in enumerate(rows, 1):
        yield row
        if done % _ROWS_A_REPORT == 0 or done == total:
            progress(f"writing {name}", done, total)
