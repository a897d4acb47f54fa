"""Reads the documents of a corpus one part at a time, so that memory does not grow with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertaccum.errors import InputError
from bertaccum.options.document_names import EMPTY_LINE
from bertaccum.options.fields import AUTO
from bertaccum.system.files import open_input, refuse_special, sha256
from bertaccum.system.phrases import counted, listed
from bertaccum.system.progress import Note, Progress, ignore_note
from data_prep.tables.class_folders import children
from data_prep.tables.columns import ReadOptions
from data_prep.tables.manifest import is_prepared
from data_prep.tables.table import read_rows
from data_prep.tables.text_files import TABLE_ENDINGS, ending, is_parquet, text_lines
from data_prep.tables.texts_to_classify import is_table

# Endings of the files that are read in a folder.
_ENDINGS = TABLE_ENDINGS | {".txt", ".text", ".md"}
_PREPARED = "train.tsv"
# Maximum number of characters in a part of a document.
_LONGEST_PART = 1 << 14
_PACKED = (".gz", ".zip")
_TEXTS = ReadOptions(label_column=None)


@dataclass(frozen=True)
class Corpus:
    """Files of documents: plain text, or tables with a column of texts."""

    files: tuple[Path, ...]
    # How tables are read, without a label column.
    reading: ReadOptions = _TEXTS
    # End of a document in plain text: `line`, `empty-line`, or `auto` for the latter in files
    # with empty lines between others.
    documents: str = AUTO

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def text_bytes(self) -> int | None:
        """The size of all texts; None if it is unknown, because files are compressed."""
        packed = any(path.suffix.lower() in _PACKED or is_parquet(path) for path in self.files)
        return None if packed else self.size_bytes

    def identity(self, progress: Progress) -> list[object]:
        """Return values for JSON that differ for corpora with other documents."""
        done, total = 0, self.size_bytes

        def report(count: int) -> None:
            nonlocal done
            done += count
            progress("reading the corpus (MiB)", done >> 20, total >> 20)

        files = [[ending(p), is_prepared(p), sha256(p, report)] for p in self.files]
        reading = self.reading
        columns = [reading.text_column, reading.text_pair_column]
        return [files, *columns, reading.delimiter, reading.encoding, self.documents]

    def parts(self, note: Note = ignore_note) -> Iterator[tuple[int, str]]:
        """Yield the number of a document, counted from 0, and a part of its text, in order.

        Parts end between words. Documents without visible text are skipped.

        Raises:
          InputError: A file cannot be read or contains no text.
        """
        tables = [path for path in self.files if is_table(path, self.reading)]
        plain = [path for path in self.files if path not in set(tables)]
        by_empty_lines = [path for path in plain if self._has_empty_lines(path)]
        if plain and self.documents == AUTO:
            lines, others = len(plain) - len(by_empty_lines), len(by_empty_lines)
            ways = [f"lines in {counted(lines, 'file')} of text"] if lines else []
            ways += [f"separated by empty lines in {counted(others, 'file')}"] if others else []
            note(f"documents are {', and '.join(ways)}; `documents` chooses one for all files")
        known, separated, number = set(tables), set(by_empty_lines), -1
        for path in self.files:
            last = None
            found = (
                self._rows(path, note) if path in known else self._lines(path, path in separated)
            )
            for key, text in found:
                if not text.strip():
                    continue
                number += key != last
                last = key
                for part in _parts(text):
                    yield number, part
            if last is None:
                raise InputError("contains no text", "add text or omit the file", path=path)

    def _rows(self, path: Path, note: Note) -> Iterator[tuple[int, str]]:
        for row in read_rows(path, self.reading, note):
            yield row.row, row.text
            yield row.row, row.pair or ""

    def _lines(self, path: Path, by_empty_lines: bool) -> Iterator[tuple[int, str]]:
        number = 0
        for _, line in text_lines(path, self.reading.encoding):
            number += not by_empty_lines or not line.strip()
            yield number, line

    def _has_empty_lines(self, path: Path) -> bool:
        """Return whether empty lines separate the documents of a plain text file."""
        if self.documents != AUTO:
            return self.documents == EMPTY_LINE
        visible = (bool(line.strip()) for _, line in text_lines(path, self.reading.encoding))
        # Each call continues where the one before stopped: a line, an empty one and another one.
        return any(visible) and not all(visible) and any(visible)


def find_corpus(
    paths: Sequence[Path],
    reading: ReadOptions = _TEXTS,
    documents: str = AUTO,
    note: Note = ignore_note,
) -> Corpus:
    """Return the corpus of some files and folders.

    Args:
      paths: Plain text files, tables, or folders with such files, also in folders inside. Only the
        train.tsv of a data folder that `prepare` wrote is read.

    Raises:
      InputError: A file is missing or empty, or a folder has no such file.
    """
    files: list[Path] = []
    for path in paths:
        found = _files_of(path, note) if path.is_dir() else [path]
        if not found:
            hint = f"add files with one of the endings {', '.join(sorted(_ENDINGS))}"
            raise InputError("contains no text files", hint, path=path)
        files += found
    different = dict[Path, Path]()
    for path in files:
        different.setdefault(path.resolve(), path)  # Links may lead to the same file.
        refuse_special(path)
        with open_input(path) as file:
            if not file.read(1):
                raise InputError("is empty", "add text or omit the file", path=path)
    return Corpus(tuple(different.values()), reading, documents)


def _files_of(folder: Path, note: Note, above: frozenset[Path] = frozenset()) -> list[Path]:
    if is_prepared(folder / _PREPARED):
        note(f"{folder}: reads only {_PREPARED}, so that the other texts stay unseen")
        return [folder / _PREPARED]
    folders, files = children(folder)
    found = [path for path in files if ending(path) in _ENDINGS]
    if skipped := [path.name for path in files if path not in set(found)]:
        note(f"{folder}: skipped files that are neither text nor tables ({listed(skipped)})")
    if broken := [p.name for p in sorted(folder.iterdir()) if p.is_symlink() and not p.exists()]:
        note(f"{folder}: skipped links to what does not exist ({listed(broken)})")
    # A link to a folder could lead back to one above it.
    above |= {folder.resolve()}
    inside = [_files_of(path, note, above) for path in folders if path.resolve() not in above]
    return [path for some in inside for path in some] + found


def _parts(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _LONGEST_PART:
        end = text.rfind(" ", start, start + _LONGEST_PART)
        end = end + 1 if end > start else start + _LONGEST_PART
        yield text[start:end]
        start = end
    yield text[start:]
