"""Folders of texts by class: their rows, and the files that are skipped."""

from __future__ import annotations

import gzip
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from preparing import run

from bertaccum.errors import InputError
from data_prep.tables.columns import ReadOptions
from data_prep.tables.table import read_rows
from data_prep.tables.texts_to_classify import read_texts


@pytest.fixture
def imdb(tmp_path: Path) -> Path:
    """Create a folder with the layout of aclImdb and a hidden file."""
    folder = tmp_path / "aclImdb"
    for part in ("train", "test"):
        for name in ("pos", "neg", "unsup"):
            (folder / part / name).mkdir(parents=True)
            for i in range(4):
                text = f"A {name} text.\n{part} {i}\n"
                (folder / part / name / f"{i}_7.txt").write_text(text)
        (folder / part / "urls_pos.txt").write_text("http://example.org\n")
        (folder / part / "pos/.DS_Store").write_bytes(b"\0")
    return folder


def rows(folder: Path, encoding: str | None = None) -> list[tuple[str, str]]:
    found = read_rows(folder, ReadOptions(encoding=encoding))
    return [(row.label, row.text) for row in found]


def test_one_folder_per_class(imdb: Path) -> None:
    said: list[str] = []
    found = list(read_rows(imdb / "train", ReadOptions(), said.append))
    assert [row.label for row in found] == ["neg"] * 4 + ["pos"] * 4
    assert found[0].text == "A neg text.\ntrain 0"
    assert said == [
        f"{imdb}/train: skipped the files that are not those of a class (urls_pos.txt)",
        f"{imdb}/train/unsup: skipped, because its texts have no class",
    ]
    texts = list(read_texts(imdb / "train", ReadOptions(label_column=None)))
    assert texts == [row.text for row in found]


def test_prepare_accepts_folders(imdb: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"source": "csv", "out": str(tmp_path / "out"), "dev_fraction": 0.3}
    options |= {"train_file": str(imdb / "train"), "test_file": str(imdb / "test")}
    manifest = run(**options).manifest
    assert manifest["labels"] == ["neg", "pos"]
    assert manifest["counts"]["test"] == {"rows": 8, "classes": {"neg": 4, "pos": 4}}
    assert run(**options).unchanged
    (imdb / "train/pos/0_7.txt").write_text("Another text.")
    assert not run(**options, overwrite=True).unchanged
    (imdb / "train/pos" / os.fsdecode(b"r\xe9sum\xe9.txt")).write_text("A name in Latin-1.")
    latin = (imdb / "train").rename(tmp_path / os.fsdecode(b"\xe9t\xe9"))
    options["train_file"] = str(latin)
    assert not run(**options, overwrite=True).unchanged
    assert run(**options).unchanged


def test_one_file_per_class(tmp_path: Path) -> None:
    (tmp_path / "neg.txt").write_text("bad\n\nworse\n")
    (tmp_path / "pos.txt.gz").write_bytes(gzip.compress(b"good\n"))
    assert rows(tmp_path) == [("neg", "bad"), ("neg", "worse"), ("pos", "good")]
    (tmp_path / "3.5.TXT").write_text("fair\naverage\n")
    (tmp_path / "neutral.text").write_text("no\n")
    said: list[str] = []
    assert next(read_rows(tmp_path, ReadOptions(), said.append)).label == "3.5"
    assert said == [f"{tmp_path}: skipped the files that are not those of a class (neutral.text)"]
    (tmp_path / "3.5.TXT").unlink()
    (tmp_path / "neg.txt").write_bytes("mauvais thé\nno".encode("latin-1"))
    assert rows(tmp_path, "latin-1")[0] == ("neg", "mauvais thé")


