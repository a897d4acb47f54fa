"""Users' tables: columns by name or number, delimiters, quoting, headers, rows in errors."""

from __future__ import annotations

import csv
import json
import tarfile
from functools import partial
from pathlib import Path

import pytest

from bertaccum.errors import BertAccumError, ConfigError, InputError
from bertaccum.options.commands import PredictConfig
from data_prep.tables.columns import ReadOptions, read_options
from data_prep.tables.table import read_rows
from data_prep.tables.texts_to_classify import read_texts


def read(path: Path, data: bytes, text: str = "text", label: str = "label") -> list[tuple]:
    path.write_bytes(data)
    return [example[:3] for example in read_rows(path, ReadOptions(text, label))]


def test_quoted_fields_keep_line_breaks_and_rows(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbflabel,text\r\n a ,"one, ""two""\r\nthree"\r\n\r\nb,6" hoagie\r\n'
    assert read(tmp_path / "a.csv", data) == [
        (2, "a", 'one, "two"\r\nthree'),
        (5, "b", '6" hoagie'),
    ]


def test_columns_are_chosen_by_number(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    headless = b"1,first\n2,second\n"
    assert read(path, headless, text="2", label="1") == [(1, "1", "first"), (2, "2", "second")]
    headed = b"label,text\n1,first\n"
    assert read(path, headed, text="2", label="label") == [(2, "1", "first")]


@pytest.mark.parametrize("name", ["a.tsv", "a.TAB", "a.txt", "a"])
def test_tab_is_detected_with_any_ending(tmp_path: Path, name: str) -> None:
    assert read(tmp_path / name, b"text\tlabel\na, b\tx\n") == [(2, "x", "a, b")]


def test_comma_is_detected_from_the_header(tmp_path: Path) -> None:
    assert read(tmp_path / "a.txt", b"text,label\na\tb,x\n") == [(2, "x", "a\tb")]


def test_comma_wins_over_a_tab_in_a_csv_file(tmp_path: Path) -> None:
    assert read(tmp_path / "a.CSV", b"label,text,a\tb\nx,y,z\n") == [(2, "x", "y")]


def test_long_text_is_read_without_changing_the_csv_field_limit(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(csv.field_size_limit, csv.field_size_limit(1000)))
    text = "long " * 210_000
    assert read(tmp_path / "a.csv", f"label,text\n1,{text}\n".encode()) == [(2, "1", text)]
    assert csv.field_size_limit() == 1000


def test_real_imdb_lines_are_read_unchanged(tmp_path: Path, shared: Path) -> None:
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
        (b"label,text\n1,a\n1,a,b\n", InputError, 3, "3 columns, but the first row has 2"),
        (b'label,text\n1,a\n1,"b\nc\n', InputError, 3, "not valid CSV"),
        (b'label,text\n1,"a"b\n', InputError, 2, "not valid CSV"),
        (b'label,text\n1,"a\nb"\n1,caf\xe9\n', InputError, 4, "0xe9 at position 6 is not UTF-8"),
        (b"a\0b,text\n", InputError, 1, "NUL bytes"),
        (
            b"label,review,title\n1,a,b\n",
            ConfigError,
            None,
            "'text' does not occur in the header, which is: label, review, title; name another",
        ),
        (b"No,Text,Note\n1,a,b\n", ConfigError, None, "the column 'label' does not occur in the"),
        (b"label,text,text\n1,a,b\n", ConfigError, None, "more than once"),
    ],
)
def test_error_names_file_and_row(
    tmp_path: Path, data: bytes, kind: type[BertAccumError], row: int | None, message: str
) -> None:
    path = tmp_path / "bad.csv"
    with pytest.raises(kind, match=message) as caught:
        read(path, data)
    assert (caught.value.path, caught.value.row) == (path, row)


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("sentence,label", "`text_column` sentence"),
        ("id,Review_Text,Stars", "`text_column` Review_Text, `label_column` Stars"),
        ("label,premise,hypothesis", "`text_column` premise, `text_pair_column` hypothesis"),
        ("words,label", "`text_column` words"),
        ("text,kind", "`label_column` kind"),
        ("id,title,review,label", None),  # Two names of texts.
        ("words,kind", None),
        ("id,words,label", None),
        ("review,topic,rating", None),  # Two names of labels.
        ("review_id,label,name", None),
        ("idx,text", None),  # No label.
        ("Unnamed: 0,text", None),
    ],
)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_header_that_leaves_one_choice_needs_no_options(
    tmp_path: Path, header: str, columns: str | None, form: str
) -> None:
    path, notes, names = tmp_path / f"a.{form}", list[str](), header.split(",")
    rows = [[f"{name} {number}" for name in names] for number in range(2)]
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    path.write_text("\n".join(lines if form == "jsonl" else [header, *map(",".join, rows)]))
    if columns is None:
        with pytest.raises(ConfigError, match="does not occur in the header"):
            list(read_rows(path, note=notes.append))
        return
    found = list(read_rows(path, note=notes.append))
    assert f"{path}: reading {columns}, as the header suggests" in notes
    chosen = dict(part.rsplit(" ", 1) for part in columns.split(", "))
    text, label = chosen.get("`text_column`", "text"), chosen.get("`label_column`", "label")
    assert [(row.text, row.label) for row in found] == [
        (f"{text} {n}", f"{label} {n}") for n in (0, 1)
    ]
    assert found[0].pair == ("hypothesis 0" if "pair" in columns else None)


