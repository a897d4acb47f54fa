"""Checkpoints on the Hugging Face Hub: which of a repository's files are downloaded."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
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

_READERS = {CONFIG: read_huggingface_config, DIMENSIONS: read_bert_config}
_GOOGLE_WEIGHTS = ("*.ckpt*.index", "*.ckpt*.data-*-of-*", "checkpoint")


@dataclass(frozen=True)
class HubCheckpoint:
    """A checkpoint in a repository, of which the configuration has been downloaded.

    Args:
      repository: The repository with its commit.
      folder: The commit's folder in the cache. Other programs share it, so it may contain files
        that are not listed here.
      tokenizer: Names of the tokenizer's files.
      weights: Names of the files with the weights.
    """

    repository: Repository
    folder: Path
    tokenizer: list[str]
    weights: list[str]

    @property
    def weights_file(self) -> str | None:
        """Name of the weights, or of their index, in Hugging Face's format; None for Google's."""
        return self.weights[0] if self.weights[0] in WEIGHT_FILES else None

    @property
    def has_vocabulary(self) -> bool:
        """Whether the repository has a vocabulary."""
        return WORDS in self.tokenizer or TOKENIZER in self.tokenizer

    @property
    def is_downloaded(self) -> bool:
        """Whether the cache has everything that training needs."""
        names = [*self.tokenizer, *self.weights]
        return self.has_vocabulary and all((self.folder / name).is_file() for name in names)


def pinned(named: str, progress: Progress) -> str:
    """Return the name of a checkpoint; a name on the Hub gets the commit that it stands for."""
    found = model_named(named)
    return named if found is None else _resolved(found, progress).pinned


def fetch_checkpoint(
    repository: Repository, progress: Progress, has_dimensions: bool, has_vocabulary: bool
) -> HubCheckpoint:
    """Return a checkpoint, downloading everything that training needs unless it is in the cache.

    The weights are downloaded last, after everything that tells that they cannot be used. For the
    arguments, see `describe_checkpoint`.

    Raises:
      InputError: The repository has no BERT model that can be read, or cannot be reached.
    """
    found = describe_checkpoint(repository, progress, has_dimensions, has_vocabulary)
    for name in (*found.tokenizer, *found.weights):
        hub.fetch(found.repository, name, progress)
    return found


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


def describe_checkpoint(
    repository: Repository, progress: Progress, has_dimensions: bool, has_vocabulary: bool
) -> HubCheckpoint:
    """Return a checkpoint, of which only the configuration is downloaded.

    Args:
      has_dimensions: Whether options select the dimensions, which Google's weights then need not.
      has_vocabulary: Whether options select the vocabulary.

    Raises:
      InputError: As for `fetch_checkpoint`.
    """
    repository = _resolved(repository, progress)
    folder = hub.snapshot(repository)
    names = _names(repository, folder, progress)
    weights = _weights(names, repository)
    of_google = weights[0] not in WEIGHT_FILES
    config = DIMENSIONS if of_google else CONFIG
    if config in names:
        path = hub.fetch(repository, config, progress)
        try:
            _READERS[config](path)
        except InputError as error:
            raise InputError(error.message, error.hint, path=f"{repository}/{config}") from None
    elif not of_google:
        raise InputError(f"has no {config}", "choose another model", path=str(repository))
    elif not has_dimensions:
        remedy = "pass that of the pretrained model with `bert_config`"
        raise InputError(f"has no {config}", remedy, path=str(repository))
    tokenizer = [name for name in TOKENIZER_FILES if name in names]
    found = HubCheckpoint(repository, folder, tokenizer, weights)
    if not (has_vocabulary or found.has_vocabulary):
        what, remedy = f"has no {WORDS} or {TOKENIZER}", "pass the model's vocabulary with `vocab`"
        raise InputError(what, remedy, path=str(repository))
    return found


def _names(repository: Repository, folder: Path, progress: Progress) -> list[str]:
    """Return the names of a commit's files."""
    # Other programs may have downloaded only some of the files, such as the weights in one of two
    # formats, so the files in the cache count only if the Hub does not tell the names.
    try:
        return hub.file_names(repository, progress)
    except InputError:
        if not _has_model(folder):
            raise
        return [path.name for path in folder.iterdir()]


def _has_model(folder: Path) -> bool:
    try:
        HUGGINGFACE.check(folder, "", True)
    except (InputError, FileNotFoundError):
        return False
    return any((folder / name).is_file() for name in (WORDS, TOKENIZER))


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
