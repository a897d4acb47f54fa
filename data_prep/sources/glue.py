"""The folders of GLUE and XNLI, as downloaded, as a source of `prepare`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from bertaccum.errors import ConfigError, InputError
from bertaccum.options.prepare import PrepareConfig
from bertaccum.options.task_names import CLASSIFICATION, REGRESSION
from bertaccum.system.files import sha256
from bertaccum.system.progress import Note, Progress, ignore_note
from data_prep.sources import glue_tables
from data_prep.sources.glue_tables import COLA, MRPC, XNLI, GlueTask, glue_rows
from data_prep.sources.published_splits import check_fractions
from data_prep.tables.rows import Part, Row, Source
from data_prep.tables.text_files import text_lines

_GLUE_SITE, _XNLI_SITE = "gluebenchmark.com", "the XNLI page of its authors"
_CORPUS_TRAIN = "in_domain_train.tsv"
_CORPUS_DEV = ("in_domain_dev.tsv", "out_of_domain_dev.tsv")
_MSR_TRAIN, _MSR_TEST = "msr_paraphrase_train.txt", "msr_paraphrase_test.txt"
_DEV_IDS = ("dev_ids.tsv", "mrpc_dev_ids.tsv")
_ENGLISH = "en"


def glue_options(config: PrepareConfig) -> dict[str, Any]:
    """Return the options and the checksums of the files that determine the result."""
    task = _task_of(config)
    options: dict[str, Any] = {"dataset": task.name}
    if task is XNLI:
        options["language"] = config.language or _ENGLISH
    parts = _parts(config, task, ignore_note).values()
    paths = dict.fromkeys(path for part in parts for path in part.files)
    return options | {f"{path.name}_sha256": sha256(path) for path in paths}


def glue_source(config: PrepareConfig, _: Progress, note: Note) -> Source:
    """Return the rows of a folder of GLUE; its dev and test sets become splits."""
    task = _task_of(config)
    parts = _parts(config, task, note)
    check_fractions(parts, config, task.name)
    if "dev" not in parts:
        missing = f"{parts['train'].files[0].parent}: there is no {_DEV_IDS[0]}"
        note(f"{missing}, so `dev_fraction` of the training rows become dev.tsv")
    language = f" in the language {config.language or _ENGLISH}" if task is XNLI else ""
    return Source(
        description=f"{task.name}{language}, as downloaded",
        train=parts.pop("train"),
        given=parts,
        task=CLASSIFICATION if task.classes else REGRESSION,
        order=task.classes,
        facts=task.facts(task.classes),
    )


def _task_of(config: PrepareConfig) -> GlueTask:
    assert config.dataset is not None  # PrepareConfig checks this.
    task = glue_tables.TASKS_OF_GLUE.get(glue_tables.plain_name(config.dataset))
    if task is None:
        names = ", ".join(task.name.lower() for task in glue_tables.TASKS_OF_GLUE.values())
        raise ConfigError(f"`dataset` {config.dataset} is unknown", f"choose one of {names}")
    if task is not XNLI and config.language is not None:
        what = f"`language` cannot be used with `dataset` {task.name}"
        raise ConfigError(what, "omit `language`")
    return task


def _parts(config: PrepareConfig, task: GlueTask, note: Note) -> dict[str, Part]:
    """Return the rows of each split; a file is not read before its rows are."""
    assert config.folder is not None  # PrepareConfig checks this.
    root = Path(config.folder)
    if not root.is_dir():
        raise InputError("there is no such folder", "check `folder`", path=root)
    if task is XNLI:
        return _xnli_parts(root, config.language or _ENGLISH, note)
    folder = _own_folder(root, task)
    if task is MRPC and (folder / _MSR_TRAIN).exists() and not (folder / "train.tsv").exists():
        return _microsoft_parts(folder, note)
    if task is COLA and (folder / _CORPUS_TRAIN).exists() and not (folder / "train.tsv").exists():
        return _corpus_parts(folder, note)
    paths = {split: _existing([folder / name], task) for split, name in task.files.items()}
    return {split: _part(path, task, note, "test" not in split) for split, path in paths.items()}


def _own_folder(root: Path, task: GlueTask) -> Path:
    """Return the folder of a data set, which is `root` or a folder in it."""
    plain_name, inside = glue_tables.plain_name, filter(Path.is_dir, sorted(root.iterdir()))
    return next((path for path in inside if plain_name(path.name) == plain_name(task.name)), root)


def _existing(candidates: list[Path], task: GlueTask) -> Path:
    for path in candidates:
        if path.is_file():
            return path
    site = _XNLI_SITE if task is XNLI else _GLUE_SITE
    remedy = f"download {task.name} from {site} and pass its folder with `folder`"
    raise InputError("there is no such file", remedy, path=candidates[0])


def _part(path: Path, task: GlueTask, note: Note, labeled: bool = True) -> Part:
    rows = glue_rows(path, task, note, labeled)
    return Part(path, rows, may_lack_labels=not labeled, files=[path])


def _corpus_parts(folder: Path, note: Note) -> dict[str, Part]:
    """Return the rows of the CoLA corpus, of which GLUE's are copies; it has no test set."""
    dev = [_existing([folder / name], COLA) for name in _CORPUS_DEV]
    rows = chain.from_iterable(glue_rows(path, COLA, note) for path in dev)
    train = _part(folder / _CORPUS_TRAIN, COLA, note)
    return {"train": train, "dev": Part(dev[0], rows, files=dev)}


def _microsoft_parts(folder: Path, note: Note) -> dict[str, Part]:
    """Return the rows of Microsoft's corpus; GLUE's list of identifiers makes some rows dev."""
    train, test = folder / _MSR_TRAIN, _existing([folder / _MSR_TEST], MRPC)
    listed = [folder / name for name in _DEV_IDS if (folder / name).is_file()][:1]
    pairs = {tuple(line.split()) for path in listed for _, line in text_lines(path)}

    def rows(is_dev: bool) -> Iterator[Row]:
        columns = ("#1 ID", "#2 ID")
        return glue_rows(
            train, MRPC, note, columns=columns, keep=lambda cells: (tuple(cells) in pairs) == is_dev
        )

    parts = {"train": Part(train, rows(False), files=[train, *listed])}
    parts |= {"test": _part(test, MRPC, note, False)}
    return parts | ({"dev": Part(train, rows(True), files=[train])} if listed else {})


def _xnli_parts(root: Path, language: str, note: Note) -> dict[str, Part]:
    name = f"multinli/multinli.train.{language}.tsv"
    train = _existing([root / "XNLI-MT-1.0" / name, root / name], XNLI)
    dev, test = (
        _existing([root / "XNLI-1.0" / f"xnli.{split}.tsv", root / f"xnli.{split}.tsv"], XNLI)
        for split in ("dev", "test")
    )
    # The training files have other names for the same columns.
    translated = dataclasses.replace(XNLI, texts=("premise", "hypo"), label="label")
    return {
        "train": _part(train, translated, note),
        "dev": Part(dev, _language_rows(dev, language), files=[dev]),
        "test": Part(test, _language_rows(test, language), files=[test]),
    }


def _language_rows(path: Path, language: str) -> Iterator[Row]:
    """Yield the rows of XNLI's dev or test file in one language."""
    languages: set[str] = set()

    def is_wanted(cells: list[str]) -> bool:
        languages.update(cells)
        return cells == [language]

    yield from glue_rows(path, XNLI, columns=["language"], keep=is_wanted)
    if language not in languages:
        what = f"has no rows in the `language` {language!r}"
        raise InputError(what, f"choose one of {', '.join(sorted(languages))}", path=path)
