"""Tests of sentences whose words have tags: CoNLL files, JSON Lines, spans, and bad input."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertaccum.errors import BertAccumError, ConfigError
from bertaccum.options.prepare import PrepareConfig
from bertaccum.system.progress import ignore_note, silent
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.prepared_labels import read_labels
from data_prep.labels.tag_schemes import entities, find_scheme, forbidden_tags, why_no_scheme
from data_prep.preparation import prepare
from data_prep.sources.own_files import own_source, split_files
from data_prep.tables.columns import ReadOptions
from data_prep.tables.manifest import TOOL
from data_prep.tables.table import read_rows
from data_prep.tables.texts_to_classify import read_texts
from data_prep.tables.tsv import read_tsv
from data_prep.tables.words import SplitText, word_spans

Program = Callable[..., tuple[int, str, str]]


def rows(path: Path, content: str | bytes, **options: object) -> list[tuple[str | None, str]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    reading = ReadOptions(words=True, **options)
    return [(row.label, row.text) for row in read_rows(path, reading, ignore_note)]


TWO = [("B-PER O", "Ada lives"), ("O", "Yes")]


@pytest.mark.parametrize(
    "content",
    [
        "Ada\tB-PER\nlives\tO\n\nYes\tO\n",
        "Ada B-PER\nlives O\n\n\nYes O",
        "\n-DOCSTART-\tO\n\nAda\tB-PER\nlives\tO\n\t\nYes\tO\n",
        "# id = 1\nAda\tNNP\tB-PER\nlives\tVB\tO\n\n# id = 2\nYes\tUH\tO\n",
        "\ufeffAda\tB-PER\r\nlives\tO\r\n\r\nYes\tO\r\n",
        "#begin document (a); part 000\nAda\tB-PER\nlives\tO\n\n###MEDLINE:1\n\n#id=2\nYes\tO\n",
    ],
    ids=[
        *("tabs", "spaces", "documents, a tab", "comments, three columns", "Windows"),
        "comments without a space",
    ],
)
def test_conll_files_have_a_word_in_each_line(tmp_path: Path, content: str) -> None:
    assert rows(tmp_path / "train.conll", content) == TWO


@pytest.mark.parametrize(
    ("content", "skipped"),
    [
        ("# id 5\tdomain=en\nAda _ _ B-PER\nlives _ _ O\n\n# sent_id = 1\nYes _ _ O\n", "1, 5"),
        ("# newdoc\nAda B-PER\nlives O\n\nYes O\n", "1"),
        ("# a\tb\nAda\tB-PER\nlives\tO\n\nYes\tO\n", "1"),
    ],
)
def test_comments_may_have_as_many_cells_as_words(
    tmp_path: Path, content: str, skipped: str
) -> None:
    notes, path = list[str](), tmp_path / "a.conll"
    path.write_text(content)
    found = read_rows(path, ReadOptions(words=True), notes.append)
    assert [(row.label, row.text) for row in found] == TWO
    assert notes[-1].endswith(f"skipped rows as comments, because no word has their tag: {skipped}")


@pytest.mark.parametrize("line", ["#\tO", "# O", "#hashtag O", "#\tB-X\nAda\tB-X"])
def test_words_may_begin_with_a_number_sign(tmp_path: Path, line: str) -> None:
    word = line.split()[0]
    [(_, text)] = rows(tmp_path / "a.conll", f"{line}\n{line.replace(word, 'b')}\n")
    assert text.split()[0] == word


@pytest.mark.parametrize("name", ["a.conll", "a.txt"])
def test_first_word_may_be_a_bracket(tmp_path: Path, name: str) -> None:
    for bracket in "[{":
        assert rows(tmp_path / name, f"{bracket} O\nAda B-PER\n") == [("O B-PER", f"{bracket} Ada")]
    for content in (json.dumps([RECORDS["lists"]]), json.dumps([RECORDS["lists"]], indent=1)):
        assert rows(tmp_path / "b.txt", content) == TWO[:1]


def test_columns_are_chosen_by_number(tmp_path: Path) -> None:
    """A line of CoNLL-U for two words at once, such as `don't`, is no word."""
    content = (
        "# text = don't go\n1-2\tdon't\t_\t_\n1\tdo\tdo\tAUX\n2\tn't\tnot\tPART\n3\tgo\tgo\tVERB\n"
    )
    found = rows(tmp_path / "a.conllu", content, text_column="2", label_column="4")
    assert found == [("AUX PART VERB", "do n't go")]


TEXT = {"text": "Ada lives"}
SPAN = '{"start": %d, "end": 2, "labels": ["X"], "text": "b"}'
RECORDS = {
    "lists": {"tokens": ["Ada", "lives"], "ner_tags": ["B-PER", "O"]},
    "numbers": {"tokens": ["Ada", "lives"], "ner_tags": [1, 0]},
    "doccano": {
        "text": "Ada lives",
        "entities": [{"start_offset": 0, "end_offset": 3, "label": "PER"}],
    },
    "old doccano": TEXT | {"label": [[0, 3, "PER"]]},
    "Label Studio, few fields": {
        "text": "Ada lives",
        "label": [{"start": 0, "end": 3, "labels": ["PER"]}],
    },
    "Label Studio": {
        "data": {"text": "Ada lives"},
        "annotations": [{"result": [{"value": {"start": 0, "end": 3, "labels": ["PER"]}}]}],
    },
    "Prodigy": {
        "text": "Ada lives",
        "tokens": [{"text": "Ada", "start": 0, "end": 3}, {"text": "lives", "start": 4, "end": 9}],
        "spans": [{"start": 0, "end": 3, "token_start": 0, "token_end": 0, "label": "PER"}],
        "answer": "accept",
    },
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_records_have_lists_or_spans(tmp_path: Path, record: dict[str, object]) -> None:
    names = ("O", "B-PER")
    lines = rows(tmp_path / "a.jsonl", json.dumps(record) + "\n", tag_names=names)
    array = rows(tmp_path / "a.json", json.dumps([record], indent=1), tag_names=names)
    assert lines == array == TWO[:1]


def test_rejected_examples_are_skipped_only_if_they_have_tags(tmp_path: Path) -> None:
    answers = ("accept", "reject", "ignore")
    content = "".join(json.dumps(RECORDS["Prodigy"] | {"answer": one}) + "\n" for one in answers)
    assert rows(tmp_path / "a.jsonl", content) == TWO[:1]
    assert len(rows(tmp_path / "a.jsonl", content, label_column=None)) == 3


def test_spans_cut_words_and_count_characters_in_either_way(tmp_path: Path) -> None:
    """Python counts the emoji once, JavaScript twice."""
    text = "😀 (New York)ers"
    for start, end in ((3, 11), (4, 12)):
        span = {"start": start, "end": end, "labels": ["LOC"], "text": "New York"}
        [found] = rows(tmp_path / "a.jsonl", json.dumps({"text": text, "label": [span]}))
        assert found == ("O O B-LOC I-LOC O O", "😀 ( New York ) ers")


@pytest.mark.parametrize(
    ("others", "label"),
    [
        ([], "O O B-X O"),
        ([("😀 Bob", 3)], "O B-X O O"),
        ([("no emoji, Bob", 10), ("😀 Bob", 3)], "O B-X O O"),
        ([("😀 Bob", 2)], "O O B-X O"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_places_are_counted_alike_in_the_whole_file(
    tmp_path: Path, others: list[tuple[str, int]], label: str, is_first: bool
) -> None:
    def record(text: str, start: int, said: str) -> str:
        span = {"start": start, "end": start + len(said), "labels": ["X"], "text": said}
        return json.dumps({"text": text, "label": [span]})

    unclear, path = ("😀😀😀 ha ha ha", 7, "ha"), tmp_path / "a.jsonl"  # The first or the second.
    known = [record(*other, "Bob") for other in others]
    lines = [record(*unclear), *known] if is_first else [*known, record(*unclear)]
    found = rows(path, "\n".join(lines))
    assert found[0 if is_first else -1] == (label, unclear[0]) and len(found) == len(lines)
    both = [record("😀 Bob", 2, "Bob"), record("😀 Bob", 3, "Bob")]
    with pytest.raises(BertAccumError, match=r"row 2: the entity X from [23] to [56] is not"):
        rows(path, "\n".join(both if is_first else both[::-1]))


@pytest.mark.parametrize(
    "result",
    [
        7,
        [{"value": 1.5}],
        [{"from_name": "a"}],
        [None, {"value": None}, {"value": {"choices": ["good"]}}],
    ],
)
def test_results_of_label_studio_without_entities_are_skipped(
    tmp_path: Path, result: object
) -> None:
    task = {"data": TEXT, "annotations": [None, {"was_cancelled": True}, {"result": result}]}
    assert rows(tmp_path / "a.json", json.dumps([task])) == [("O O", "Ada lives")]


def test_tasks_of_label_studio_need_no_annotation_for_predictions(tmp_path: Path) -> None:
    content = json.dumps([{"data": TEXT}, {"data": TEXT, "annotations": []}])
    assert rows(tmp_path / "a.json", content, label_column=None) == [(None, "Ada lives")] * 2


def test_labels_of_a_span_are_a_list_or_a_name(tmp_path: Path) -> None:
    for label in ("PER", ["PER"]):
        span = {"start": 0, "end": 3, "labels": label}
        [found] = rows(tmp_path / "a.jsonl", json.dumps(TEXT | {"label": [span]}))
        assert found == TWO[0]
    span = {"start": 0, "end": 3, "labels": {"PER": 1}}
    with pytest.raises(BertAccumError, match="has no start, end and label"):
        rows(tmp_path / "a.jsonl", json.dumps(TEXT | {"label": [span]}))


def test_sentences_without_words_are_skipped_only_if_they_have_tags(tmp_path: Path) -> None:
    content = '{"tokens": [], "tags": []}\n{"tokens": ["a"], "tags": ["O"]}\n{"text": " "}\n'
    assert rows(tmp_path / "a.jsonl", content[: content.rindex("{")]) == [("O", "a")]
    unlabeled = rows(tmp_path / "a.jsonl", content, label_column=None)
    assert [text for _, text in unlabeled] == ["", "a", ""]


def test_odd_words_stay_words(tmp_path: Path) -> None:
    """Inside of a word, a space does not separate; a word that cannot be seen becomes [UNK]."""
    content = f"a b\tO\n\u200b\tO\n😀\tB-X\n{'x' * 300}\tO\n\x07\tO\n"
    [(label, text)] = rows(tmp_path / "a.conll", content)
    assert label == "O O B-X O O"
    assert text == f"a\u00a0b \ufffd 😀 {'x' * 300} \ufffd"


@pytest.mark.parametrize(
    ("name", "content", "row", "message"),
    [
        ("a.conll", "a\tO\nb\n\nc\tO\nd\tO\n", 2, "has 1 column, but most lines have 2"),
        ("a.conll", "a\tO\nb\t\n", 2, "has a word without a tag"),
        ("a.conll", "#a\nb\tO\nc\tO\n", 1, "1 column, but .*; a comment begins with # and a space"),
        ("a.conll", "b\tN\tO\n\n#a\tN\nc\tN\tO\n", 3, "has 2 columns, but most lines have 3"),
        ("a.conll", "", None, "is empty"),
        ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}', 1, "has 2 tokens and 1 tag"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [7]}', 1, "the tag 7 is not one of"),
        ("a.jsonl", '{"tokens": [3], "tags": ["O"]}', 1, "a token that is not text"),
        ("a.jsonl", '{"text": "ab", "entities": [[1, 5, "X"]]}', 1, "is not inside the text"),
        ("a.jsonl", '{"text": "a b", "entities": [[1, 2, "X"]]}', 1, "contains no word"),
        ("a.jsonl", '{"text": "abc", "entities": [[0, 2, "X"], [1, 3, "Y"]]}', 1, "overlap"),
        ("a.jsonl", '{"text": "abc", "entities": [{"start": 0}]}', 1, "no start, end and label"),
        ("a.jsonl", '{"text": "abc"', 1, "is not valid JSON"),
        ("a.conll", "a\tO\nb\t\u200b\n", 2, "has the tag '\\\\u200b'"),
        ("a.tsv", "label\ttext\nX \u200b\ta b\n", 2, "has the tag '\\\\u200b'"),
        ("a.jsonl", '{"text": "abc", "label": [[-3, -1, "X"]]}', 1, "is not inside the text"),
        ("a.jsonl", f'{{"text": "😀b\\ud800", "label": [{SPAN % -4}]}}', 1, "is not inside"),
        ("a.jsonl", f'{{"text": "abc", "label": [{SPAN % 9}]}}', 1, "is not inside the text"),
        ("a.jsonl", '{"text": "ab", "label": [[0, 1, ["X", "Y"]]]}', 1, "start, end and label"),
        ("a.jsonl", '{"data": {"text": "ab"}, "annotations": 7}', 1, "has no annotation"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["B\\ud83d"]}', 1, r"has the tag 'B\\ud83d'"),
        ("a.csv", "text,label\na b,O\n", 2, "has 2 words and 1 tag"),
        ("a.conll", "label\ttext\nO\ta b\n", 2, "has the tag 'a b'"),
        ("a.csv", "Sentence,Word,Tag\n" + "1,a,O\n" * 30, None, "have only one word"),
        ("a.csv", "text,label\n\"['a b', 'c']\",\"['O']\"\n", 2, "has 2 words and 1 tag"),
        ("a.csv", 'text,label\n"[\'a\', b]","[0, 1]"\n', 2, "the list .* cannot be read"),
        ("a.csv", "text,label\n\"['a', 'b']\",[O O]\n", 2, r"the list '\[O O\]' cannot be read"),
        ("a.conll", "a\tO\nb\t2\n", 2, "the tag 2 is not one of the numbers 0 to 1"),
        ("a.conll", "a\tx\tO\n" * 3 + "b\tO\n", 4, "has 2 columns, but most lines have 3"),
        ("a.conll", "a\tO\nb\tI X\n", 2, "has the tag 'I X'"),
        ("a.jsonl", '{"tokens": ["a"], "tags": "O"}', 1, "has no list tags; .*: tokens, tags"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [null]}', 1, "the tag None is not text"),
        ("a.jsonl", '{"tokens": "a", "tags": ["O"]}', 1, "neither a list tokens nor a text"),
        ("a.jsonl", '{"text": "a b", "label": [[2, 2, "X"]]}', 1, "from 2 to 2 is not inside"),
        ("a.jsonl", '{"text": "a b", "label": [[3, 0, "X"]]}', 1, "from 3 to 0 is not inside"),
        ("a.jsonl", f'{{"text": "a", "label": [[0, {10**30}, "X"]]}}', 1, "is not inside"),
        (
            "a.json",
            '[{"data": {"text": "a"}, "annotations": [{"result": [{"value": {"start": "/p[1]",'
            ' "hypertextlabels": ["X"]}}]}]}]',
            1,
            "has hypertextlabels, whose places are not characters",
        ),
    ],
)
def test_bad_input_names_the_row(
    tmp_path: Path, name: str, content: str, row: int | None, message: str
) -> None:
    columns = {"text_column": "Word", "label_column": "Tag"} if "Word" in content else {}
    with pytest.raises(BertAccumError, match=message) as error:
        rows(tmp_path / name, content, tag_names=("O", "X"), **columns)
    assert error.value.row == row and str(error.value.path).endswith(name)


def test_prepared_words_have_as_many_tags_as_training_reads(tmp_path: Path) -> None:
    """A word may contain spaces, NUL and surrogates; a table and its copies have the same words."""
    odd = ["New York", "\u00a0", "a\x00b", "a\ud800b", "\x00", "\x1c", "a\u2028b", "\u3000c\t"]
    record = {"tokens": odd, "tags": ["B-X", *["O"] * 7]}
    lines = [json.dumps(record | {"tokens": [*odd[:-1], str(n)]}) for n in range(9)]
    source, out = tmp_path / "a.jsonl", tmp_path / "data"
    source.write_text("\n".join([json.dumps(record), *lines]))
    config = PrepareConfig(
        source="csv", task="token-classification", train_file=str(source), out=str(out)
    )
    prepare(config, silent, list)
    labels = read_labels(out, None)
    for name in ("train", "dev"):
        table = read_tsv(out / f"{name}.tsv")
        tags = make_task(labels).encode(out / f"{name}.tsv", table)
        assert tags.shape == (len(table), 8)
        assert all(map(str.isprintable, "".join(table["text"]).replace("\u00a0", "")))
        copied = rows(out / f"{name}.tsv", (out / f"{name}.tsv").read_bytes())
        assert [text for _, text in copied] == table["text"].tolist()
    [(_, text)] = rows(source, json.dumps(record))
    assert text == "New\u00a0York \ufffd ab ab \ufffd \ufffd a\u00a0b c"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_column": "tag"}, "is not one of the columns 1 to 2"),
        ({"weight_column": "2"}, "`weight_column` applies to tables only"),
        ({"delimiter": ","}, "`delimiter` applies to tables only"),
        ({"label_columns": ("1", "2")}, "`label_columns` applies to tables only"),
    ],
)
def test_conll_files_have_numbered_columns_only(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        rows(tmp_path / "a.conll", "a\tO\n", **options)


@pytest.mark.parametrize("names", ["O,O", "O,B X", "O,,B-X"])
def test_names_of_tags_are_different_words(names: str) -> None:
    with pytest.raises(ConfigError, match=r"in `tag_names` (occurs twice|is not one word)"):
        PrepareConfig(source="csv", train_file="a", task="token-classification", tag_names=names)


def test_tags_have_no_pairs_of_texts() -> None:
    with pytest.raises(ConfigError, match="contradict each other"):
        PrepareConfig(
            source="csv", train_file="a", task="token-classification", text_pair_column="b"
        )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.conll", "Ada\t1\nlives\t0\n"),
        ("a.jsonl", '{"tokens": ["Ada", "lives"], "tags": ["1", "0"]}'),
        ("a.csv", "text,label\nAda lives,1 0\n"),
    ],
)
def test_numbers_are_named_in_each_format(tmp_path: Path, name: str, content: str) -> None:
    assert rows(tmp_path / name, content, tag_names=("O", "B-PER")) == TWO[:1]


def test_classes_have_the_order_of_the_names(tmp_path: Path) -> None:
    """Other files with the same numbers have the same tags."""
    path, names = tmp_path / "a.conll", "I-PER,B-PER,O,B-LOC"
    path.write_text("".join(f"{n}\t0\n{n}\t{n % 3}\n\n" for n in range(9)))
    config = {"source": "csv", "task": "token-classification", "train_file": str(path)}
    config |= {"out": str(tmp_path / "data")}
    manifest = prepare(PrepareConfig(**config, tag_names=names), silent, list).manifest
    assert manifest["labels"] == names.split(",")
    path.write_text("a\tB-X\nb\t0\n")
    with pytest.raises(BertAccumError, match=r"without a name in `tag_names`: B-X"):
        prepare(PrepareConfig(**config, tag_names=names, overwrite=True), silent, list)


def test_prepare_says_why_there_is_no_scheme(tmp_path: Path, program: Program) -> None:
    path = tmp_path / "a.conll"
    path.write_text("".join(f"{n}\tB-X\nb\tPER\n\n" for n in range(9)))
    options = ["--source", "csv", "--task", "token-classification", "--train-file", path]
    _, _, said = program("prepare", *options, "--out", tmp_path / "data")
    assert "so entities are not counted: these tags have no prefix and type" in said
    path.write_text("".join(f"{n}\t1\nb\t0\n\n" for n in range(9)))
    assert "--tag-names names them" in program("prepare", *options, "--out", tmp_path / "b")[2]


def test_texts_of_equal_length_are_no_conll_file(tmp_path: Path) -> None:
    path, words = tmp_path / "a.txt", ReadOptions(words=True, label_column=None)
    path.write_text("APC is here.\n\nAnd a cancer.\n")
    assert list(read_texts(path, words)) == ["APC is here.", "", "And a cancer."]
    path.write_text("APC NN\nU.S. NN\n. .\n\ncancer NN\n")
    assert list(read_texts(path, words)) == ["APC U.S. .", "cancer"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.conll", "Ada\tB-PER\nlives\tO\n"),  # One sentence, without a line after it.
        ("a.conll", "Ada\n,\nlives\n\nYes\n"),
        ("a.txt", "Ada\n,\nlives\n\nYes\n\n"),
        ("a.txt", "text\tner\nAda\tB-PER\nlives\tO\n\nYes\tO\n"),
        ("a.tsv", "text\tner\nAda\tB-PER\nlives\tO\n\nYes\tO\n"),
        ("a.txt", "# sent_id = 1\n# text = Yes\n1\tYes\tO\n\n" * 3),
    ],
)
def test_sentences_are_the_same_with_and_without_tags(
    tmp_path: Path, name: str, content: str
) -> None:
    with_tags = [text for _, text in rows(tmp_path / name, content)]
    assert len(with_tags) == content.strip().count("\n\n") + 1
    found = list(read_texts(tmp_path / name, ReadOptions(words=True, label_column=None)))
    assert found == with_tags
    assert all(isinstance(text, SplitText) for text in found)


def test_words_of_a_chosen_column_are_not_split(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 Mr. PER\n2 Lee's PER\n")
    found = list(read_texts(tmp_path / "a.txt", ReadOptions("2", None, words=True)))
    assert [word_spans(text) for text in found] == [[(0, 3), (4, 9)]]


@pytest.mark.parametrize("header", ["token\tpos\tner_tags", "form\tupos\tdeprel"])
def test_header_names_another_column_of_tags(tmp_path: Path, header: str) -> None:
    found = rows(tmp_path / "a.conll", f"{header}\nAda\tNN\tB\n\nYes\tUH\tO\n", label_column="2")
    assert found == [("NN", "Ada"), ("UH", "Yes")]


def test_table_of_texts_may_have_the_header_of_a_conll_file(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\ttags\nAda lives\tB-PER O\nYes\tO\n")
    reading = ReadOptions(words=True, label_column=None)
    assert list(read_texts(tmp_path / "a.tsv", reading)) == ["Ada lives", "Yes"]


def test_cells_contain_lists_as_pandas_writes_them(tmp_path: Path) -> None:
    """In a prepared file, such a cell is a sentence."""
    path, cell = tmp_path / "a.csv", "['New York', '[x]']"
    lists = f"text,label\n\"{cell}\",\"['B-LOC', 'O']\"\nAda lives,\"['B-PER', 'O']\"\n"
    assert rows(path, lists) == [("B-LOC O", "New\u00a0York [x]"), TWO[0]]
    assert rows(path, "text,label\n[a] b],O O\n") == [("O O", "[a] b]")]
    (tmp_path / "manifest.json").write_text(json.dumps({"tool": TOOL, "files": {"train.tsv": {}}}))
    prepared = rows(tmp_path / "train.tsv", f"label\ttext\n0 1 0\t{cell}\n")
    assert prepared == [("0 1 0", cell)]


@pytest.mark.parametrize(
    ("text", "label", "words"),
    [
        ("['Ada', 'lives']", "[1, 0]", ["Ada", "lives"]),
        ("['Ada'\n 'lives']", "[1 0]", ["Ada", "lives"]),
        ("""["it's" ',' 'a "b"']""", "[0 0 1]", ["it's", ",", 'a\u00a0"b"']),
        ("['np.array(x)', '\\\\d']", "['O', 'B-PER']", ["np.array(x)", "\\d"]),
        ("[np.str_('Ada') np.str_('lives')]", "[np.int64(1) np.int64(0)]", ["Ada", "lives"]),
        ("[2020, 7]", "[0, 1]", ["2020", "7"]),
        ("[ he said ]", "O B-PER O O", ["[", "he", "said", "]"]),
        ("[ 3 , 5 ]", "O O O O B-PER", ["[", "3", ",", "5", "]"]),
    ],
)
def test_lists_keep_their_words(tmp_path: Path, text: str, label: str, words: list[str]) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), (text, label)])
    reading = ReadOptions(words=True, tag_names=("O", "B-PER"))
    [row] = read_rows(path, reading, ignore_note)
    assert row.text.split(" ") == words
    assert row.label is not None and "B-PER" in row.label.split()
    assert len(row.label.split()) == len(words)


def test_empty_lists_are_skipped(tmp_path: Path) -> None:
    notes, path = list[str](), tmp_path / "a.csv"
    path.write_text("text,label\n[],[]\nAda lives,B-PER O\n")
    found = read_rows(path, ReadOptions(words=True), notes.append)
    assert [(row.label, row.text) for row in found] == TWO[:1]
    assert notes[-1].endswith("skipped rows without any word: 2")


def test_first_line_may_name_the_columns(tmp_path: Path) -> None:
    notes: list[str] = []
    path = tmp_path / "a.conll"
    for header in ("token\tpos\tner_tags\n", "Word\tPOS\tTag\n\n"):
        path.write_text(f"{header}Ada\tN\tB-PER\nlives\tV\tO\n")
        found = list(read_rows(path, ReadOptions(words=True), notes.append))
        assert [(row.label, row.text) for row in found] == TWO[:1]
        assert "is the header and is not read as data" in notes[-1]
    assert rows(path, "a\tO\ntoken\ttag\n") == [("O tag", "a token")]
    assert rows(path, "-DOCSTART-\tO\nAda\tO\n-DOCSTART-\tO\nYes\tO\n") == [("O", "Ada"), TWO[1]]


def test_only_the_first_annotation_is_read(tmp_path: Path) -> None:
    notes: list[str] = []
    result = [{"value": {"start": 0, "end": 3, "labels": ["PER"]}}]
    task = {"data": TEXT, "annotations": [{"result": result}, {"result": []}]}
    (tmp_path / "a.json").write_text(json.dumps([task]))
    [found] = read_rows(tmp_path / "a.json", ReadOptions(words=True), notes.append)
    assert (found.label, found.text) == TWO[0]
    assert notes[-1].endswith("have several annotations; the first is read: 1")


def test_classifiers_refuse_conll_files(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("Ada\tB-PER\n\n")
    for read in (read_rows, read_texts):
        with pytest.raises(BertAccumError, match="only the task token-classification reads"):
            list(read(path, ReadOptions(label_column=None)))


def prepared(
    folder: Path, train: str, options: dict[str, Any] | None = None, **others: str
) -> dict[str, Any]:
    source = folder / "source"
    source.mkdir()
    for name, content in {"train": train, **others}.items():
        (source / f"{name}.conll").write_text(content)
    given = {"source": "csv", "train_file": str(source), "out": str(folder / "data")}
    config = PrepareConfig(task="token-classification", **given, **(options or {}))
    return prepare(config, silent, list).manifest


TRAIN = "".join(f"Ada{n}\tB-PER\nLee\tI-PER\nin\tO\nRome\tB-LOC\n\n" for n in range(9))


def test_texts_that_dev_and_test_share_are_counted(tmp_path: Path) -> None:
    both = {"dev": "x\tO\n\nx\tO\n\ny\tO\n", "test": "x\tO\n\nz\tO\n"}
    findings = prepared(tmp_path, TRAIN, **both)["findings"]
    assert findings["dev_also_in_test"] == {"texts": 1, "rows": 2}


def test_a_folder_contains_the_splits(tmp_path: Path) -> None:
    manifest = prepared(tmp_path, TRAIN, valid="x\tB-PER\ny\tI-PER\n", testb="z\tO\n")
    assert manifest["labels"] == ["O", "B-LOC", "B-PER", "I-PER"]
    assert {name: of["words"] for name, of in manifest["counts"].items()} == {
        "train": 36,
        "dev": 2,
        "test": 1,
    }


@pytest.mark.parametrize("dev", ["val", "development", "eng.testa"])
def test_other_files_in_a_folder_are_noted(tmp_path: Path, dev: str) -> None:
    notes = list[str]()
    for name in (f"{dev}.txt", "train.txt", "labels.txt", ".hidden"):
        (tmp_path / name).write_text("")
    found = split_files(tmp_path, notes.append)
    assert {split: path.name for split, path in found.items()} == {
        "dev": f"{dev}.txt",
        "train": "train.txt",
    }
    assert notes == [f"{tmp_path}: skipped the files that are not those of a split (labels.txt)"]
    (tmp_path / "valid.txt").write_text("")
    with pytest.raises(BertAccumError, match=r"has two files named dev, .*; name its files train"):
        split_files(tmp_path, notes.append)


def test_test_file_replaces_that_of_the_folder(tmp_path: Path) -> None:
    notes, test = list[str](), tmp_path / "other.conll"
    test.write_text("a\tO\nb\tO\n")
    (tmp_path / "in").mkdir()
    for name in ("train", "test"):
        (tmp_path / f"in/{name}.conll").write_text(TRAIN)
    files = {"train_file": str(tmp_path / "in"), "test_file": str(test)}
    config = PrepareConfig(source="csv", task="token-classification", **files)
    source = own_source(config, silent, notes.append)
    assert source.given["test"].where == test
    assert notes == [f"{tmp_path / 'in/test.conll'}: not read, because `test_file` is given"]


@pytest.mark.parametrize("split", ["test", "dev"])
def test_fraction_of_a_split_in_the_folder_is_refused(tmp_path: Path, split: str) -> None:
    message = f"`{split}_fraction` 0.2 cannot be used with .*, which already has {split} rows; omit"
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, TRAIN, {f"{split}_fraction": 0.2}, **{split: TRAIN})


def test_column_named_text_pair_is_no_second_text(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.csv", "".join(f"B-X O,Ada {n},other\n" for n in range(20))
    path.write_text("label,text,text_pair\n" + rows)
    files = {"train_file": str(path), "out": str(tmp_path / "data")}
    prepare(PrepareConfig(source="csv", task="token-classification", **files), silent, list)
    assert (tmp_path / "data/train.tsv").read_text().startswith("label\ttext\n")


def test_tags_that_the_scheme_forbids_are_counted_and_kept(tmp_path: Path) -> None:
    manifest = prepared(tmp_path, TRAIN + "b\tO\na\tI-PER\n", dev="a\tI-PER\nb\tB-LOC\n")
    counts = manifest["counts"]
    assert manifest["label_format"] == {"separator": " ", "scheme": "BIO"}
    assert [counts[split]["forbidden_tags"] for split in ("train", "dev")] == [1, 1]
    assert counts["train"]["entities"] == {"LOC": 9, "PER": 10}
    assert (tmp_path / "data/dev.tsv").read_text() == "label\ttext\n3 1\ta b\n"


@pytest.mark.parametrize(
    ("train", "others", "message"),
    [
        ("a\tO\nb\tO\n", {}, "every word has the tag 'O'"),
        (TRAIN, {"dev": "a\tO\n\nb\tB-X\n"}, "has the tag 'B-X', which the training rows lack"),
    ],
)
def test_unusable_tags_write_nothing(
    tmp_path: Path, train: str, others: dict[str, str], message: str
) -> None:
    with pytest.raises(BertAccumError, match=message):
        prepared(tmp_path, train, **others)
    assert not (tmp_path / "data").exists()


# The results of seqeval 1.2.2, with and without its strict mode. Without it, seqeval knows E and S
# but not L and U, so those of BILOU are the results for the same tags of BIOES.
SEQUENCES = [
    ("BIO", "B-X I-X O I-X B-Y", "X02 X34 Y45", "X02 Y45"),
    ("BIO", "B-X I-Y I-X", "X01 Y12 X23", "X01"),
    ("BIO", "B-X B-X I-X", "X01 X13", "X01 X13"),
    ("IOB1", "I-X I-X B-X O I-Y", "X02 X23 Y45", "X02 X23 Y45"),
    ("IOB1", "O B-X I-X", "X13", "X23"),
    ("BIOES", "B-X I-X E-X S-Y O B-X", "X03 Y34 X56", "X03 Y34"),
    ("BIOES", "I-X E-X E-X S-X S-X", "X02 X23 X34 X45", "X34 X45"),
    ("BILOU", "B-X I-X L-X U-Y O B-X", "X03 Y34 X56", "X03 Y34"),
    ("BILOU", "I-X L-X L-X U-X U-X", "X02 X23 X34 X45", "X34 X45"),
]


@pytest.mark.parametrize(("scheme", "tags", "lenient", "strict"), SEQUENCES)
def test_entities_are_those_of_seqeval(scheme: str, tags: str, lenient: str, strict: str) -> None:
    for expected, is_strict in ((lenient, False), (strict, True)):
        found = entities(tags.split(), scheme, is_strict)
        assert " ".join(f"{kind}{start}{end}" for kind, start, end in found) == expected


def test_scheme_is_the_one_that_forbids_least() -> None:
    for scheme, sentences, forbidden in (
        ("BIO", ["B-X I-X O", "I-Y O B-X"], 1),
        ("IOB1", ["I-X I-X B-X", "I-Y O B-Y"], 1),
        ("BIOES", ["B-X E-X S-Y", "B-X O", "I-X E-X"], 2),
        ("BILOU", ["B-X L-X U-Y O"], 0),
        (None, ["NN VB -LRB-", "X"], None),
    ):
        sequences = [sentence.split() for sentence in sentences]
        assert find_scheme(sequences) == scheme
        if scheme:
            assert sum(forbidden_tags(tags, scheme) for tags in sequences) == forbidden


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ("O B-X I-X PER", "no prefix and type, as in B-PER: PER"),
        ("O B-X I-X B-", "no prefix and type, as in B-PER: B-"),
        ("O B-X E-X U-X", "they mix the prefixes B, E, U"),
        ("O b-X i-X I-Y", "unlike in b-X, i-X"),
        ("O B_X I_X", "unlike in B_X, I_X"),
        ("O B I", "they have no type"),
        ("0 1 2", "they are numbers; `tag_names` names them"),
        ("NN VB -LRB- X", None),
    ],
)
def test_tags_that_nearly_have_a_scheme_say_why_not(tags: str, reason: str | None) -> None:
    assert find_scheme([tags.split()]) is None
    found = why_no_scheme(tags.split())
    assert found is None if reason is None else found is not None and reason in found


def test_words_of_running_text() -> None:
    def words(text: str) -> list[str]:
        return [text[start:end] for start, end in word_spans(text)]

    assert words('"(U.S.-based)," he said…') == [*'"(', "U.S.-based", *'),"', "he", "said", "…"]
    assert words("中文ab $5 \u00a0x") == ["中", "文", "ab", "$", "5", "x"]
    assert words(SplitText("a.b ( ...")) == ["a.b", "(", "..."]