@pytest.mark.parametrize(
    ("rows", "cola"),
    [
        (["texte,classe,source,langue", "bon,pos,web,fr", "mauvais,neg,tv,fr"], False),
        (["bon,1,web,fr", "mauvais,0,tv,fr"], False),
        (["gj04,1,,good", "gj04,0,*,bad", "gj04,0,?*,worse"], True),
        (["1,1,a,good", "2,0,a,bad"], True),  # A constant in place of the marks.
    ],
)
def test_four_columns_are_those_of_cola_only_with_its_marks(
    tmp_path: Path, rows: list[str], cola: bool
) -> None:
    path, notes = tmp_path / "a.csv", list[str]()
    path.write_text("\n".join(rows))
    if not cola:
        with pytest.raises(ConfigError, match="'text' does not occur in the header"):
            list(read_rows(path))
        return
    found = list(read_rows(path, note=notes.append))
    assert [(row.label, row.text) for row in found][:2] == [("1", "good"), ("0", "bad")]
    said = f"{path}: no header, so column 2 has the labels and column 4 has the texts, as in CoLA"
    assert notes[-1] == said


def test_name_of_a_column_may_be_a_number(tmp_path: Path) -> None:
    """A data frame of pandas without names has such columns."""
    path, notes, rows = tmp_path / "a.csv", list[str](), "0,pos,good\n1,neg,bad\n"
    path.write_text(f",0,1\n{rows}")
    found = list(read_rows(path, ReadOptions("3", "2"), notes.append))
    assert [(row.label, row.text) for row in found] == [("pos", "good"), ("neg", "bad")]
    assert notes[-1].endswith("row 1 (, 0, 1) is the header and is not read as data")
    (tmp_path / "a.jsonl").write_text('{"0": "pos", "1": "good"}\n')
    for name, text, label in (("a.csv", "3", "1"), ("a.jsonl", "2", "1")):
        with pytest.raises(ConfigError, match=r"1 may be column 1 or \d, which is named 1; ren"):
            list(read_rows(tmp_path / name, ReadOptions(text, label)))
    headless = b"3,2,good\n1,0,bad\n"
    assert read(path, headless, text="3", label="2") == [(1, "2", "good"), (2, "0", "bad")]


