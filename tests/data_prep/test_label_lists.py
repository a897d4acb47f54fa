"""Lists of labels, however they are written, and the kind of task that they suit."""

from __future__ import annotations

import csv
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from preparing import run
from pyarrow import parquet as pq

from bertaccum.cli.display.data_notes import notes
from bertaccum.errors import ConfigError, InputError
from bertaccum.tasks.prepared_labels import read_labels
from data_prep.labels.formats import is_list, list_in
from data_prep.preparation import PrepareResult
from data_prep.tables.tsv import read_tsv

JOY_ANGER = ["joy", "anger"]


@pytest.mark.parametrize(
    ("cell", "items"),
    [
        ("['joy', 'anger']", JOY_ANGER),
        ('["joy","anger"]', JOY_ANGER),
        ("('joy', 'anger',)", JOY_ANGER),
        ("{'joy', 'anger'}", JOY_ANGER),
        ("[u'joy', u'anger']", JOY_ANGER),
        ("['joy' 'anger']", JOY_ANGER),
        ("['joy'\n 'anger']", JOY_ANGER),
        ("[np.str_('joy'), np.str_('anger')]", JOY_ANGER),
        ("[joy, anger]", JOY_ANGER),
        ("{joy,anger}", JOY_ANGER),
        (r'["it\u2019s, \"so\""]', ['it\u2019s, "so"']),
        (r"['it\'s', 'caf\xe9', '\u4e2d]']", ["it's", "caf\u00e9", "\u4e2d]"]),
        ("[0, 3]", ["0", "3"]),
        ("[0 1 0]", ["0", "1", "0"]),
        ("[0. 1.]", ["0.", "1."]),
        ("[true, False]", ["true", "False"]),
        ("[]", []),
        ("[' ']", []),
        ("set()", []),
        ("['joy', None]", ["joy"]),
        ('["joy", null, "null"]', ["joy", "null"]),
        ("['joy', nan]", ["joy"]),
        (
            r'["\ud83d\ude00", "caf\u00e9", "a\/b", "\ud83d"]',
            ["\U0001f600", "caf\u00e9", "a/b", "\ufffd"],
        ),
    ],
)
def test_list_in_a_cell(cell: str, items: list[str]) -> None:
    assert (list_in(cell), is_list(cell)) == (items, True)


@pytest.mark.parametrize(
    "cell",
    [
        *("[other]", "(sports, news)", "(1)", "{}", "()", "[", "", "joy", "['joy': 1]", "[a, [b]]"),
        *('{"joy": 1}', "[don't care]", "['joy'", "[joy anger]", "[1, 2] and more"),
    ],
)
def test_cell_that_is_no_list_for_certain(cell: str) -> None:
    assert not is_list(cell)


def prepared(
    tmp_path: Path, labels: list[Any], said: list[str] | None = None, **options: Any
) -> PrepareResult:
    """Prepare the labels from CSV, or from JSON Lines if one of them is not a string."""
    texts = [f"text {number}" for number in range(len(labels))]
    rows = list(zip(labels, texts, strict=True))
    is_text = all(isinstance(label, str) for label in labels)
    path = tmp_path / ("a.csv" if is_text else "a.jsonl")
    with path.open("w", newline="") as file:
        if is_text:
            csv.writer(file).writerows([("label", "text"), *rows])
        else:
            file.writelines(json.dumps({"label": a, "text": b}) + "\n" for a, b in rows)
    return run_on(path, said, **options)


def run_on(path: Path, said: list[str] | None = None, **options: Any) -> PrepareResult:
    note = (said if said is not None else []).append
    options = {"train_file": path, "dev_fraction": 0.2, "out": str(path.parent / "out")} | options
    return run(source="csv", overwrite=True, note=note, **options)


def cells(result: PrepareResult) -> list[str]:
    """Return the labels of all rows, by name, in the order of the texts."""
    tables = [read_tsv(result.folder / f"{split}.tsv") for split in ("train", "dev")]
    by_text = {t: c for table in tables for t, c in zip(table["text"], table["label"], strict=True)}
    names = result.manifest["labels"]
    ordered = [by_text[f"text {number}"] for number in range(len(by_text))]
    return [" ".join(names[int(n)] for n in cell.split("|") if n) for cell in ordered]


