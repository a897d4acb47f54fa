"""TSVs are read back as written, in both layouts, and errors name the file and row."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertaccum.errors import InputError
from data_prep.tables.columns import ReadOptions
from data_prep.tables.manifest import MANIFEST, TOOL
from data_prep.tables.rows import clean
from data_prep.tables.tsv import default_split, read_tsv, write_tsv

ROWS = st.lists(
    st.tuples(st.integers(0, 9), st.text(st.characters(exclude_categories=()))), min_size=1
)


@given(rows=ROWS, layout=st.sampled_from(["plain", "cola"]), split=st.sampled_from(["dev", "test"]))
def test_written_rows_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str]], layout: str, split: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / MANIFEST).write_text(json.dumps({"tool": TOOL, "files": {"any.tsv": ""}}))
    path = folder / "any.tsv"
    texts = [clean(text) for _, text in rows]
    labels = [label for label, _ in rows]
    cells = ((b"%d" % label, text.encode()) for label, text in zip(labels, texts, strict=True))
    write_tsv(path, split, cells, layout)
    table = read_tsv(path)
    assert table["text"].tolist() == texts
    if (layout, split) == ("cola", "test"):
        assert list(table.columns) == ["row", "text"]
    else:
        assert table["label"].tolist() == [str(label) for label in labels]


@pytest.mark.parametrize(("layout", "split"), [("plain", "test"), ("cola", "dev"), (None, "dev")])
def test_default_split_is_test_if_it_has_labels(
    tmp_path: Path, layout: str | None, split: str
) -> None:
    if layout is not None:
        write_tsv(tmp_path / "test.tsv", "test", [(b"1", b"good")], layout)
    assert default_split(tmp_path) == split


@pytest.mark.parametrize("header", ["id\ttext", "text", "guid\tsentence", "index\tsentence"])
def test_default_split_is_dev_if_the_users_test_file_has_no_column_of_labels(
    tmp_path: Path, header: str
) -> None:
    row = "\t".join(["7", "a text"][-len(header.split("\t")) :])
    (tmp_path / "test.tsv").write_text(f"{header}\n{row}\n")
    assert default_split(tmp_path) == "dev"


def test_layouts_are_written_byte_for_byte(tmp_path: Path) -> None:
    rows = [(b"1", b"good"), (b"0", b"")]
    expected = {
        ("plain", "train"): b"label\ttext\n1\tgood\n0\t\n",
        ("plain", "test"): b"label\ttext\n1\tgood\n0\t\n",
        ("cola", "train"): b"train-0\t1\t\tgood\ntrain-1\t0\t\t\n",
        ("cola", "test"): b"index\tsentence\n0\tgood\n1\t\n",
    }
    for (layout, split), data in expected.items():
        path = tmp_path / f"{layout}-{split}"
        digest = write_tsv(path, split, iter(rows), layout)
        assert path.read_bytes() == data
        assert digest == hashlib.sha256(data).hexdigest()


def test_empty_texts_of_an_unlabelled_file_are_rows(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps({"tool": TOOL, "files": {"test.tsv": ""}}))
    path = tmp_path / "test.tsv"
    write_tsv(path, "test", [(None, b"good"), (None, b""), (None, b"bad")], "plain", ["text"])
    assert [text.strip() for text in read_tsv(path)["text"]] == ["good", "", "bad"]


def test_row_is_the_line_number_of_the_file(tmp_path: Path) -> None:
    plain, cola = tmp_path / "plain.tsv", tmp_path / "cola.tsv"
    plain.write_bytes(b"\xef\xbb\xbflabel\ttext\r\n 1 \t  a \r\n0\tb\x0bc\r\n")
    cola.write_bytes(b"\xef\xbb\xbfid\t1\t*\ta\nid\t0\t\tb")
    table = read_tsv(plain)
    assert table.to_dict("list") == {"row": [2, 3], "label": ["1", "0"], "text": ["  a ", "b\x0bc"]}
    assert read_tsv(cola).to_dict("list") == {
        "row": [1, 2],
        "label": ["1", "0"],
        "text": ["a", "b"],
    }


def test_real_cola_files_are_read_unchanged(shared: Path) -> None:
    rows = {"in_domain_train": 8551, "in_domain_dev": 527, "out_of_domain_dev": 516}
    for name, count in rows.items():
        path = shared / f"data/cola/{name}.tsv"
        table = read_tsv(path)
        assert len(table) == count and set(table["label"]) == {"0", "1"}
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        assert table["text"].tolist() == [line.split("\t")[3] for line in lines]


@pytest.mark.parametrize(
    ("data", "row", "message"),
    [
        (b"", None, "is empty"),
        (b"label\ttext\n", None, "no rows"),
        (b"label\ttext\n1\ta\n1\ta\tb\n", 3, "3 columns, but the first row has 2"),
        (b"a\t1\t\twords\na\t1\twords\n", 2, "3 columns, but the first row has 4"),
        (b"label\ttext\n \ta\n", 2, "has no label"),
        (b"a\t\t\twords\n", 1, "has no label"),
        (b"label\ttext\n1\tcaf\xe9\n", 2, "byte 0xe9 at position 6 is not UTF-8"),
        ("label\ttext\n1\ta\n".encode("utf-16-le"), 1, "without a byte order mark; .* utf-16-le"),
        (b"label\ttext\n1\ta\0\n", 2, "NUL bytes"),
    ],
)
def test_error_names_file_and_row(
    tmp_path: Path, data: bytes, row: int | None, message: str
) -> None:
    path = tmp_path / "bad.tsv"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_tsv(path)
    assert (caught.value.path, caught.value.row) == (path, row)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_tsv(tmp_path / "none.tsv")
    with pytest.raises(InputError, match="is a folder"):
        read_tsv(tmp_path)


@pytest.mark.parametrize("end", ["\n", ""])
def test_nul_is_refused_in_every_encoding(tmp_path: Path, end: str) -> None:
    path = tmp_path / "bad.tsv"
    path.write_text(f"label\ttext\n1\ta\n1\tb\0{end}")
    with pytest.raises(InputError, match="contains NUL characters") as caught:
        read_tsv(path, ReadOptions(encoding="latin-1"))
    assert caught.value.row == 3