def test_options_that_do_not_fit_the_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with pytest.raises(ConfigError, match="`text_column` 3 is not one of the columns 1 to 2"):
        read(path, b"a,b\n", text="3", label="1")
    with pytest.raises(ConfigError, match="`label_column` 0 is not"):
        read(path, b"a,b\n", text="1", label="0")
    with pytest.raises(ConfigError, match="are the same column"):
        read(path, b"text,b\n", text="text", label="text")
    with pytest.raises(ConfigError, match="are the same column"):
        read(path, b"text,label\n", text="text", label="1")
    with pytest.raises(ConfigError, match=r"no delimiter was found.*`delimiter`"):
        read(tmp_path / "a.txt", b"words\nand words\n")
    with pytest.raises(InputError, match="no such file"):
        list(read_rows(tmp_path / "none.csv", ReadOptions()))


STRAY = b'label\ttext\n0\t"bad acting\n1\tnice\n0\tdull"\n'


def test_stray_quotes_in_a_tsv_are_ordinary_characters(tmp_path: Path) -> None:
    plain = b"".join(b"%d\ttext %d\n" % (i % 2, i) for i in range(41))
    found = read(tmp_path / "a.tsv", STRAY + plain)
    assert len(found) == 44
    assert found[:3] == [(2, "0", '"bad acting'), (3, "1", "nice"), (4, "0", 'dull"')]
    quoted = b'label\ttext\n0\t"bad" acting and "worse" plot\n1\t"nice"\n0\tplain\n'
    texts = [text for _, _, text in read(tmp_path / "a.tsv", quoted)]
    assert texts == ['"bad" acting and "worse" plot', '"nice"', "plain"]


def test_row_inside_the_second_quoted_field_of_a_record_is_found(tmp_path: Path) -> None:
    data = b'label,note,text\n1,"q,w\ne,r","t\n0,x,u"\n' + b"0,x,plain\n1,x,other\n" * 3
    with pytest.raises(InputError, match=r"row 3: .*close or remove the quote"):
        read(tmp_path / "a.csv", data)


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        # Pandas and Python's csv enclose fields that need it.
        (b'label\ttext\n1\t"say ""hi"""\n0\tplain\n', ['say "hi"', "plain"]),
        (b'label\ttext\n1\t"one\ttab"\n0\t"plain"\n', ["one\ttab", "plain"]),
        (b'label\ttext\n1\t"two\nlines"\n0\tplain\n', ["two\nlines", "plain"]),
        # Excel also encloses fields that contain a comma.
        (b'label\ttext\n1\t"this, that"\n0\tplain\n1\t"a, b"\n', ["this, that", "plain", "a, b"]),
        # Whole columns are enclosed, with or without the header.
        (b'"label"\t"text"\n1\t"good"\n0\t"bad"\n', ["good", "bad"]),
        (b'label\ttext\n1\t"good"\n0\t"bad"\n', ["good", "bad"]),
        (b'label\ttext\n1\t"say ""hi"""\n  \n0\tplain\n \n', ['say "hi"', "plain"]),
        # Missing values and numbers are not enclosed, and empty fields may be.
        (b'"label"\t"text"\n"pos"\tNA\nNA\t"bad"\n"neg"\t7\n\\N\t"8"\n', ["NA", "bad", "7", "8"]),
        (b'label\ttext\n1\t""\n0\t"say ""hi"""\n1\tplain\n', ["", 'say "hi"', "plain"]),
        # R and Spark write a backslash before a quote.
        (b'"label"\t"text"\n"a"\t"say \\"hi\\""\n"b"\tNA\n', ['say "hi"', "NA"]),
        (b'label\ttext\na\t"\\"hi\\", she said"\nb\tC:\\new\n', ['"hi", she said', "C:\\new"]),
        # The fields follow none of these conventions, so quotes are ordinary characters.
        (b'label\ttext\n1\t"good"\n0\tbad\n', ['"good"', "bad"]),
        (b'label\ttext\n1\t"this, that"\n0\tso, so\n', ['"this, that"', "so, so"]),
        (b'label\ttext\n1\t"say ""hi"""\n0\t6" pizza\n', ['"say ""hi"""', '6" pizza']),
        (b'label\ttext\n1\tsay \\"hi\\"\n0\t"plain"\n', ['say \\"hi\\"', '"plain"']),
        (b'label\ttext\n1\t"say \\"hi\\""\n0\t"plain\n', ['"say \\"hi\\""', '"plain']),
        (b'label\ttext\n1\t"\\"hi\\""\n0\t"no"\n0\tso\n', ['"\\"hi\\""', '"no"', "so"]),
    ],
)
def test_tsv_is_quoted_only_if_the_whole_file_is(
    tmp_path: Path, data: bytes, texts: list[str]
) -> None:
    assert [text for _, _, text in read(tmp_path / "a.tsv", data)] == texts


