"""Folders of texts by class: a folder a class, a text a file; or a file a class, a text a line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from bertaccum.errors import InputError
from bertaccum.files import sha256
from bertaccum.progress import Note
from data_prep.text_files import ending, text_lines

# Folders of texts without classes, as in the aclImdb data.
_UNLABELLED = frozenset({"unsup", "unlabeled", "unlabelled"})
_LAYOUT = "give a folder for each class, or a .txt file for each with one text a line"
_NAMED = 3


def class_texts(folder: Path, encoding: str | None, note: Note) -> Iterator[tuple[str, str]]:
    """Yield the class and the text of each example, class by class, by name.

    Args:
      folder: holds either a folder for each class with one text in each file, or a `.txt` file
        for each class with one text on each line.
      encoding: of the files; by default UTF-8, or what their byte order marks say.
      note: is told which classes there are and what is left out.

    Raises:
      InputError: it holds neither, or a file in it is not text.
    """
    folders, files = _children(folder)
    by_folder = [path for path in folders if path.name not in _UNLABELLED]
    if by_folder:
        for path in folders:
            if path not in by_folder:
                note(f"{path}: left out, its texts have no class")
        if files:
            names = ", ".join(path.name for path in files[:_NAMED])
            more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
            note(f"{folder}: files beside the class folders are left out ({names}{more})")
        for path in by_folder:
            for text in _files(path):
                whole = "".join(line for _, line in text_lines(text, encoding))
                yield path.name, whole.rstrip("\r\n")
        return
    for path in _class_files(folder, files):
        for _, line in text_lines(path, encoding):
            if line.strip():
                yield path.name.split(".")[0], line.rstrip("\r\n")


def folder_digest(folder: Path) -> str:
    """Return a SHA-256 of the names and contents of all texts in a folder."""
    digest = hashlib.sha256()
    folders, files = _children(folder)
    labelled = [path for path in folders if path.name not in _UNLABELLED]
    for path in files + [file for one in labelled for file in _children(one)[1]]:
        digest.update(f"{path.relative_to(folder)}\0{sha256(path)}\n".encode())
    return digest.hexdigest()


def _children(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders and the files in a folder, by name; hidden ones do not count."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        return [p for p in paths if p.is_dir()], [p for p in paths if p.is_file()]
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=folder) from error


def _files(class_folder: Path) -> list[Path]:
    folders, files = _children(class_folder)
    if folders:
        raise InputError(
            f"holds folders in its folder {class_folder.name}, where texts of one class should be",
            f"name the folder that holds the classes, such as {class_folder}",
            path=class_folder.parent,
        )
    return files


def _class_files(folder: Path, files: list[Path]) -> list[Path]:
    texts = [path for path in files if ending(path) == ".txt"]
    if not texts:
        tables = ", ".join(path.name for path in files[:_NAMED])
        hint = f"name a file in it ({tables}), or {_LAYOUT}" if tables else _LAYOUT
        raise InputError("is a folder without classes", hint, path=folder)
    return texts
