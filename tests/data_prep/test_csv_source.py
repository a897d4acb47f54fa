"""The user's own files: proper CSV, columns by name or number, errors with the row."""

from __future__ import annotations

import csv
import tarfile
from functools import partial
from pathlib import Path

import pytest

from bertaccum.errors import BertAccumError, ConfigError, InputError
from data_prep.csv_source import read_examples


def read(path: Path, data: bytes, text: str = "text", label: str = "label") -> list[tuple]:
    path.write_bytes(data)
    return [tuple(example) for example in read_examples(path, text, label)]


def test_quoted_fields_and_rows(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbflabel,text\r\n a ,"one, ""two""\r\nthree"\r\n\r\nb,6" hoagie\r\n'
    assert read(tmp_path / "a.csv", data) == [
        (2, "a", 'one, "two"\r\nthree'),
        (5, "b", '6" hoagie'),
    ]


def test_columns_by_number(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    headless = b"1,first\n2,second\n"
    assert read(path, headless, text="2", label="1") == [(1, "1", "first"), (2, "2", "second")]
    headed = b"label,text\n1,first\n"
    assert read(path, headed, text="2", label="label") == [(2, "1", "first")]


@pytest.mark.parametrize("name", ["a.tsv", "a.TAB", "a.txt", "a"])
def test_tabs(tmp_path: Path, name: str) -> None:
    assert read(tmp_path / name, b"text\tlabel\na, b\tx\n") == [(2, "x", "a, b")]


def test_commas_are_sniffed(tmp_path: Path) -> None:
    assert read(tmp_path / "a.txt", b"text,label\na\tb,x\n") == [(2, "x", "a\tb")]


def test_the_ending_decides_before_the_first_line(tmp_path: Path) -> None:
    assert read(tmp_path / "a.CSV", b"label,text,a\tb\nx,y,z\n") == [(2, "x", "y")]


def test_long_text_and_the_limit_of_others(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(csv.field_size_limit, csv.field_size_limit(1000)))
    text = "long " * 210_000
    assert read(tmp_path / "a.csv", f"label,text\n1,{text}\n".encode()) == [(2, "1", text)]
    assert csv.field_size_limit() == 1000


def test_real_imdb_lines(tmp_path: Path, shared: Path) -> None:
    with tarfile.open(shared / "data/imdb/imdb_polarity_csv.tgz") as tar:
        file = tar.extractfile("imdb_polarity_csv/test.csv")
        assert file is not None
        lines = file.read().split(b"\n")[:200]
    found = read(tmp_path / "a.csv", b"\n".join(lines), text="2", label="1")
    assert [label for _, label, _ in found] == [line[1:2].decode() for line in lines]
    assert [text for _, _, text in found] == [
        line[5:-1].decode().replace('""', '"') for line in lines
    ]


@pytest.mark.parametrize(
    ("data", "kind", "row", "message"),
    [
        (b"", InputError, None, "is empty"),
        (b"label,text\n1,a\n,b\n", InputError, 3, "has no label"),
        (b"label,text\n1,a\n1,a,b\n", InputError, 3, "3 columns where the first row has 2"),
        (b'label,text\n1,a\n1,"b\nc\n', InputError, 3, "not valid CSV"),
        (b'label,text\n1,"a"b\n', InputError, 2, "not valid CSV"),
        (b'label,text\n1,"a\nb"\n1,caf\xe9\n', InputError, 4, "0xe9 at position 6 is not UTF-8"),
        (b"PK\x03\x04\0\0\n", InputError, 1, "NUL bytes"),
        (b"label,review\n1,a\n", ConfigError, None, "'text' of --text-column is not in"),
        (b"label,text,text\n1,a,b\n", ConfigError, None, "more than once"),
    ],
)
def test_bad_files(
    tmp_path: Path, data: bytes, kind: type[BertAccumError], row: int | None, message: str
) -> None:
    path = tmp_path / "bad.csv"
    with pytest.raises(kind, match=message) as caught:
        read(path, data)
    assert (caught.value.path, caught.value.row) == (path, row)


def test_bad_options(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with pytest.raises(ConfigError, match="--text-column 3 is not one of the columns 1 to 2"):
        read(path, b"a,b\n", text="3", label="1")
    with pytest.raises(ConfigError, match="--label-column 0 is not"):
        read(path, b"a,b\n", text="1", label="0")
    with pytest.raises(ConfigError, match="are both text"):
        read(path, b"a,b\n", text="text", label="text")
    with pytest.raises(ConfigError, match="neither tab nor comma"):
        read(tmp_path / "a.txt", b"text;label\n")
    with pytest.raises(InputError, match="no such file"):
        list(read_examples(tmp_path / "none.csv", "text", "label"))