@pytest.mark.parametrize("column", ["text", "2"])
def test_quoted_header_above_other_fields_is_refused(tmp_path: Path, column: str) -> None:
    data = b'"label"\t"text"\n"a"\t"C:\\"\n"b"\t"bad"\n"b"\tsay "hi"\n'
    label = "label" if column == "text" else "1"
    with pytest.raises(InputError, match="row 1: the column names are in double quotes, but"):
        read(tmp_path / "a.tsv", data, column, label)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.tsv", b'label\ttext\n0\t"bad acting\n1\tnice\t3\n0\tdull"\n1\tfine\n'),
        ("a.csv", STRAY.replace(b"\t", b",") + b"1,fine\n"),
        ("a.csv", STRAY.replace(b"\t", b";") + b"1;fine\n"),
        ("a.csv", STRAY.replace(b"\t", b";") + b'1;6" pizza\n0;fine\n'),
    ],
)
def test_quoted_field_that_looks_like_rows_is_refused(
    tmp_path: Path, name: str, data: bytes
) -> None:
    with pytest.raises(InputError, match=r"a\..sv, row 2: a quoted field spans.*close"):
        read(tmp_path / name, data)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
@pytest.mark.parametrize("columns", [("text", "label"), ("2", "1")])
def test_delimiter_is_detected_and_reported(
    tmp_path: Path, delimiter: str, name: str, columns: tuple[str, str]
) -> None:
    rows = [("label", "text"), ("1", "good"), ("0", "not so good"), ("1", "fine")]
    path = tmp_path / name
    path.write_text("".join(f"{delimiter.join(row)}\n" for row in rows))
    said: list[str] = []
    found = list(read_rows(path, ReadOptions(*columns), said.append))
    assert [(row.label, row.text) for row in found] == rows[1:]
    word = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}[delimiter]
    assert said[0] == f"{path}: columns separated by {word}"