def test_files_of_one_text_are_no_classes(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(30):
        (texts / f"{number}.txt").write_text(f"text {number}\n\n" + "more\n" * (number == 3))
    packed = zipped(tmp_path / "texts.zip", {p.name: p.read_text() for p in texts.iterdir()})
    for path in (texts, packed):
        with pytest.raises(InputError, match="29 of 30 have only one line; create one folder per"):
            rows(path)
        assert len(list(read_texts(path, ReadOptions(label_column=None)))) == 31
    for path in texts.iterdir():
        path.write_text("first\nsecond\n")
    said: list[str] = []
    assert len(list(read_rows(texts, ReadOptions(), said.append))) == 60
    assert said == [f"{texts}: read 30 .txt files as classes, with one text per line"]


def test_error_names_folder_without_classes(imdb: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"aclImdb: contains folders inside test, .*test$"):
        rows(imdb)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(
        InputError, match=r"empty: is a folder with no class folders and no .txt files; create"
    ):
        rows(empty)
    (empty / "train.csv").touch()
    with pytest.raises(InputError, match=r"pass a file in it \(train.csv\), or create"):
        rows(empty)
    (empty / "train").mkdir()
    (empty / "train/a.csv").touch()
    with pytest.raises(InputError, match=r"only tables in train, .*; pass a table, .*/train/a.csv"):
        rows(empty)
    (imdb / "train/pos/1_7.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"pos/1_7.txt, row 1: byte 0xe9"):
        rows(imdb / "train")


def zipped(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__MACOSX/movie_reviews/._pos", b"\0")
        for name, text in files.items():
            archive.writestr(name, text)
    return path


REVIEWS = {"pos/1.txt": "good\nfilm\n", "pos/2.txt": "fine", "neg/1.txt": "bad"}
BY_LINE = {"pos.txt": "good film\nfine\n", "neg.txt": "bad"}


@pytest.mark.parametrize("top", ["", "movie_reviews/", "a/b/movie_reviews/"])
@pytest.mark.parametrize("files", [REVIEWS, BY_LINE], ids=["folders", "lines"])
def test_zip_archive_is_read_as_the_folder_inside(
    tmp_path: Path, top: str, files: dict[str, str]
) -> None:
    """NLTK's movie_reviews.zip contains one folder with a README and a folder per class."""
    files = {f"{top}{name}": text for name, text in files.items()} | {f"{top}README": "see ..."}
    path = zipped(tmp_path / "movie_reviews.zip", files)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "unpacked")
    expected = rows(tmp_path / "unpacked" / top)
    assert [label for label, _ in expected] == ["neg", "pos", "pos"]
    said: list[str] = []
    found = list(read_rows(path, ReadOptions(), said.append))
    assert [(row.label, row.text) for row in found] == expected
    assert said == [f"{path}/{top}: skipped the files that are not those of a class (README)"]
    texts = list(read_texts(path, ReadOptions(label_column=None)))
    assert texts == [text for _, text in expected]


def test_prepare_and_errors_name_the_zip_archive(tmp_path: Path) -> None:
    path = zipped(tmp_path / "reviews.zip", REVIEWS)
    options: dict[str, Any] = {"source": "csv", "train_file": str(path), "out": str(tmp_path / "o")}
    assert run(**options).manifest["labels"] == ["neg", "pos"]
    assert run(**options).unchanged
    for files, message in (
        (REVIEWS | {"pos/3.txt": "a good\0film"}, r"x.zip/pos/3.txt, row 1: contains NUL bytes"),
        ({"train/pos/1.txt": "a", "test/pos/1.txt": "b"}, "inside test, .*; unpack it and pass"),
        ({"train/a.csv": "a", "test/b.csv": "b"}, "zip archive of 2 files .*; unpack it and pass"),
        ({"a.dat": "a", "b/b.dat": "b"}, "zip archive of 2 files .*; unpack it and pass"),
        (REVIEWS | {"neg/2.txt": "a" * (1 << 27)}, "unpacks to more than 50 times its size"),
    ):
        with pytest.raises(InputError, match=message):
            rows(zipped(tmp_path / "x.zip", files))


def test_only_texts_are_read_if_most_files_end_in_txt(tmp_path: Path) -> None:
    """All texts of a class may have another ending, as those of 20 Newsgroups have none."""
    files = {"neg/1.txt": "bad", "other/1": "so so", "pos/1.txt": "good", "pos/2.TXT": "fine"}
    others = {"neg/1.txt~": "old", "pos/.hidden": "no", "pos/desktop.ini": "[x]"}
    expected = [("neg", "bad"), ("other", "so so"), ("pos", "good"), ("pos", "fine")]
    for content, skipped in ((files, None), (files | others, "(neg/1.txt~, pos/desktop.ini)")):
        folder, said = tmp_path / f"folder of {len(content)}", list[str]()
        path = zipped(tmp_path / f"{len(content)}.zip", content | {"pos/3.txt": "great"})
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        for root in (folder, path):
            found = [(row.label, row.text) for row in read_rows(root, ReadOptions(), said.append)]
            assert found == [*expected, ("pos", "great")]
        assert len(said) == (2 if skipped else 0)
        for line in said:
            assert line.endswith(f"the files that do not end in .txt, unlike most files {skipped}")
    unnamed = {"a/1": "x", "a/desktop.ini": "y", "b/1": "z"}
    assert len(rows(zipped(tmp_path / "unnamed.zip", unnamed))) == 3


def test_zip_archive_with_tables_backslashes_or_gzip(tmp_path: Path) -> None:
    expected = [("neg", "bad"), ("pos", "good\nfilm"), ("pos", "fine")]
    said: list[str] = []
    path = zipped(tmp_path / "x.zip", REVIEWS | {"labels.csv": "a,b\n", "info.json": "{}"})
    found = [(row.label, row.text) for row in read_rows(path, ReadOptions(), said.append)]
    assert found == expected and "skipped" in said[0] and "labels.csv" in said[0]
    path = zipped(tmp_path / "windows.zip", {})
    with zipfile.ZipFile(path, "a") as archive:
        for name, text in REVIEWS.items():
            member = zipfile.ZipInfo()
            member.filename = f"mr\\{name}".replace("/", "\\")
            archive.writestr(member, text)
    assert b"mr\\pos\\1.txt" in path.read_bytes()
    assert rows(path) == expected
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        for name, text in BY_LINE.items():
            archive.writestr(f"{name}.gz", gzip.compress(text.encode()))
    assert rows(tmp_path / "packed.zip") == [("neg", "bad"), ("pos", "good film"), ("pos", "fine")]
