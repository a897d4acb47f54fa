"""Reads texts from a folder that contains one folder, or one `.txt` file, per class."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from bertaccum.errors import InputError
from bertaccum.files import sha256
from bertaccum.progress import Note
from data_prep.text_files import ending, text_lines

# Names of folders whose texts have no class. The aclImdb data set contains one.
_UNLABELLED = frozenset({"unsup", "unlabeled", "unlabelled"})
_LAYOUT = "create one folder per class, or one .txt file per class with one text per line"
_NAMED = 3


def class_texts(folder: Path, encoding: str | None, note: Note) -> Iterator[tuple[str, str]]:
    """Yield the class and the text of each example, sorted by class name and file name.

    Args:
      folder: Contains either one folder per class with one text per file, or one `.txt` file per
        class with one text per line.
      encoding: Encoding of the files. None means the one that the byte order mark indicates, else
        UTF-8.
      note: Called with a message about each skipped folder, and one about skipped files.

    Raises:
      InputError: The folder has neither of these layouts, or a file in it is not text.
    """
    folders, files = _children(folder)
    by_folder = [path for path in folders if path.name not in _UNLABELLED]
    texts = [] if by_folder else _class_files(folder, files)
    if skipped := sorted({*files} - {*texts}):
        names = ", ".join(path.name for path in skipped[:_NAMED])
        more = f" and {len(skipped) - _NAMED} more" if len(skipped) > _NAMED else ""
        note(f"{folder}: skipped the files that are not those of a class ({names}{more})")
    if by_folder:
        for path in folders:
            if path not in by_folder:
                note(f"{path}: skipped, because its texts have no class")
        for path in by_folder:
            for text in _files(path):
                whole = "".join(line for _, line in text_lines(text, encoding))
                yield path.name, whole.rstrip("\r\n")
        return
    for path in texts:
        label = re.sub(r"(\.txt)?(\.(gz|zip))?$", "", path.name, flags=re.IGNORECASE)
        for _, line in text_lines(path, encoding):
            if line.strip():
                yield label, line.rstrip("\r\n")


def folder_digest(folder: Path) -> str:
    """Return the SHA-256, in hexadecimal, of the names and contents of the files of a folder.

    Hidden files, and folders whose name says that their texts have no class, do not count.
    """
    digest = hashlib.sha256()
    folders, files = _children(folder)
    labelled = [path for path in folders if path.name not in _UNLABELLED]
    for path in files + [file for one in labelled for file in _children(one)[1]]:
        digest.update(os.fsencode(f"{path.relative_to(folder)}\0{sha256(path)}\n"))
    return digest.hexdigest()


def _children(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders and the files in a folder, each sorted by name, without hidden ones."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        return [p for p in paths if p.is_dir()], [p for p in paths if p.is_file()]
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=folder) from error


def _files(class_folder: Path) -> list[Path]:
    folders, files = _children(class_folder)
    if folders:
        raise InputError(
            f"contains folders inside {class_folder.name}, which should contain only text files",
            f"pass the folder that contains the class folders, such as {class_folder}",
            path=class_folder.parent,
        )
    return files


def _class_files(folder: Path, files: list[Path]) -> list[Path]:
    texts = [path for path in files if ending(path) == ".txt"]
    if not texts:
        tables = ", ".join(path.name for path in files[:_NAMED])
        hint = f"pass a file in it ({tables}), or {_LAYOUT}" if tables else _LAYOUT
        raise InputError("is a folder with no class folders and no .txt files", hint, path=folder)
    return texts
