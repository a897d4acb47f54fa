"""Files that were concatenated, and files whose lines end with a carriage return."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertaccum.errors import InputError
from bertaccum.system.progress import ignore_note
from data_prep.tables.columns import ReadOptions
from data_prep.tables.table import read_rows
from data_prep.tables.texts_to_classify import read_texts

MARK = b"\xef\xbb\xbf"
Found = list[tuple[str | None, str]]


def found(path: Path, data: bytes, said: list[str] | None = None, **columns: str) -> Found:
    path.write_bytes(data)
    note = (said if said is not None else []).append
    return [(row.label, row.text) for row in read_rows(path, ReadOptions(**columns), note)]


def test_rows_without_content_are_skipped_if_rows_have_labels(tmp_path: Path) -> None:
    """Without labels, as for `predict`, each row has a prediction."""
    said: list[str] = []
    data = b'label,text\npos,good\n,\n" ",""\nneg,\n'
    assert found(tmp_path / "a.csv", data, said) == [("pos", "good"), ("neg", "")]
    assert said[-1] == f"{tmp_path / 'a.csv'}: skipped rows without any content: 3, 4"
    texts = read_rows(tmp_path / "a.csv", ReadOptions(label_column=None), ignore_note)
    assert [row.text for row in texts] == ["good", "", "", ""]


@pytest.mark.parametrize("columns", [{}, {"text_column": "2", "label_column": "1"}])
@pytest.mark.parametrize("header", [b"label,text", b" Label,TEXT ", b'"label","text"'])
def test_repeated_header_is_no_row(tmp_path: Path, columns: dict[str, str], header: bytes) -> None:
    said: list[str] = []
    part = b"pos,good\nneg,bad\n"
    data = b"label,text\n" + part + MARK + b"label,text\n" + part + header + b"\n" + part
    assert found(tmp_path / "a.csv", data, said, **columns) == [("pos", "good"), ("neg", "bad")] * 3
    rows = "repeated header rows are not read as data: 4, 7"
    assert said[-1] == f"{tmp_path / 'a.csv'}: {rows}"


def test_repeated_header_in_another_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 3: is a header with the columns in another order"):
        found(tmp_path / "a.csv", b"label,text\npos,good\ntext,label\nbad,neg\n")


def test_row_that_resembles_the_header_is_kept(tmp_path: Path) -> None:
    rows = b"label,a text\ntext,text\npos,good\n"
    assert len(found(tmp_path / "a.csv", b"label,text\n" + rows)) == 3
    (tmp_path / "b.csv").write_bytes(b"text\ngood\ntext\n")
    assert list(read_texts(tmp_path / "b.csv", ReadOptions(label_column=None))) == ["good", "text"]


def test_byte_order_mark_inside_a_file_is_not_part_of_a_cell(tmp_path: Path) -> None:
    part = MARK + b"pos,good\nneg,bad\n"
    columns = {"text_column": "2", "label_column": "1"}
    assert found(tmp_path / "a.csv", part * 2, **columns) == [("pos", "good"), ("neg", "bad")] * 2
    line = MARK + b'{"label": "pos", "text": "good"}\n'
    assert found(tmp_path / "a.jsonl", line * 2) == [("pos", "good")] * 2
    twice = MARK * 2 + b"label,text\npos,good\n"
    assert found(tmp_path / "b.csv", twice) == [("pos", "good")]
    utf_16 = "\ufefflabel,text\npos,good\n".encode("utf-16-le")
    assert found(tmp_path / "b.csv", utf_16 * 2) == [("pos", "good")] * 2
    (tmp_path / "a.txt").write_bytes((MARK + b"good\n") * 2)
    assert list(read_texts(tmp_path / "a.txt", ReadOptions(label_column=None))) == ["good", "good"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", 'label,text\rpos,"caf\xe9, \rgood"\rneg,bad\r'),
        ("a.tsv", "label\ttext\rpos\tcaf\xe9, \\ngood\rneg\tbad"),
        (
            "a.jsonl",
            '{"label": "pos", "text": "caf\xe9, \\ngood"}\r{"label": "neg", "text": "bad"}\r',
        ),
    ],
)
def test_carriage_returns_end_lines_without_line_feeds(
    tmp_path: Path, encoding: str, name: str, data: str
) -> None:
    text = "caf\xe9, \\ngood" if name == "a.tsv" else "caf\xe9, \ngood"
    for whole in (data, data.replace("\r", "\r\n")):
        rows = found(tmp_path / name, whole.encode(encoding), encoding=encoding)
        assert [(label, text.replace("\r", "")) for label, text in rows] == [
            ("pos", text),
            ("neg", "bad"),
        ]


def test_long_file_without_line_feeds_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_prep.tables.text_files.LONGEST", 1001)  # An odd number splits "\xe9".
    path = tmp_path / "a.txt"
    path.write_text("\xe9" * 99 + "\r" + "\xe9\r" * 2000, newline="")
    assert list(read_texts(path, ReadOptions(label_column=None))) == ["\xe9" * 99] + ["\xe9"] * 2000
    path.write_text("a\r" + "b" * 3000, newline="")
    with pytest.raises(InputError, match="row 2: is longer than"):
        list(read_texts(path, ReadOptions(label_column=None)))


@pytest.mark.parametrize(
    ("name", "row", "data"),
    [
        ("a.csv", 2, b"label,text\npos,good\rneg,bad\n"),
        ("a.tsv", 1, b"label\ttext\rpos\tgood\rneg\tbad\n"),
        ("a.jsonl", 1, b'{"label": "pos", "text": "a"}\r{"label": "neg", "text": "b"}\n'),
    ],
)
def test_carriage_return_in_a_line_is_named(
    tmp_path: Path, name: str, row: int, data: bytes
) -> None:
    message = f"row {row}: contains a carriage return in the middle of a line; end every line with"
    with pytest.raises(InputError, match=message):
        found(tmp_path / name, data)


BY_NUMBER = {"text_column": "2", "label_column": "1"}


@pytest.mark.parametrize(
    ("header", "again"),
    [(b"foo,bar\n", b"foo,bar\n"), (b"", b"label,text\n"), (b"sep=,\nlabel,text\n",) * 2],
)
def test_any_header_inside_a_file_is_no_row(tmp_path: Path, header: bytes, again: bytes) -> None:
    part = b"pos,good\nneg,bad\npos,fine\nneg,dull\n" * 5
    rows = found(tmp_path / "a.csv", header + part + again + part, **BY_NUMBER)
    assert len(rows) == 40 and {label for label, _ in rows} == {"pos", "neg"}


def test_note_on_label_that_is_the_name_of_its_column(tmp_path: Path) -> None:
    said: list[str] = []
    data = b"label,text\npos,good\nlabel,body\nneg,bad\n"
    assert len(found(tmp_path / "a.csv", data, said)) == 3
    assert said[-1].endswith("as their label; delete them if they are headers: 3")