@pytest.mark.parametrize(
    "labels",
    [
        ["['joy', 'anger']", "['joy']", "['fear', 'joy']", "[]", "['anger']"],
        ['["anger", "joy"]', '["joy"]', '["joy", "fear"]', "[]", "anger"],
        ["[joy, anger]", "[joy]", "[fear, joy]", "[]", "[anger]"],
        ["{joy,anger}", "{joy}", '{fear,"joy"}', "{}", "{anger}"],  # PostgreSQL.
        [["joy", "anger"], ["joy"], ["fear", "joy"], [], "anger"],
    ],
)
@pytest.mark.parametrize("task", [None, "multi-label"])
def test_lists_of_labels_are_several_labels(
    tmp_path: Path, labels: list[Any], task: str | None
) -> None:
    said: list[str] = []
    result = prepared(tmp_path, labels, said, task=task)
    assert cells(result) == ["anger joy", "joy", "fear joy", "", "anger"]
    assert result.manifest["task"] == "multi-label"
    told = "some rows have several labels, so the task is multi-label"
    assert any(told in line for line in said) == (task is None)


@pytest.mark.parametrize(
    "labels", [["['pos']", "['neg']"], ['["pos"]', "neg"], [["pos"], ["neg"]], [["pos"], "neg"]]
)
def test_lists_of_one_label_are_classes(tmp_path: Path, labels: list[Any]) -> None:
    result = prepared(tmp_path, labels * 3)
    assert result.manifest["task"] == "classification"
    assert cells(result) == ["pos", "neg"] * 3


def test_lists_of_postgresql_may_all_have_one_label(tmp_path: Path) -> None:
    result = prepared(tmp_path, ["{joy}", "{}", "{fear}"] * 3, task="multi-label")
    assert cells(result) == ["joy", "", "fear"] * 3
    assert prepared(tmp_path, ["{joy}", "{fear}"] * 3).manifest["labels"] == ["fear", "joy"]
    assert prepared(tmp_path, ["{joy}", "fear"] * 3).manifest["labels"] == ["fear", "{joy}"]


@pytest.mark.parametrize(
    ("labels", "expected", "task"),
    [
        (["[0, 1, 1]", "[1, 0, 0]", "[0, 0, 0]"], ["1 2", "0", ""], "multi-label"),
        (["[0 1 1]", "[1 0 0]", "[0 0 0]"], ["1 2", "0", ""], "multi-label"),
        ([[0, 1.0, True], [1, 0, 0], [0, 0, 0]], ["1 2", "0", ""], "multi-label"),
        (["[1, 1]", "[1, 0]", "[0, 1]"], ["0 1", "0", "1"], "multi-label"),
        ([[0, 1, 0], [1, 0, 0], [0, 0, 1]], ["1", "0", "2"], "classification"),
        (["[0, 1]", "[1, 0]", "[0, 1]"], ["1", "0", "1"], "classification"),
        # These are class numbers.
        ([[0, 1], [1], [2, 0]], ["0 1", "1", "0 2"], "multi-label"),
        (["[0, 1]", "[1, 2]", "[2, 0]"], ["0 1", "1 2", "0 2"], "multi-label"),
        ([[0], [1], [1]], ["0", "1", "1"], "classification"),
    ],
)
def test_zeros_and_ones_and_class_numbers(
    tmp_path: Path, labels: list[Any], expected: list[str], task: str
) -> None:
    result = prepared(tmp_path, labels * 2)
    assert cells(result) == expected * 2
    assert result.manifest["task"] == task


@pytest.mark.parametrize("labels", [["0|1|1", "1|0|0"], ["0 1 1", "1 0 0"], ["0/1", "1/1"]])
def test_zeros_and_ones_without_brackets_are_a_question(tmp_path: Path, labels: list[str]) -> None:
    with pytest.raises(ConfigError, match="because all of their parts are 0 or 1; pass `task` mul"):
        prepared(tmp_path, labels * 3)
    classes = prepared(tmp_path, labels * 3, task="classification").manifest["labels"]
    assert classes == sorted(labels)