def test_chosen_delimiter_is_used(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("label,x;text\n1,x;a\n")
    assert next(read_rows(path, ReadOptions("text", "label,x", ";")))[:3] == (2, "1,x", "a")
    message = r"header, which has only one column, 'label,x;text'; check `delimiter`"
    with pytest.raises(ConfigError, match=message):
        next(read_rows(path, ReadOptions(delimiter="\t")))
    path.write_text("label~text\n1~a\n")
    assert next(read_rows(path, ReadOptions(delimiter="~")))[:3] == (2, "1", "a")


HEADERS = ["label,text", "class,words", "Bewertung,Kommentar", ",sentence", "stars,review_body"]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("labels", [("pos", "neg"), ("1", "0")])
def test_header_above_numbered_columns_is_skipped(
    tmp_path: Path, header: str, labels: tuple[str, str]
) -> None:
    path, said = tmp_path / "a.csv", list[str]()
    rows = "".join(f"{labels[i % 2]},text {i}\n" for i in range(30))
    path.write_text(f"{header}\n{rows}")
    found = list(read_rows(path, ReadOptions("2", "1"), said.append))
    assert (len(found), {row.label for row in found}) == (30, set(labels))
    names = header.replace(",", ", ")
    assert said[-1] == f"{path}: row 1 ({names}) is the header and is not read as data"


@pytest.mark.parametrize(
    "first",
    [
        "label,a first text",  # A class named label, which occurs again below.
        "other,A rare class.",
        "1,text",
        "pos,text",
        "neutral,this is a text of more than four words",
    ],
)
def test_first_row_of_data_is_kept(tmp_path: Path, first: str) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(f"{('pos', 'neg', 'label')[i % 3]},text number {i}\n" for i in range(30))
    path.write_text(f"{first}\n{rows}")
    assert len(list(read_rows(path, ReadOptions("2", "1")))) == 31


@pytest.mark.parametrize(
    ("name", "data", "column"),
    [
        ("a.tsv", 'mabel\t,text\n1\t"good, ""ve', "text"),  # Two delimiters fit.
        ("a.csv", "a,stars\ngood,1\nbad,0\n", "text"),  # The label is found, so one column is left.
        ("a.csv", "a,label\ngood,1\nbad,0\n", "text"),
        ("a.csv", "Was it good?,label\nyes,1\nno,0\n", "1"),
        ("a.csv", "label,text\n1,good\n0,bad\n  \n", "text"),  # An editor added a line.
        ("a.txt", "\nlabel,text\n1,good\n", "text"),
        ("a.txt", "id\ttext\tlabel\n3\tgood\t1\n", "text"),
        ("a.txt", "\n__label__1 good\n__label__0 bad\n", "text"),
        ("a.txt", '{"text": "good", "label": 1}\n', "text"),
    ],
)
def test_texts_are_the_same_with_and_without_labels(
    tmp_path: Path, name: str, data: str, column: str
) -> None:
    """`prepare` and `eval` read labels; `predict` and `train --unlabelled` do not."""
    path = tmp_path / name
    path.write_text(data)
    with_labels = [row.text for row in read_rows(path, ReadOptions(column))]
    assert list(read_texts(path, ReadOptions(column, label_column=None))) == with_labels


def test_first_column_alone_makes_a_table_of_texts_without_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("id\ttext\n1\tgood\n")
    assert list(read_texts(path, ReadOptions(label_column=None))) == ["good"]


@pytest.mark.parametrize(
    ("options", "texts"), [({}, ["text", "a"]), ({"text_column": "text"}, ["a"])]
)
def test_default_text_column_may_be_named(
    tmp_path: Path, options: dict[str, str], texts: list[str]
) -> None:
    (tmp_path / "a").write_text("text\na\n")
    reading = read_options(PredictConfig(file=str(tmp_path / "a"), **options), label_column=None)
    assert list(read_texts(tmp_path / "a", reading)) == texts


@pytest.mark.parametrize(
    "data",
    [
        "Please call, text, or email me\nThe food was good\n",
        "text | email\nplain line\n",
        '{"level": "error"}\n{"level": "info"}\n',
        '{"text": "a", "text_pair": "b"}\nc\td\n',
    ],
)
def test_first_line_alone_makes_no_table_of_texts(tmp_path: Path, data: str) -> None:
    (tmp_path / "a.txt").write_text(data)
    texts = list(read_texts(tmp_path / "a.txt", ReadOptions(label_column=None)))
    assert texts == data.splitlines()


@pytest.mark.parametrize("header", ["id,opinion", ",opinion"])
def test_column_of_texts_without_labels_may_be_the_only_one(tmp_path: Path, header: str) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,good\n2,bad\n")
    texts = list(read_texts(tmp_path / "a.csv", ReadOptions(label_column=None)))
    assert texts == ["good", "bad"]


def test_columns_that_are_left_are_found_by_name_only(tmp_path: Path) -> None:
    """The name `1` would be taken for the first column, and so its header for a text."""
    with pytest.raises(ConfigError, match="'text' does not occur in the header"):
        read(tmp_path / "a.csv", b"label,1\n0,good\n")
    with pytest.raises(ConfigError, match="'label' does not occur in the header"):
        read(tmp_path / "a.csv", b"summary,text\nshort,long\n", text="summary")


def test_header_is_not_decided_by_a_column_that_the_file_lacks(tmp_path: Path) -> None:
    path, said = tmp_path / "a.csv", list[str]()
    path.write_text("good food,1\nbad food,0\n")
    reading = ReadOptions("1", "2", weight_column="w", may_lack_weights=True)
    assert [row.text for row in read_rows(path, reading, said.append)] == ["good food", "bad food"]
    assert said[-1] == f"{path}: row 1 is read as data, because it does not look like a header"
