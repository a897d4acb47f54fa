"""File formats: every command reads the same rows, and errors name unsupported formats."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preparing import run
from pyarrow import parquet as pq

from bertaccum.errors import ConfigError, InputError
from data_prep.tables.columns import ReadOptions
from data_prep.tables.quoting import TAB
from data_prep.tables.table import read_rows
from data_prep.tables.texts_to_classify import read_texts
from data_prep.tables.tsv import read_tsv

Rows = list[tuple[str, str]]
Writer = Callable[[Path, Rows], Path]

# Characters that a reader may misinterpret, except NUL and a lone carriage return.
TEXTS = st.text(st.sampled_from("ab é中\"',;|.!"), min_size=1, max_size=12)
LONG_TEXTS = st.text(st.sampled_from("ab é\n\t\"',;|"), min_size=1, max_size=12)
LABELS = st.sampled_from(["good", "bad", "1", "2"])


def plain(path: Path, rows: Rows) -> Path:
    lines = [("label", "text"), *rows]
    path.with_suffix(".tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    return path.with_suffix(".tsv")


def written(delimiter: str, encoding: str = "utf-8") -> Writer:
    def write(path: Path, rows: Rows) -> Path:
        path = path.with_suffix(".csv")
        with path.open("w", newline="", encoding=encoding) as file:
            csv.writer(file, delimiter=delimiter).writerows([("label", "text"), *rows])
        return path

    return write


def packed(path: Path, rows: Rows) -> Path:
    inner = written(";")(path, rows)
    path = path.with_suffix(".csv.gz")
    path.write_bytes(gzip.compress(inner.read_bytes()))
    return path


def zipped(path: Path, rows: Rows) -> Path:
    inner = written(",")(path, rows)
    with zipfile.ZipFile(path.with_suffix(".zip"), "w") as archive:
        archive.write(inner, "folder/mine.csv")
        archive.writestr("__MACOSX/folder/._mine.csv", b"\0")
    return path.with_suffix(".zip")


def json_lines(path: Path, rows: Rows) -> Path:
    path = path.with_suffix(".jsonl")
    path.write_text("".join(json.dumps({"text": t, "id": 1, "label": n}) + "\n" for n, t in rows))
    return path


def parquet(path: Path, rows: Rows) -> Path:
    path = path.with_suffix(".parquet")
    pd.DataFrame(rows, columns=["label", "text"]).to_parquet(path)
    return path


def all_commands(path: Path, reading: ReadOptions | None = None) -> Rows:
    """Return the rows of a file, after checking that all commands read the same rows.

    The commands are `prepare`, `eval --file` and `predict --file`.
    """
    reading = reading or ReadOptions()
    examples = [(row.label, row.text) for row in read_rows(path, reading)]
    table = read_tsv(path, reading)
    assert list(zip(table["label"], table["text"], strict=True)) == examples
    texts = ReadOptions(reading.text_column, None, reading.delimiter, reading.encoding)
    assert list(read_texts(path, texts)) == [text for _, text in examples]
    return examples


@pytest.mark.parametrize(
    "write",
    [written(","), written(";"), packed, zipped, written(",", "utf-16"), json_lines, parquet],
)
@settings(max_examples=25)
@given(st.lists(st.tuples(LABELS, LONG_TEXTS), min_size=1, max_size=8))
def test_every_command_reads_the_written_rows(
    tmp_path_factory: pytest.TempPathFactory, write: Writer, rows: Rows
) -> None:
    path = write(tmp_path_factory.getbasetemp() / "any", rows)
    try:
        assert all_commands(path) == rows
    except InputError as error:
        # The file is ambiguous: without quoting, its lines also have equally many columns.
        assert "a quoted field spans several lines" in str(error)
        assert any("\n" in text for _, text in rows)


@settings(max_examples=100)
@given(st.lists(st.tuples(LABELS, TEXTS), min_size=1, max_size=8))
def test_quotes_are_ordinary_characters_in_an_unquoted_tsv(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows
) -> None:
    rows = [*rows, ("1", 'a stray "quote')]  # No program that quotes fields writes such a row.
    assert all_commands(plain(tmp_path_factory.getbasetemp() / "any", rows)) == rows


def test_encodings_are_detected_or_passed(tmp_path: Path) -> None:
    path, said = tmp_path / "a.csv", list[str]()
    rows = "label,text\n1,café\n0,thé\n"
    path.write_bytes(rows.encode("latin-1"))
    with pytest.raises(InputError, match=r"a.csv, row 2: byte 0xe9 .* UTF-8; .*`encoding`"):
        all_commands(path)
    wanted = [("1", "café"), ("0", "thé")]
    assert all_commands(path, ReadOptions(encoding="latin-1")) == wanted
    for codec in ("utf-16", "utf-32", "utf-8-sig"):
        path.write_bytes(rows.encode(codec))
        assert all_commands(path) == wanted
    path.write_bytes(rows.encode("utf-16"))
    list(read_rows(path, ReadOptions(), said.append))
    assert said == [f"{path}: columns separated by comma, encoding utf-16"]
    for codec in ("utf-16-le", "utf-16-be"):
        path.write_bytes(rows.encode(codec))
        with pytest.raises(InputError, match=f"row 1: looks like UTF-16 .* `encoding` {codec}"):
            all_commands(path)
        assert all_commands(path, ReadOptions(encoding=codec)) == wanted
    path.write_bytes(rows.encode("utf-16") + b"\x00\xd8\n\x00")
    with pytest.raises(InputError, match=r"row 4: byte .* is not utf-16"):
        all_commands(path)


@pytest.mark.parametrize("encoding", [None, "latin-1", "iso-8859-15"])
def test_encoding_of_windows_is_suggested(tmp_path: Path, encoding: str | None) -> None:
    """As latin-1, its quotes would be control characters, which the tokenizer drops."""
    path = tmp_path / "a.csv"
    path.write_bytes("label,text\n1,café\n0,it\u2019s".encode("cp1252").replace(b"\xe9", b"e"))
    control = (
        r"control character U\+0092, so its encoding is probably cp1252; pass `encoding` cp1252"
    )
    message = control if encoding else "byte 0x92 at .* UTF-8; .* with `encoding`, such as cp1252"
    with pytest.raises(InputError, match=f"row 3: .*{message}"):
        all_commands(path, ReadOptions(encoding=encoding))
    assert all_commands(path, ReadOptions(encoding="cp1252"))[1] == ("0", "it\u2019s")


def xlsx() -> bytes:
    return zip_of("[Content_Types].xml", "xl/workbook.xml")


def zip_of(*names: str) -> bytes:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name in names:
                archive.writestr(name, "label,text\n1,a\n")
        return file.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.xlsx", xlsx(), "is an Excel workbook; save the table as CSV"),
        ("a.csv", xlsx(), "is an Excel workbook"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\n", "is an old Excel workbook"),
        ("a.zip", zip_of("a.csv", "b.csv"), r"is a zip archive of 2 files \(a.csv, b.csv\); unp"),
        ("a.zip", zip_of("a/"), "is a zip archive without any file"),
        ("a.zip", b"PK\x03\x04abc", "is a damaged zip archive"),
        ("a.zip", b"1\tgood\n0\tbad\n", "is not a zip archive, despite its name; create or"),
        ("a.csv.gz", gzip.compress(b"label,text\n1,a\n" * 9)[:-9], "is damaged"),
        ("a.csv.gz", gzip.compress(xlsx()), "is a zip archive inside another file; unpack"),
        ("a.tar.gz", gzip.compress(b"a" * 257 + b"ustar" + b"\0" * 99), "is a tar archive"),
        ("a.csv.bz2", b"BZh91AY&SY", "is bzip2-compressed; unpack"),
        ("a.csv", b"%PDF-1.7\n", "is a PDF document"),
        ("a.feather", b"ARROW1\0\0", "is an Arrow"),
        ("a.parquet", b"PAR1\0\0\0\0PAR1", "is a damaged Parquet file"),
        ("a.json", b'[{"label": 1}]', "is a JSON array, not JSON Lines; write one object per line"),
    ],
    # Ids omit the bytes: gzip headers contain the time, but all pytest workers need equal ids.
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_error_names_unsupported_format(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        list(read_rows(path, ReadOptions()))
    with pytest.raises(InputError, match=message):
        list(read_texts(path, ReadOptions(label_column=None)))


def test_parquet_without_pyarrow_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "a", [("1", "a")])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        InputError, match=r"a.parquet: is a Parquet file, .*; install bertaccum\[par"
    ):
        all_commands(path)


def test_pyarrow_that_cannot_be_imported_is_to_be_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "a", [("1", "a")])
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("broken"))
    what = r"but pyarrow cannot be imported \(cannot import name 'parquet'.*\); run pip install"
    with pytest.raises(InputError, match=what):
        all_commands(path)


def test_table_from_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(InputError, match=r"a.csv: is a pipe or device"):
        list(read_rows(tmp_path / "a.csv", ReadOptions()))


@pytest.mark.parametrize(
    ("line", "row", "message"),
    [
        ('{"label": 1}', 2, "has no key 'text'"),
        ('{"label": null, "text": "a"}', 2, "has no label"),
        ('{"label": 1, "text": ["a"]}', 2, "'text' is a list, not text"),
        ('{"label": 1e999, "text": "a"}', 2, "'label' is inf, not a finite number; correct it or"),
        ('{"label": NaN, "text": "a"}', 2, "'label' is nan, not a finite number"),
        ('{"label": -Infinity, "text": "a"}', 2, "'label' is -inf, not a finite number"),
        ('{"label": 1, "text": 1e999}', 2, "'text' is inf, not a finite number"),
        ("[1]", 2, "is not a JSON object"),
        ("{", 2, "is not valid JSON"),
    ],
)
def test_error_names_row_of_invalid_json(tmp_path: Path, line: str, row: int, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"label": 1, "text": "a"}\n' + line + "\n")
    with pytest.raises(InputError, match=message) as caught:
        all_commands(path)
    assert caught.value.row == row


def test_key_that_the_first_object_lacks_is_not_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"label": 1, "text": "a"}\n{"label": 0, "text": "b", "text_pair": "c"}\n')
    with pytest.raises(InputError, match="row 1: has no key 'text_pair'; add it or delete the row"):
        all_commands(path)


def test_json_lines_and_parquet_values_become_text(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text('{"label": 1, "text": "a\\ud800b"}\n\n{"text": "", "label": true, "x": []}\n')
    assert all_commands(path) == [("1", "a b"), ("true", "")]
    assert all_commands(path, ReadOptions("2", "1")) == [("1", "a b"), ("true", "")]
    table = pd.DataFrame({"label": [1, 2], "text": pd.Categorical(["a", "b"])})
    table.to_parquet(tmp_path / "a.parquet")
    assert all_commands(tmp_path / "a.parquet") == [("1", "a"), ("2", "b")]


@pytest.mark.parametrize("column", ["label", "weight"])
def test_numbers_of_json_lines_and_parquet_must_be_finite(tmp_path: Path, column: str) -> None:
    table = pd.DataFrame({"label": [1.0, 2.0], "text": ["a", "b"], "weight": [1.0, 2.0]})
    table.loc[1, column] = float("inf")
    pq.write_table(pa.Table.from_pandas(table), tmp_path / "a.parquet")
    table.to_json(tmp_path / "null.jsonl", orient="records", lines=True)
    rows = [json.dumps(row) for row in table.to_dict("records")]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    for name in ("a.parquet", "a.jsonl"):
        with pytest.raises(InputError, match=f"{name}, row 2: the value of '{column}' is inf, not"):
            list(read_rows(tmp_path / name, ReadOptions(weight_column="weight")))
    with pytest.raises(InputError, match=r"row 2: (has no label|the weight '')"):
        list(read_rows(tmp_path / "null.jsonl", ReadOptions(weight_column="weight")))


def test_duplicate_parquet_column_names_are_refused(tmp_path: Path) -> None:
    columns = [pa.array(["1"]), pa.array(["a"]), pa.array(["b"])]
    pq.write_table(pa.table(columns, ["label", "text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a.parquet: has two columns named 'text'; rename one"):
        all_commands(tmp_path / "a.parquet", ReadOptions("2", "1"))


def test_table_far_larger_than_its_compressed_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertaccum.system.files._UNPACKED_BYTES", 0)
    table = b"label,text\n" + b"1,%s\n" % (b"a" * 10_000) * 100
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(table))
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", table)
    for name in ("a.csv.gz", "a.zip"):
        with pytest.raises(
            InputError, match=rf"{name}: unpacks to more than 50 times its size plus"
        ):
            list(read_rows(tmp_path / name, ReadOptions()))
    monkeypatch.undo()
    for name in ("a.csv.gz", "a.zip"):
        assert len(list(read_rows(tmp_path / name, ReadOptions()))) == 100


def test_damaged_lzma_member_is_refused(tmp_path: Path) -> None:
    table = b"label,text\n" + b"".join(b"1,text %d\n" % number for number in range(9999))
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.csv", table)
    assert len(list(read_rows(path, ReadOptions()))) == 9999
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"a.zip: is damaged \((Corrupt input data|Bad CRC)"):
        list(read_rows(path, ReadOptions()))


def test_member_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    for names in (["a.csv"], ["pos/1.txt", "neg/1.txt"]):
        raw = bytearray(zip_of(*names))
        raw[7] |= 8  # Says that the name before the first file is UTF-8.
        raw[30] = 0xF3
        path.write_bytes(raw)
        with pytest.raises(InputError, match=r"a\.zip.*: is damaged \('utf-8' codec"):
            list(read_rows(path, ReadOptions()))


def test_large_gzip_file_is_not_unpacked_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.csv.gz"
    line = b"1," + b"a" * 10_000 + b"\n"
    path.write_bytes(gzip.compress(b"label,text\n" + line * 1000))
    tracemalloc.start()
    count = sum(1 for _ in read_rows(path, ReadOptions()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 1000 and peak < 1000 * len(line) / 2
    monkeypatch.setattr("data_prep.tables.text_files.LONGEST", 1 << 20)
    path.write_bytes(gzip.compress(b"a" * (3 << 20)))
    with pytest.raises(InputError, match="row 1: is longer than 1 MiB"):
        list(read_rows(path, ReadOptions()))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_either_text_of_a_pair_may_be_empty(tmp_path: Path, kind: str) -> None:
    """google-research/bert reads a pair with an empty second text as a single text."""
    pairs = [("a", None), (None, "b"), (None, None), ("a", "b"), ("c", " ")]
    table = pd.DataFrame(pairs, columns=["text", "text_pair"]).assign(label=list("01011"))
    path = tmp_path / f"mine.{kind}"
    if kind == "csv":
        table.to_csv(path, index=False)
    elif kind == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_parquet(path)
    expected = [(one or "", other or "") for one, other in pairs]
    assert list(read_texts(path, ReadOptions(label_column=None))) == expected
    out = {"test_file": str(path), "out": str(tmp_path / "out"), "drop_duplicates": False}
    result = run(source="csv", train_file=str(path), **out)
    test = read_tsv(result.folder / "test.tsv")
    assert list(zip(test["text"], test["text_pair"], strict=True)) == expected
    assert result.manifest["findings"]["empty"]["training"] == {
        "rows": 4,
        "first_row": 2 if kind == "csv" else 1,
    }


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_fields_of_nested_objects_have_names_with_dots(tmp_path: Path, kind: str) -> None:
    rows = [
        {"id": 1, "data": {"text": "a", "more": {"lang": "en"}}, "meta": {"label": "good"}},
        {"id": 2, "data": {"text": "b", "more": None}, "meta": {"label": "bad"}},
    ]
    path = tmp_path / f"mine.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    assert all_commands(path, ReadOptions("data.text", "meta.label")) == [
        ("good", "a"),
        ("bad", "b"),
    ]
    texts = read_texts(path, ReadOptions("data.more.lang", None))
    assert list(texts) == ["en", ""]  # Null is an empty text.
    assert list(read_texts(path, ReadOptions("1", None))) == ["1", "2"]
    header = "id, data, meta, data.text, data.more, data.more.lang, meta.label"
    with pytest.raises(ConfigError, match=f"'text' .* the header, which is: {header};"):
        list(read_rows(path))
    with pytest.raises(InputError, match="row 1: the value of 'data' is a dict, not text"):
        list(read_rows(path, ReadOptions("data", None)))


def test_key_with_a_dot_has_priority_over_a_nested_field(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"a.b": "x", "a": {"b": "y"}, "c": {"d.e": "z"}}\n{"a": {"c": "y"}}\n')
    rows = read_rows(path, ReadOptions("a.b", "c.d.e"))
    assert next(rows)[1:3] == ("z", "x")
    with pytest.raises(InputError, match=r"row 2: has no key 'a.b'; add it or delete the row"):
        next(rows)


@pytest.mark.parametrize(
    ("first", "delimiter"),
    [("sep=;", ";"), ("SEP=,\r", ","), ('"sep=|"', "|"), ("sep=\t", "\t"), ("sep=\\t", "\t")],
)
def test_first_line_may_declare_the_delimiter(tmp_path: Path, first: str, delimiter: str) -> None:
    """Excel does not show this line."""
    rows = ["label;text", '1;"a;b"', '2;"c, d, e"']
    lines = [first, *(row.replace(";", delimiter) for row in rows)]
    for name in ("mine.csv", "mine.txt"):
        path, said = tmp_path / name, list[str]()
        path.write_text("\ufeff" + "\n".join(lines))
        assert all_commands(path) == [("1", f"a{delimiter}b"), ("2", "c, d, e")]
        found = list(read_rows(path, ReadOptions("2", "1"), said.append))
        assert [row.row for row in found] == [3, 4]
        assert "row 2 (label, text) is the header" in said.pop()
    with path.open("a") as file:
        file.write("\n" + delimiter.join("3ab"))
    # Quotes in a TSV are ordinary characters if the columns are uneven.
    with pytest.raises(InputError, match=f"row {3 if delimiter == TAB else 5}: has 3 columns"):
        list(read_rows(path))


def test_fasttext(tmp_path: Path) -> None:
    path, said = tmp_path / "mine.txt", list[str]()
    path.write_text("__label__good A fine film, really\n\n__label__bad\tNot  for me __label__\n")
    assert all_commands(path) == [("good", "A fine film, really"), ("bad", "Not  for me __label__")]
    assert [row.row for row in read_rows(path, ReadOptions(), said.append)] == [1, 3]
    assert said == [f"{path}: labels and texts in fastText's format"]
    path.write_text("__label__a __label__b both\n__label__a one\n")
    several = ReadOptions(several_labels=True, label_separator=",")
    assert [(r.label, r.text) for r in read_rows(path, several)] == [
        ('["a", "b"]', "both"),
        ('["a"]', "one"),
    ]
    path.write_text("__label__a one\nnone\n")
    with pytest.raises(
        InputError, match="row 2: has no label; begin the line with __label__ and a"
    ):
        list(read_rows(path, several))
    path.write_text("__label__a,b text\n")
    with pytest.raises(ConfigError, match="in fastText's format, the first label must not"):
        list(read_rows(path))
    path.write_text("__label__a,one\n__label__b,two\n")
    assert all_commands(path.rename(tmp_path / "a.csv"), ReadOptions("2", "1")) == [
        ("__label__a", "one"),
        ("__label__b", "two"),
    ]


@settings(max_examples=50)
@given(
    st.lists(st.tuples(LABELS, st.text(st.sampled_from("ab \n\\\"',;n"), max_size=9)), min_size=1),
    st.sampled_from(",;\t"),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
)
def test_quotes_may_be_escaped_by_backslashes(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows, delimiter: str, quoting: Any
) -> None:
    """MySQL and Spark write files like this; a last row makes sure that others are not valid."""
    path = tmp_path_factory.getbasetemp() / "escaped.csv"
    last = ("1", f'a "quoted{delimiter} word"')
    with path.open("w", newline="") as file:
        writer = csv.writer(
            file, delimiter=delimiter, quoting=quoting, doublequote=False, escapechar="\\"
        )
        writer.writerows([("label", "text"), last, *rows])
    assert all_commands(path) == [last, *rows]


@settings(max_examples=50)
@given(st.lists(st.tuples(LABELS, st.text('ab ,"')), min_size=1), st.booleans())
def test_quotes_may_be_escaped_in_a_tsv_that_can_be_split_without_them(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows, all_fields: bool
) -> None:
    """R encloses all texts, and Spark those that are empty or contain a quote."""

    def written(cell: str) -> str:
        is_enclosed = all_fields or not cell or '"' in cell
        return '"{}"'.format(cell.replace('"', '\\"')) if is_enclosed else cell

    path = tmp_path_factory.getbasetemp() / "escaped.tsv"
    lines = ["\t".join(map(written, row)) for row in [("label", "text"), *rows]]
    path.write_text("\n".join([*lines, ""]))
    assert all_commands(path) == rows


def test_backslashes_that_escape_nothing_are_kept(tmp_path: Path) -> None:
    path, said = tmp_path / "mine.csv", list[str]()
    lines = ["label,text", r'1,"C:\new\" she said, \"\\o/\""', r"2,a\, b\n", "2,in two\\", "lines"]
    path.write_text("\n".join(lines) + "\n")
    found = [(row.row, row.text) for row in read_rows(path, ReadOptions(), said.append)]
    assert found == [(2, r'C:\new" she said, "\o/"'), (3, r"a, b\n"), (4, "in two\nlines")]
    assert said == [
        f"{path}: columns separated by comma, backslashes that escape the next character"
    ]
    # The file is valid without escapes, so its backslashes are ordinary characters.
    path.write_text('label,text\n1,"a \\""b"\n2,"C:\\"\n')
    assert all_commands(path) == [("1", 'a \\"b'), ("2", "C:\\")]
    path.write_text('label,text\n1,"a \\"b\\""\n2,c,d\n')
    with pytest.raises(InputError, match="row 2: is not valid CSV"):
        list(read_rows(path))