@pytest.mark.parametrize("cells", [["0|1|1", "1|0|0"], ["0 1 1", "1 0 0"]])
def test_zeros_and_ones_without_brackets_are_labels_on_request(
    tmp_path: Path, cells: list[str]
) -> None:
    result = prepared(tmp_path, cells * 3, task="multi-label")
    assert result.manifest["labels"] == ["0", "1", "2"]


def test_two_class_numbers_are_not_zeros_and_ones(tmp_path: Path) -> None:
    assert cells(prepared(tmp_path, ["0|1", "1|0"] * 3, task="multi-label")) == ["0 1"] * 6


@pytest.mark.parametrize(
    ("labels", "row"),
    [
        (["[0, 1, 1]", "[1, 0, 0]", "1"], 4),
        (["1", "[0, 1, 0]", "[1, 0, 0]"], 2),
        (["[0, 1, 0]", "[1, 0, 0]", "joy"], 4),
        (["[0, 1, 0]", "[]", "[1, 0, 0]"], 3),
        (["[0, 1]", "[1, 0]", "1"], 4),
        ([[0, 1, 1], 1, [1, 0, 0]], 2),
        (["[0, 1, 0]", "[1, 1]", "[0, 0, 1]"], 3),
    ],
)
@pytest.mark.parametrize("task", [None, "multi-label"])
def test_other_label_beside_lists_of_zeros_and_ones_is_an_error(
    tmp_path: Path, labels: list[Any], row: int, task: str | None
) -> None:
    size = 2 if labels[0] == "[0, 1]" else 3
    with pytest.raises(InputError, match=f"row {row}: .* is not a list of {size} numbers, unlike"):
        prepared(tmp_path, labels * 2, task=task)
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{cell}\ttext\n" for cell in ["label", *map(str, labels)]))
    with pytest.raises(InputError, match=f"train.tsv, row {row + (tmp_path / 'a.jsonl').exists()}"):
        read_labels(tmp_path, task)


@pytest.mark.parametrize("separator", ["|", " ", ", "])
def test_zeros_and_ones_of_several_lengths_are_no_class_numbers(
    tmp_path: Path, separator: str
) -> None:
    labels = [separator.join(flags) for flags in ("010", "110", "1", "00")]
    with pytest.raises(ConfigError, match=r"look like several labels, .* all .* parts are 0 or 1"):
        prepared(tmp_path, labels * 2)
    with pytest.raises(InputError, match="row 4: the label '1' is not a list of 3 numbers, unlike"):
        prepared(tmp_path, labels * 2, task="multi-label")


def test_numbers_beside_lists_of_class_numbers_are_class_numbers(tmp_path: Path) -> None:
    labels = ["[0, 1]", "1", "[0]", "0"]
    assert cells(prepared(tmp_path, labels * 2)) == ["0 1", "1", "0", "0"] * 2
    # Annotators may agree.
    votes = [[1, 1], [0, 2], 1]
    assert cells(prepared(tmp_path, votes * 2)) == ["1", "0 2", "1"] * 2


