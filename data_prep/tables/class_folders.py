"""Reads texts from a folder, or a zip archive of it, with a folder or a `.txt` file per class."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertaccum.errors import InputError
from bertaccum.system.files import check_unpacked, sha256
from bertaccum.system.phrases import listed
from bertaccum.system.progress import Note
from data_prep.tables.text_files import TABLE_ENDINGS, ending, text_lines, zip_members

# Names of folders whose texts have no class. The aclImdb data set contains one.
_UNLABELLED = frozenset({"unsup", "unlabeled", "unlabelled"})
_LAYOUT = "create one folder per class, or one .txt file per class with one text per line"
_NAMED, _MANY = 3, 20

# A folder on the disk or in a zip archive, or a file in it.
Node = Path | zipfile.Path


def class_root(path: Path) -> Node | None:
    """Return the folder that `class_texts` reads, or None if the path is that of a single file.

    In a zip archive, this is the innermost folder that contains all classes. Archives of one file
    have no such folder, nor have archives with tables but without class folders.
    """
    if path.is_dir():
        return path
    archive, names = zip_members(path)
    if archive is None or len(names) < 2:
        return None
    check_unpacked(path, sum(member.file_size for member in archive.infolist()))
    root, (folders, files) = zipfile.Path(archive), children(zipfile.Path(archive))
    while len(folders) == 1 and (not _texts(files) or children(folders[0])[0]):
        (root,) = folders
        folders, files = children(root)
    if any(Path(n.lower().removesuffix(".gz")).suffix in TABLE_ENDINGS for n in names):
        by_folder = [one for one in folders if one.name not in _UNLABELLED]
        has_texts = all(_texts(children(one)[1]) for one in by_folder)
        return root if len(by_folder) > 1 and has_texts else None
    return root if len(folders) > 1 or _texts(files) else None


def _texts(files: list[Any]) -> list[Any]:
    return [path for path in files if ending(path) == ".txt"]


def class_texts(
    folder: Node, encoding: str | None, note: Note, labeled: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield the class and the text of each example, sorted by class name and file name.

    Args:
      folder: Contains either one folder per class with one text per file, or one `.txt` file per
        class with one text per line.
      labeled: Whether the classes are used. Raises InputError at the end if the names of `.txt`
        files are probably no classes, because most of the files have only one line.
    """
    folders, files = children(folder)
    by_folder = [path for path in folders if path.name not in _UNLABELLED]
    texts = [] if by_folder else _class_files(folder, files)
    taken = {path.name for path in texts}
    if skipped := [path for path in files if path.name not in taken]:
        names = listed([path.name for path in skipped], _NAMED)
        note(f"{folder}: skipped the files that are not those of a class ({names})")
    for path in folders if by_folder else []:
        if path not in by_folder:
            note(f"{path}: skipped, because its texts have no class")
    for path, own in _by_class(folder, by_folder, note).items():
        for text in own:
            whole = "".join(line for _, line in text_lines(text, encoding))
            yield path.name, whole.rstrip("\r\n")
    counts = Counter[Node]()
    for path in texts:
        label = re.sub(r"(\.txt)?(\.(gz|zip))?$", "", path.name, flags=re.IGNORECASE)
        for _, line in text_lines(path, encoding):
            if line.strip():
                counts[path] += 1
                yield label, line.rstrip("\r\n")
    single = list(counts.values()).count(1)
    if labeled and single > max(1, len(counts) / 2):
        what = f"each .txt file is a class, but {single:,} of {len(counts):,} have only one line"
        raise InputError(what, _LAYOUT, path=str(folder))
    if labeled and len(counts) > _MANY:
        note(f"{folder}: read {len(counts):,} .txt files as classes, with one text per line")


def folder_digest(folder: Path) -> str:
    """Return the SHA-256, in hexadecimal, of the names and contents of the files of a folder.

    Hidden files, and folders whose name says that their texts have no class, do not count.
    """
    digest = hashlib.sha256()
    folders, files = children(folder)
    labelled = [path for path in folders if path.name not in _UNLABELLED]
    for path in files + [file for one in labelled for file in children(one)[1]]:
        digest.update(os.fsencode(f"{path.relative_to(folder)}\0{sha256(path)}\n"))
    return digest.hexdigest()


def children(folder: Node) -> tuple[list[Any], list[Any]]:
    """Return the folders and the files in a folder, each sorted by name, without hidden ones."""
    try:
        paths = [path for path in folder.iterdir() if not path.name.startswith((".", "__MACOSX"))]
        paths.sort(key=lambda path: path.name)
        return [p for p in paths if p.is_dir()], [p for p in paths if p.is_file()]
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=str(folder)) from error


def _by_class(folder: Node, by_folder: list[Any], note: Note) -> dict[Any, list[Any]]:
    """Return the files with the texts of each class, and note those that are skipped."""
    files, others = {path: _files(path) for path in by_folder}, list[str]()
    every = [file for own in files.values() for file in own]
    if 2 * len(_texts(every)) > len(every):  # Others are those of editors and operating systems.
        for path, own in files.items():
            if texts := _texts(own):
                files[path] = texts
                others += [f"{path.name}/{file.name}" for file in own if ending(file) != ".txt"]
    if others:
        names = listed(others, _NAMED)
        note(f"{folder}: skipped the files that do not end in .txt, unlike most files ({names})")
    return files


def _files(class_folder: Node) -> list[Node]:
    folders, files = children(class_folder)
    if folders:
        unpack = "unpack it and " if isinstance(class_folder, zipfile.Path) else ""
        what = f"contains folders inside {class_folder.name}, which should contain only text files"
        remedy = f"{unpack}pass the folder that contains the class folders, such as {class_folder}"
        raise InputError(what, remedy, path=str(class_folder.parent))
    if files and all(ending(path) in TABLE_ENDINGS for path in files):
        what = f"contains only tables in {class_folder.name}, which should contain text files"
        raise InputError(what, f"pass a table, such as {files[0]}", path=str(class_folder.parent))
    return files


def _class_files(folder: Node, files: list[Node]) -> list[Node]:
    texts = _texts(files)
    if not texts:
        tables = ", ".join(path.name for path in files[:_NAMED])
        hint = f"pass a file in it ({tables}), or {_LAYOUT}" if tables else _LAYOUT
        what = "is a folder with no class folders and no .txt files"
        raise InputError(what, hint, path=str(folder))
    return texts
