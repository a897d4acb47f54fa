"""Paths by which users name a checkpoint: of its folder, its files or their prefix."""

from __future__ import annotations

import re
from pathlib import Path

from bertaccum.bert.model_source import RUN_PREFIX
from bertaccum.bert.weight_files import means_folder
from bertaccum.errors import InputError

# Prefix of the weight files in Google's releases.
RELEASED_PREFIX = "bert_model.ckpt"
# TensorFlow adds these suffixes to the prefix of a checkpoint's files.
_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})")
# A folder has only one of each of these files, so the path of such a file means the folder.
_IN_FOLDER = re.compile(
    r"(bert_)?config\.json|vocab\.txt|tokenizer(_config)?\.json|checkpoint|config\.yaml"
)
_LATEST = re.compile(r'^\s*model_checkpoint_path:\s*"(?:.*[/\\])?([^"/\\]+)"', re.MULTILINE)


def plain_path(named: str) -> str:
    """Return the folder, the prefix of files or the run that a path means, else the path."""
    path = Path(named)
    if path.is_file() or not path.exists():
        prefix = path.with_name(_SUFFIX.sub("", path.name)) if path.name else path
        if prefix != path and Path(f"{prefix}.index").is_file():
            path = prefix
        elif path.is_file() and (_IN_FOLDER.fullmatch(path.name) or means_folder(path.name)):
            path = path.parent
    folder = path if path.is_dir() else path.parent
    # Other programs have folders `best` and files `config.yaml` as well.
    is_of_run = (folder / f"{RUN_PREFIX}.index").is_file() and is_run(folder.parent)
    if re.fullmatch(r"best|\.best-old", folder.name) and is_of_run:
        return str(folder.parent)
    return named if path == Path(named) else str(path)


def checkpoint_home(named: str) -> str:
    """Return a checkpoint's folder, given the folder or the prefix of the checkpoint's files."""
    return str(Path(named).parent) if is_prefix(named) else named


def is_prefix(named: str) -> bool:
    """Return whether a name is the prefix of a checkpoint's files, as in TensorFlow."""
    return not Path(named).exists() and (
        Path(named).name == RELEASED_PREFIX or Path(f"{named}.index").is_file()
    )


def is_run(folder: Path) -> bool:
    """Return whether `bertaccum train` created a folder."""
    return (folder / "config.yaml").is_file()


def prefix_in(folder: Path) -> str:
    """Return the prefix of the checkpoint in a folder: TensorFlow's latest one, else the only one.

    Raises:
      InputError: The folder has several checkpoints.
    """
    state = folder / "checkpoint"
    text = state.read_bytes().decode("utf-8", "replace") if state.is_file() else ""
    prefixes = sorted(path.name.removesuffix(".index") for path in folder.glob("*.index"))
    latest = _LATEST.search(text)
    if RELEASED_PREFIX in prefixes or not prefixes:
        return RELEASED_PREFIX
    if latest and latest[1] in prefixes:
        return latest[1]
    if len(prefixes) > 1:
        more = " and more" if len(prefixes) > 5 else ""
        raise InputError(
            f"has the checkpoints {', '.join(prefixes[:5])}{more}",
            f"pass the prefix of one of them, such as {folder / prefixes[-1]}",
            path=folder,
        )
    return prefixes[0]