def test_test_rows_are_written_like_the_training_rows(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text('label,text\n"[0, 1]",a\n[1],b\n')
    labels = ["[0, 1, 2]", "[1]", "[2, 0]"]
    result = prepared(tmp_path, labels, test_file=tmp_path / "test.csv")
    assert read_tsv(result.folder / "test.tsv")["label"].tolist() == ["0|1", "1"]


def test_test_rows_may_be_lists_if_training_rows_are_not(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("label,text\n['b'],x\na,y\n")
    result = prepared(tmp_path, ["a", "b"] * 3, test_file=tmp_path / "test.csv")
    assert read_tsv(result.folder / "test.tsv")["label"].tolist() == ["1", "0"]


@pytest.mark.parametrize("cell", ["[1]", "[0, 1]", "[0, 1, 1, 0]"])
@pytest.mark.parametrize("task", [None, "multi-label"])
def test_zeros_and_ones_of_another_number_are_an_unknown_label(
    tmp_path: Path, cell: str, task: str | None
) -> None:
    (tmp_path / "test.csv").write_text(f'label,text\n"{cell}",x\n')
    labels = [[1, 0, 1], [0, 1, 0], [0, 0, 1]] if task else [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    message = rf"row 2: the label '{re.escape(cell)}' does not occur .*; write 0 or 1 for each of"
    with pytest.raises(InputError, match=message):
        prepared(tmp_path, labels * 2, task=task, test_file=tmp_path / "test.csv")


def test_label_that_is_named_by_position_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("label,text\n1,x\n0,y\n2,z\n")
    labels = [[1, 0, 0], [0, 1, 0], [0, 0, 1]] * 2
    result = prepared(tmp_path, labels, test_file=tmp_path / "test.csv")
    assert read_tsv(result.folder / "test.tsv")["label"].tolist() == ["1", "0", "2"]


def test_lists_of_probabilities_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lists such as '\[0.2 0.8\]' look like a probability"):
        prepared(tmp_path, ["[0.2 0.8]", "[0.9 0.1]", "[1 0]"])


def test_lists_are_no_classes_even_if_labels_are_kept_as_written(tmp_path: Path) -> None:
    result = prepared(tmp_path, [["Joy"], ["joy"], ["Anger"]] * 3, labels_as_written=True)
    assert result.manifest["labels"] == ["Anger", "Joy", "joy"]


def test_list_with_other_numbers_is_an_unknown_label(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text('label,text\n"[0, 1, 1]",x\n"[0, 3, 0]",y\n')
    labels = ["[0, 1, 1]", "[1, 0, 0]"] * 3
    with pytest.raises(InputError, match=r"row 3: the label '\[0, 3, 0\]' does not occur"):
        prepared(tmp_path, labels, test_file=tmp_path / "test.csv")


@pytest.mark.parametrize("separator", [",", ";", ", ", "/"])
def test_other_separator_is_found_if_parts_recur(tmp_path: Path, separator: str) -> None:
    labels, said = [separator.join(JOY_ANGER), "joy", "anger", "fear"], list[str]()
    result = prepared(tmp_path, labels, said, task="multi-label")
    assert cells(result) == ["anger joy", "joy", "anger", "fear"]
    found = f"the labels of a row are separated by {separator.strip()!r}"
    assert said[-1] == f"{tmp_path / 'a.csv'}: {found}"


def test_parts_that_recur_in_another_case_are_labels(tmp_path: Path) -> None:
    labels = ["Joy, anger", "joy", "Anger", "fear"]
    result = prepared(tmp_path, labels * 2, task="multi-label")
    assert len(result.manifest["labels"]) == 3


@pytest.mark.parametrize("task", [None, "multi-label"])
def test_labels_of_fasttext_may_contain_any_separator(tmp_path: Path, task: str | None) -> None:
    path, said = tmp_path / "a.txt", list[str]()
    lines = ["__label__a", "__label__a|b __label__c", "__label__a,b __label__a", "__label__c"]
    path.write_text("".join(f"{line} text {n}\n" for n, line in enumerate(lines * 3)))
    result = run_on(path, said, task=task)
    assert result.manifest["labels"] == ["a", "a,b", "a|b", "c"]
    told = "some rows have several labels, so the task is multi-label"
    assert any(told in line for line in said) == (task is None)


def test_items_that_may_be_missing_values_are_noted(tmp_path: Path) -> None:
    result = prepared(tmp_path, ["['joy', 'N/A']", "['joy']", "['N/A']", "['fear']"] * 2)
    assert result.manifest["findings"]["missing_labels"] == {"training": {"N/A": 4}}


def test_labels_with_commas_stay_whole_if_their_parts_do_not_recur(tmp_path: Path) -> None:
    result = prepared(tmp_path, ["Smith, John", "Doe, Jane", "Roe, Jim"] * 2, task="multi-label")
    assert result.manifest["labels"] == ["Doe, Jane", "Roe, Jim", "Smith, John"]
    told = "note: no row has more than one label; if labels are separated by another character"
    assert any(line.startswith(told) for line in notes(result.manifest))
    several = prepared(tmp_path, ["a|b", "b", "a"] * 2, task="multi-label")
    assert not any("more than one label" in line for line in notes(several.manifest))


@pytest.mark.parametrize("separator", ["|", ", ", ";", "/", " & ", "+"])
def test_labels_that_look_like_several_are_a_question(tmp_path: Path, separator: str) -> None:
    labels = [separator.join(pair) for pair in (JOY_ANGER, ("joy", "fear"))] + ["joy", "anger"]
    labels *= 2
    with pytest.raises(ConfigError, match=r"look like several labels, .*; pass `task` multi-label"):
        prepared(tmp_path, labels)
    assert len(prepared(tmp_path, labels, task="classification").manifest["labels"]) == 4
    apart = [separator.join(pair) for pair in (("x", "joy"), ("x", "y"))] + ["joy", "anger"]
    assert len(prepared(tmp_path, apart * 2).manifest["labels"]) == 4


def test_words_of_a_label_must_all_be_labels_to_be_a_question(tmp_path: Path) -> None:
    names = ["very good", "good", "very bad", "bad"]
    assert prepared(tmp_path, names * 2).manifest["labels"] == sorted(names)
    for labels in (["joy anger", "joy", "anger"], ["1 2", "1", "2"]):
        with pytest.raises(ConfigError, match=f"labels such as '{labels[0]}' look like several"):
            prepared(tmp_path, labels * 2)


@pytest.mark.parametrize(
    ("labels", "way"),
    [
        (["3,5", "4,0", "2"], "write a decimal point instead of the comma, as in 3.5,"),
        (["1", "1,5", "2", "2,5"], "write a decimal point instead of the comma, as in 1.5,"),
        (["1,234", "2", "3"], "write it as 1234, or as 1.234 if the comma is a decimal mark,"),
        (["0,1", "1,0"], "write a decimal point"),
        (["3,5", "4,0", "2", "n/a"], "write a decimal point"),
        ([*(f"{n},5" for n in range(9)), "unclear"], "write a decimal point"),
        (["10 000", "9"], "write it as 10000,"),
    ],
)
def test_numbers_in_other_notations_are_a_question(
    tmp_path: Path, labels: list[str], way: str
) -> None:
    number = next(label for label in labels if re.search("[, ]", label))
    message = f"labels such as '{number}' look like numbers; {way}.* `task` regression"
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, labels * 3)
    assert prepared(tmp_path, labels * 3, task="classification").manifest["labels"] == sorted(
        labels
    )


@pytest.mark.parametrize("labels", [["3,5", "4,5", "joy"], ["1,2,3", "4"], ["Mar 3, 5", "2"]])
def test_other_labels_with_a_comma_are_classes(tmp_path: Path, labels: list[str]) -> None:
    assert prepared(tmp_path, labels * 3).manifest["labels"] == sorted(labels)


def test_several_labels_in_a_classification_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"row 2: has several labels \(a, b\); write one class"):
        prepared(tmp_path, ["['a', 'b']", "['a']"], task="classification")
    with pytest.raises(InputError, match="row 2: has no label; write one class or delete the row"):
        prepared(tmp_path, [["a"], [], ["b"]])


def test_parquet_lists_and_decimals(tmp_path: Path) -> None:
    path, texts = tmp_path / "a.parquet", [f"text {number}" for number in range(4)]
    pq.write_table(pa.table({"label": [["a", "b"], ["a"], [], ["b"]], "text": texts}), path)
    assert cells(run_on(path)) == ["a b", "a", "", "b"]
    values = [Decimal("1.00"), Decimal("2.00"), Decimal("1.00"), Decimal("2.00")]
    pq.write_table(pa.table({"label": values, "text": texts}), path)
    assert run_on(path).manifest["labels"] == ["1.00", "2.00"]
    values[0] = Decimal("1.50")
    pq.write_table(pa.table({"label": values, "text": texts}), path)
    assert run_on(path, task="regression").manifest["counts"]["train"]["max"] == 2.0


def test_only_labels_may_be_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for line, name in (
        ({"label": [["a"]], "text": "x"}, "label"),
        ({"label": ["a"], "text": ["x"]}, "text"),
        ({"label": [0.5, None, float("inf")], "text": "x"}, "label"),
    ):
        path.write_text(json.dumps(line) + "\n")
        with pytest.raises(InputError, match=f"row 1: the value of '{name}' is "):
            run_on(path)


def test_scores_in_lists_of_one_are_scores(tmp_path: Path) -> None:
    labels = [[0.5], [1.5], [2], [3], [4]]
    assert prepared(tmp_path, labels, task="regression").manifest["counts"]["dev"]["rows"] == 1
    with pytest.raises(InputError, match="label '1, 2' is not a finite number"):
        prepared(tmp_path, [*labels, [1, 2]], task="regression")
