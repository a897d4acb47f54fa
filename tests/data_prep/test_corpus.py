"""Documents of a corpus: plain text, tables and folders, read one part at a time."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from preparing import run

from bertaccum.errors import BertAccumError, InputError
from bertaccum.system.progress import silent
from data_prep.tables import corpus
from data_prep.tables.columns import ReadOptions
from data_prep.tables.corpus import find_corpus

TEXTS = ReadOptions(label_column=None)


def documents(*paths: Path, reading: ReadOptions = TEXTS, by: str = "auto") -> list[list[str]]:
    """Return the parts of each document without spaces at their ends."""
    found: list[list[str]] = []
    for number, text in find_corpus(paths, reading, by).parts():
        assert number in (len(found) - 1, len(found))
        if number == len(found):
            found.append([])
        found[-1].append(text.strip())
    return found


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_lines_are_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\n\n one\ntwo, with\ttab\r\nthree\n\n")
    assert documents(path) == [["one"], ["two, with\ttab"], ["three"]]


def test_empty_lines_separate_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\ntwo\n \n\nthree\n")
    assert documents(path) == [["one", "two"], ["three"]]
    assert documents(path, by="line") == [["one"], ["two"], ["three"]]
    lines = write(tmp_path / "b.txt", "one\ntwo\n")
    assert documents(lines, by="empty-line") == [["one", "two"]]
    notes: list[str] = []
    assert len(list(find_corpus([path, lines]).parts(notes.append))) == 5
    assert notes == [
        "documents are lines in 1 file of text, and separated by empty lines in 1 file;"
        " `documents` chooses one for all files"
    ]


def test_documents_of_several_files_are_numbered(tmp_path: Path) -> None:
    first = write(tmp_path / "a.txt", "one\ntwo\n\nthree\n")
    assert documents(first, write(tmp_path / "b", "four\n"), first) == [
        ["one", "two"],
        ["three"],
        ["four"],
    ]


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("a.csv", 'n,review\n1,"one, ""and\nmore"\n2,two\n3,\n', "text"),
        ("a.csv", 'x,y\n1,"one, ""and\nmore"\n2,two\n', "y"),
        ("a.tsv", 'text\tn\n"one, ""and\nmore"\t1\ntwo\t2\n', "text"),
        ("a.jsonl", '{"text": "one, \\"and\\nmore"}\n{"text": null}\n{"text": "two"}\n', "text"),
        ("a.jsonl", '{"a": {"b": "one, \\"and\\nmore"}}\n{"a": {"b": "two"}}\n', "a.b"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_rows_of_tables_are_documents(
    tmp_path: Path, name: str, content: str, column: str, packed: bool
) -> None:
    raw = content.encode()
    path = write(tmp_path / f"{name}{'.gz' * packed}", gzip.compress(raw) if packed else raw)
    reading = ReadOptions(text_column=column, label_column=None)
    assert documents(path, reading=reading) == [['one, "and\nmore'], ["two"]]


def test_parquet_rows_are_documents(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["one", "", "two"]}), tmp_path / "a.parquet")
    assert documents(tmp_path / "a.parquet") == [["one"], ["two"]]


def test_compressed_and_marked_text(tmp_path: Path) -> None:
    packed = write(tmp_path / "a.txt.gz", gzip.compress("größe\nzwei\n".encode()))
    marked = write(tmp_path / "b.txt", "größe\nzwei\n".encode("utf-16"))
    latin = write(tmp_path / "c.txt", "größe\nzwei\n".encode("latin-1"))
    reading = ReadOptions(label_column=None, encoding="latin-1")
    for path, how in ((packed, TEXTS), (marked, TEXTS), (latin, reading)):
        assert documents(path, reading=how) == [["größe"], ["zwei"]]


def test_folders_are_read_in_order(tmp_path: Path) -> None:
    write(tmp_path / "c.txt", "four\n")
    write(tmp_path / "b/z.csv", "text,n\ntwo,1\n")
    write(tmp_path / "b/deep/y.txt", "one\n")
    write(tmp_path / "b.d/x.jsonl.gz", gzip.compress(b'{"text": "three"}\n'))
    write(tmp_path / ".hidden.txt", "hidden\n")
    write(tmp_path / "picture.png", b"\x89PNG")
    (tmp_path / "b/deep/loop").symlink_to(tmp_path)
    notes: list[str] = []
    found = find_corpus([tmp_path], note=notes.append)
    assert [path.name for path in found.files] == ["y.txt", "z.csv", "x.jsonl.gz", "c.txt"]
    assert notes == [f"{tmp_path}: skipped files that are neither text nor tables (picture.png)"]
    assert [text.strip() for _, text in found.parts()] == ["one", "two", "three", "four"]


def test_links_are_followed_and_files_read_once(tmp_path: Path) -> None:
    linked = write(tmp_path / "far/a.txt", "one\n")
    own = write(tmp_path / "near/b.txt", "two\n")
    (tmp_path / "near/wiki").symlink_to(tmp_path / "far")
    (tmp_path / "near/gone.txt").symlink_to(tmp_path / "absent")
    notes: list[str] = []
    found = find_corpus([own.parent, linked, own.parent / "../far/a.txt"], note=notes.append)
    assert [text.strip() for _, text in found.parts()] == ["one", "two"]
    assert notes == [f"{own.parent}: skipped links to what does not exist (gone.txt)"]


@pytest.mark.parametrize("inside", [False, True])
def test_only_training_texts_of_a_data_folder_are_read(tmp_path: Path, inside: bool) -> None:
    rows = "".join(f"{n % 2}\tfirst {n}\tsecond {n}\n" for n in range(20))
    table = write(tmp_path / "given.tsv", f"label\ttext\ttext_pair\n{rows}")
    held = "".join(f"{n % 2}\theld {n}\tback {n}\n" for n in range(4))
    test = write(tmp_path / "test.tsv", f"label\ttext\ttext_pair\n{held}")
    out = tmp_path / "data/own"
    run(source="csv", train_file=str(table), test_file=str(test), out=str(out), dev_fraction=0.2)
    found = documents(out.parent if inside else out)
    dev = (out / "dev.tsv").read_text().splitlines()[1:]
    assert len(dev) >= 2 and len(found) + len(dev) == 20
    assert all(len(parts) == 2 and parts[0].startswith("first") for parts in found)
    assert not {line.split("\t")[1] for line in dev} & {text for text, _ in found}


def test_pairs_are_one_document(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,text_pair\none,two\nthree,\n")
    assert documents(path) == [["one", "two"], ["three"]]


@pytest.mark.parametrize("text", ["word " * 50, "wordless" * 40, "日本語の文章" * 50])
def test_long_texts_are_split_between_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(corpus, "_LONGEST_PART", 32)
    parts = [part for _, part in find_corpus([write(tmp_path / "a.txt", text)]).parts()]
    assert "".join(parts) == text and len(parts) > 5 and max(map(len, parts)) <= 32
    assert " " not in text or all(part.endswith(" ") for part in parts)


BAD: Sequence[tuple[str, bytes, str]] = [
    ("a.txt", b"", "a.txt: is empty; add text or omit the file"),
    ("a.txt", b" \n\n", "a.txt: contains no text; add text or omit the file"),
    ("a.csv", b"text,n\n", "a.csv: contains no text; "),
    ("a.txt", b"one\ntw\0o\n", "a.txt, row 2: contains NUL bytes, so it is not text"),
    ("a.txt", b"one\ntwo \xff\n", "a.txt, row 2: byte 0xff at position 5 is not UTF-8; "),
    ("a.txt", b"%PDF-1.7\n", "a.txt: is a PDF document; "),
    ("a.txt.gz", gzip.compress(b"one\n" * 99, mtime=0)[:-9], "a.txt.gz: is damaged"),
    ("a.csv", b"x,y\n1,2\n", "a.csv: the column 'text' does not occur in the header, "),
    ("a.jsonl", b'{"text": "one"}\n{"tex": "two"}\n', "a.jsonl, row 2: has no key 'text'; "),
    ("a.jsonl", b'{"text": "one"}\n{\n', "a.jsonl, row 2: is not valid JSON"),
]


@pytest.mark.parametrize(("name", "content", "said"), BAD)
def test_bad_files_are_one_line_of_error(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    with pytest.raises(BertAccumError) as error:
        documents(write(tmp_path / name, content))
    assert str(error.value).startswith(f"{tmp_path}/{said}") and "\n" not in str(error.value)
    assert error.value.exit_code == 2


def test_missing_files_and_folders_without_text_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "folder/picture.png", b"\x89PNG")
    for path, said in (
        (tmp_path / "a.txt", "no such file"),
        (tmp_path / "folder", "no text files"),
    ):
        with pytest.raises(InputError, match=said):
            find_corpus([path])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe or device"):
        find_corpus([tmp_path / "pipe"])


def test_line_without_an_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.write(b"one\n")
        for _ in range(200):
            file.write(b"x" * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="row 2: is longer than 64 MiB"):
            documents(path)
        assert tracemalloc.get_traced_memory()[1] < 150 * 2**20
    finally:
        tracemalloc.stop()


def test_identity_depends_on_contents_and_reading(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\n")
    first = find_corpus([path]).identity(silent)
    same = find_corpus([write(tmp_path / "b.txt", "one\n")]).identity(silent)
    assert first == same
    reading = ReadOptions(label_column=None, encoding="latin-1")
    others = [find_corpus([path], reading), find_corpus([path], documents="line")]
    others += [find_corpus([write(tmp_path / "c.txt", "two\n")]), find_corpus([path, tmp_path])]
    assert all(other.identity(silent) != first for other in others)
