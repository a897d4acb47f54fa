"""Checkpoints on the Hugging Face Hub: which of a repository's files are downloaded."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from pathlib import Path

from bertaccum.bert.checkpoint_files import SHARDS, WEIGHT_FILES, WEIGHTS, refuse_names
from bertaccum.bert.encoder_config import read_bert_config
from bertaccum.bert.google_checkpoint import DIMENSIONS
from bertaccum.bert.huggingface_folder import (
    CONFIG,
    HUGGINGFACE,
    other_model,
    read_huggingface_config,
)
from bertaccum.bert.presets import PUBLISHED
from bertaccum.bert.tokenizer_files import FILES as TOKENIZER_FILES
from bertaccum.bert.tokenizer_files import TOKENIZER, WORDS
from bertaccum.bert.unknown_model import unsupported
from bertaccum.errors import InputError
from bertaccum.system import hub
from bertaccum.system.hub_errors import UnknownRepositoryError, UnreachableError
from bertaccum.system.hub_names import Repository, model_named
from bertaccum.system.progress import Progress

_GOOGLE_WEIGHTS = ("*.ckpt*.index", "*.ckpt*.data-*-of-*", "checkpoint")


def pinned(named: str, progress: Progress) -> str:
    """Return the name of a checkpoint; a name on the Hub gets the commit that it stands for."""
    found = model_named(named)
    return named if found is None else _resolved(found, progress).pinned


def fetch_checkpoint(
    repository: Repository, progress: Progress, needs_vocabulary: bool
) -> tuple[Path, Repository]:
    """Return the folder of a checkpoint, downloading it unless it is in the cache; and its commit.

    The weights are downloaded last, after everything that tells that they cannot be used.

    Raises:
      InputError: The repository has no BERT model that can be read, or cannot be reached.
    """
    repository, folder, names = _described(repository, progress)
    vocabularies = [name for name in (WORDS, TOKENIZER) if name in names]
    if needs_vocabulary and not vocabularies:
        what, remedy = f"has no {WORDS} or {TOKENIZER}", "pass the model's vocabulary with `vocab`"
        raise InputError(what, remedy, path=str(repository))
    for name in [*(n for n in TOKENIZER_FILES if n in names), *_weights(names, repository)]:
        hub.fetch(repository, name, progress)
    return folder, repository


def fetch_config(repository: Repository, progress: Progress) -> tuple[Path, Repository]:
    """Return the folder of a checkpoint, with at least its configuration, and its commit."""
    repository, folder, _ = _described(repository, progress)
    return folder, repository


def is_downloaded(folder: Path) -> bool:
    """Return whether a folder in the cache has everything that training needs."""
    try:
        HUGGINGFACE.check(folder, "", True)
    except (InputError, FileNotFoundError):
        return False
    return any((folder / name).is_file() for name in (WORDS, TOKENIZER))


def _resolved(repository: Repository, progress: Progress) -> Repository:
    try:
        return hub.resolve(repository, progress)
    except (UnknownRepositoryError, UnreachableError) as error:
        close = difflib.get_close_matches(repository.name, PUBLISHED, n=1, cutoff=0.8)
        remedy = error.hint
        if other := other_model(repository.name):
            remedy = unsupported(*other)
        elif close and isinstance(error, UnknownRepositoryError):
            remedy = f"did you mean {close[0]}?"
        raise InputError(error.message, remedy, path=error.path) from None


def _described(repository: Repository, progress: Progress) -> tuple[Repository, Path, list[str]]:
    """Return a repository with its commit, its folder and the names of its files.

    The configuration has been downloaded, and describes a BERT model.
    """
    repository = _resolved(repository, progress)
    folder = hub.snapshot(repository)
    # Commits never change, so complete downloads need no network.
    names = (
        [path.name for path in folder.iterdir()]
        if is_downloaded(folder)
        else hub.file_names(repository, progress)
    )
    _weights(names, repository)
    readers = {CONFIG: read_huggingface_config, DIMENSIONS: read_bert_config}
    config = next((name for name in readers if name in names), None)
    if config is None:
        raise InputError(f"has no {CONFIG}", "choose another model", path=str(repository))
    path = hub.fetch(repository, config, progress)
    try:
        readers[config](path)
    except InputError as error:
        raise InputError(error.message, error.hint, path=f"{repository}/{config}") from None
    return repository, folder, names


def _weights(names: list[str], repository: Repository) -> list[str]:
    """Return the files with the weights: safetensors if there are any, then PyTorch's, Google's."""
    first = next((name for name in WEIGHT_FILES if name in names), None)
    if first is not None:
        kind = first.split(".")[0]
        shards = [n for n in names for pattern in SHARDS if fnmatchcase(n, pattern)]
        return [first, *(n for n in shards if n.startswith(kind) and first not in shards)]
    google = [n for n in names if "/" not in n and any(fnmatchcase(n, p) for p in _GOOGLE_WEIGHTS)]
    if google:
        return google
    refuse_names(names, str(repository))
    what = f"has no {WEIGHTS}, only {', '.join(names[:8])}"
    raise InputError(what, "choose a model with weights in that format", path=str(repository))
