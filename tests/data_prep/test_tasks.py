"""Scores, several labels and weights: from the user's table to the prepared files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from preparing import run

from bertaccum.cli.display.data_notes import notes
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import EvalConfig
from bertaccum.options.prepare import PrepareConfig
from bertaccum.tasks.regression import scores_in
from data_prep.preparation import PrepareResult
from data_prep.tables.columns import ReadOptions
from data_prep.tables.table import read_rows
from data_prep.tables.tsv import read_tsv

Table = dict[str, list[Any]]
Prepare = Callable[..., PrepareResult]
Refused = Callable[..., None]


@pytest.fixture
def prepared(tmp_path: Path) -> Prepare:
    """Return a function that prepares the columns of a training table and of a test table."""

    def prepare(train: Table, test: Table | None = None, **options: Any) -> PrepareResult:
        given = {"train_file": train} | ({"test_file": test} if test else {})
        for option, table in given.items():
            path = tmp_path / f"{option}.csv"
            lines = [table.keys(), *zip(*table.values(), strict=True)]
            path.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
            options[option] = str(path)
        return run(source="csv", out=str(tmp_path / "out"), **({"dev_fraction": 0.2} | options))

    return prepare


@pytest.fixture
def refused(prepared: Prepare, tmp_path: Path) -> Callable[..., None]:
    """Return a function that checks that tables give one line of error and no folder."""

    def check(message: str, *tables: Table, **options: Any) -> None:
        with pytest.raises((ConfigError, InputError), match=message) as caught:
            prepared(*tables, **options)
        assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()

    return check


def texts(count: int) -> list[str]:
    return [f"text {number}" for number in range(count)]


def rows_of(result: PrepareResult, *splits: str) -> dict[str, str]:
    """Return the label of each text of some splits."""
    tables = [read_tsv(result.folder / f"{split}.tsv") for split in splits]
    return {t: label for table in tables for t, label in zip(table["text"], table["label"])}  # noqa: B905


def test_columns_of_the_test_file_may_have_other_names(prepared: Prepare, refused: Refused) -> None:
    train = {"body": texts(9), "other": texts(9), "stars": list("120") * 3}
    test = {"id": [7, 8], "review": ["a", "b"], "reply": ["c", ""], "grade": ["2", "0"]}
    own = {"text_column": "body", "text_pair_column": "other", "label_column": "stars"}
    refused(
        "test_file.csv: the column 'body' of `test_text_column` does not occur in the header",
        train,
        test,
        **own,
    )
    named = {"test_text_column": "review", "test_text_pair_column": "3", "test_label_column": "id"}
    refused("the label '7' does not occur in the training rows", train, test, **own, **named)
    refused(
        "`test_text_column` id and `test_label_column` id are the same",
        train,
        test,
        **own,
        **named | {"test_text_column": "id"},
    )
    refused("`test_label_column` applies only to `test_file`", train, **own, test_label_column="4")
    named["test_label_column"] = "grade"
    result = prepared(train, test, **own, **named)
    lines = (result.folder / "test.tsv").read_text().splitlines()
    assert lines == ["label\ttext\ttext_pair", "2\ta\tc", "0\tb\t"]
    assert result.manifest["options"]["test_label_column"] == "grade"
    assert prepared(train, test, **own, **named).unchanged


SCORES = [0.5, 3, "1e-1", 2.25, -4, 3.5, 4, 5, 6, 7]


def test_scores_are_written_as_floats_with_their_statistics(prepared: Prepare) -> None:
    test = {"label": [1, 2.5], "text": ["a", "b"]}
    result = prepared({"label": SCORES, "text": texts(10)}, test, task="regression")
    expected = {text: repr(float(score)) for text, score in zip(texts(10), SCORES, strict=True)}
    assert rows_of(result, "train", "dev") == expected
    manifest = result.manifest
    assert (manifest["task"], manifest["labels"], manifest["source_labels"]) == (
        "regression",
        [],
        [],
    )
    assert manifest["options"]["task"] == "regression"
    assert manifest["counts"]["dev"]["rows"] == 2
    statistics = {"rows": 2, "mean": 1.75, "std": 0.75, "min": 1.0, "max": 2.5}
    assert manifest["counts"]["test"] == statistics


def test_scores_are_a_question_unless_the_task_is_given(
    refused: Refused, prepared: Prepare
) -> None:
    table = {"label": SCORES * 2, "text": texts(20)}
    message = "labels such as '0.5' look like scores; pass `task` regression, or `task` class"
    refused(message, table)
    # A few other labels among many scores do not make them classes.
    refused(message, {"label": [*SCORES * 2, "unclear", "N/A"], "text": texts(22)})
    classes = prepared(table, task="classification")
    assert (classes.manifest["task"], len(classes.manifest["labels"])) == ("classification", 10)
    whole = {"label": ["3.0", "4"] * 5, "text": texts(10)}
    assert prepared(whole, overwrite=True).manifest["labels"] == ["3.0", "4"]
    words = {"label": ["3.5", "fair"] * 5, "text": texts(10)}
    assert prepared(words, overwrite=True).manifest["labels"] == ["3.5", "fair"]


@pytest.mark.parametrize("label", ["good", "nan", "inf", "1e39", "1_0", "3,5", "1,000,00", "1,2,3"])
def test_label_that_is_no_score_is_refused_with_its_row(refused: Refused, label: str) -> None:
    train = {"label": [1, 2.5, f'"{label}"'], "text": texts(3)}
    remedy = "write a decimal point" if label == "3,5" else "write a number"
    message = f"train_file.csv, row 4: the label '{label}' is not a finite number; {remedy}"
    refused(message, train, task="regression")


@pytest.mark.parametrize(
    ("label", "remedy"),
    [
        ("-0,25", "write a decimal point instead of the comma, as in -0.25"),
        ("0,125", "write a decimal point instead of the comma, as in 0.125"),
        ("1,000", "write it as 1000, or as 1.000 if the comma is a decimal mark"),
        ("-12,500", "write it as -12500, or as -12.500 if the comma is a decimal mark"),
        ("1,234.5", "write it as 1234.5"),
        ("1.234,5", "write it as 1234.5"),
        ("1,234,567", "write it as 1234567"),
        ("1.234.567", "write it as 1234567"),
        ("1'000", "write it as 1000"),
        ("12 500,75", "write it as 12500.75"),
        ("1\u202f000", "write it as 1000"),
    ],
)
def test_separators_of_a_number_are_not_misread(refused: Refused, label: str, remedy: str) -> None:
    train = {"label": [1, 2.5, f'"{label}"'], "text": texts(3)}
    refused(f"row 4: the label .* is not a finite number; {remedy}", train, task="regression")
    weighted = {"label": ["yes", "no", "no"], "text": texts(3), "w": [1, 1, f'"{label}"']}
    refused(f"row 4: the weight .*; {remedy}", weighted, weight_column="w")
    table = pd.DataFrame({"row": [4], "label": [label]})
    with pytest.raises(InputError, match=f"x, row 4: label .*; correct it: {remedy}"):
        scores_in(Path("x"), table)


@pytest.mark.parametrize("label", ["nan", "inf", "-Infinity", "1e999"])
def test_class_that_is_not_finite_among_numbers_is_refused_with_its_row(
    refused: Refused, prepared: Prepare, label: str
) -> None:
    message = f"train_file.csv, row 4: the label '{label}' is not a finite number, unlike other"
    refused(message, {"label": [1, 2, label, 2], "text": texts(4)})
    refused(message, {"label": ["1.5", 2, label, 2], "text": texts(4)}, task="classification")
    several = {"label": ["1|2", 2, f"{label}|1", "|"], "text": texts(4)}
    refused(message, several, task="multi-label")
    names = {"label": [label, "eng"] * 5, "text": texts(10)}
    assert prepared(names).manifest["labels"] == sorted([label, "eng"])


def test_constant_scores_are_refused(refused: Refused) -> None:
    train = {"label": [2, "2.0", "2.00"], "text": texts(3)}
    refused("every row has the score 2.0; add", train, task="regression")
    train = {"label": [2, 2, 3], "text": ["a", "b", "c"]}
    message = "has rows of only one score after duplicates are dropped"
    refused(message, train, {"label": [3], "text": ["c"]}, task="regression")


def test_equal_scores_written_differently_do_not_conflict(prepared: Prepare) -> None:
    train = {"label": [1, "1.0", 2, 3, 4, 5], "text": ["a", "a", "b", "b", "c", "d"]}
    found = prepared(train, task="regression").manifest["findings"]
    assert found["conflicting"] == {"texts": 1, "rows": [[4, 5]]}


SETS = ["joy|fear", "fear", " joy | anger ", "anger|joy|joy", "|", "joy", "fear", "anger"]


def test_several_labels_become_sorted_class_numbers(prepared: Prepare) -> None:
    table = {"label": SETS, "text": texts(8)}
    result = prepared(table, {"label": ["fear|anger"], "text": ["t"]}, task="multi-label")
    cells = ["1|2", "1", "0|2", "0|2", "|", "2", "1", "0"]
    assert rows_of(result, "train", "dev") == dict(zip(texts(8), cells, strict=True))
    assert rows_of(result, "test") == {"t": "0|1"}
    manifest = result.manifest
    assert (manifest["task"], manifest["labels"]) == ("multi-label", ["anger", "fear", "joy"])
    assert manifest["counts"]["test"] == {
        "rows": 1,
        "classes": {"anger": 1, "fear": 1, "joy": 0},
        "without_label": 0,
    }
    without = [manifest["counts"][split]["without_label"] for split in ("train", "dev")]
    assert sum(without) == 1


def test_default_label_separator_may_be_given(prepared: Prepare) -> None:
    table = {"label": ['"a,b"', "a", "b", "c"], "text": texts(4)}
    options: dict[str, Any] = {"task": "multi-label", "delimiter": "comma"}
    assert prepared(table, **options).manifest["labels"] == ["a", "b", "c"]
    options |= {"label_separator": "|", "overwrite": True}
    assert prepared(table, **options).manifest["labels"] == ["a", "a,b", "b", "c"]


def test_label_separator_splits_the_cell(prepared: Prepare) -> None:
    table = {"label": ["1;10", "2", "10;2", "1|2"], "text": texts(4)}
    options = {"task": "multi-label", "label_separator": ";", "delimiter": "comma"}
    result = prepared(table, **options)
    # These labels are not all integers, so they are sorted as strings.
    assert result.manifest["labels"] == ["1", "10", "1|2", "2"]
    assert rows_of(result, "train", "dev")["text 0"] == "0|1"
    assert result.manifest["options"]["label_separator"] == ";"


FLAGS: Table = {
    "text": texts(6),
    "joy": [1, 0, "1.0", "true", "False", 0],
    "anger": [1, 1, "0.0", "false", "TRUE", 0],
}
CELLS = ["0|1", "0", "1", "1", "0", "|"]


@pytest.mark.parametrize("columns", ["joy,anger", "2, 3", "joy,3"])
def test_columns_of_0_and_1_are_labels(prepared: Prepare, columns: str) -> None:
    result = prepared(FLAGS, label_columns=columns, delimiter="comma")
    assert rows_of(result, "train", "dev") == dict(zip(texts(6), CELLS, strict=True))
    assert result.manifest["task"] == "multi-label"
    assert result.manifest["labels"] == ["anger", "joy"]


def test_column_without_any_1_stays_a_label(prepared: Prepare, tmp_path: Path) -> None:
    """A model has as many outputs as the user asked for."""
    test = {"text": ["t"], "joy": [0], "anger": [0], "disgust": [1]}
    columns = {"label_columns": "joy,anger,disgust"}
    manifest = prepared(FLAGS | {"disgust": [0] * 6}, test, **columns).manifest
    assert manifest["labels"] == ["anger", "disgust", "joy"]
    assert any("no rows labeled disgust" in line for line in notes(manifest))
    said = list[str]()
    path, out = str(tmp_path / "train_file.csv"), str(tmp_path / "numbers")
    run(said.append, source="csv", train_file=path, label_columns="2,3,4", out=out)
    assert said[-1].endswith(
        "ignored 1 column of `label_columns` with 0 in all rows; names keep such columns"
    )


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ('"Sales, Marketing",Sales,Marketing', ["Marketing", "Sales", "Sales, Marketing"]),
        ('"[a, b]",b', ["[a, b]", "b"]),
        ("toxic,Toxic", ["Toxic", "toxic"]),
    ],
)
def test_names_of_columns_are_labels_as_they_are(
    tmp_path: Path, columns: str, names: list[str]
) -> None:
    path, numbers = tmp_path / "a.csv", [str(number + 1) for number in range(len(names))]
    rows = [",".join("1" if n == own else "0" for n in numbers) for own in numbers] * 3
    lines = [f"{row},text {i}\n" for i, row in enumerate(rows)]
    path.write_text(f"{columns},text\n" + "".join(lines))
    options = {"label_columns": ",".join(numbers), "text_column": str(len(names) + 1)}
    result = run(source="csv", train_file=path, out=str(tmp_path / "out"), **options)
    assert result.manifest["labels"] == names


def test_columns_of_0_and_1_without_header_are_named_by_number(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1,0,some text\n1,1,some text\n0,0,some text\n")
    reading = ReadOptions("3", label_columns=("1", "2"), label_separator="/")
    assert [row.label for row in read_rows(path, reading)] == ["1", "1/2", "/"]
    path.write_text("1,1,some text\n")
    assert [row.label for row in read_rows(path, reading)] == ["1/2"]


def test_columns_of_0_and_1_are_read_from_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [{"b": True, "text": "x", "a": 0, "w": 2}, {"b": False, "text": "y", "a": 1.0, "w": 0}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    reading = ReadOptions(label_columns=("a", "b"), weight_column="w")
    assert [row[1:] for row in read_rows(path, reading)] == [
        ("b", "x", None, 2.0),
        ("a", "y", None, 0.0),
    ]


def test_labels_are_read_back_from_prepared_files(prepared: Prepare) -> None:
    """A row without labels must not read as a row with a missing label."""
    folder = prepared(FLAGS, label_columns="joy,anger").folder
    table = read_tsv(folder / "train.tsv")
    assert set(table["label"]) <= set(CELLS) and list(table.columns) == ["row", "label", "text"]


@pytest.mark.parametrize(
    ("train", "options", "message"),
    [
        ({"label": ["a|b", ""], "text": ["x", "y"]}, {}, r"row 3: has no label; if .* write \| a"),
        (
            {"label": ["a;b", ""], "text": ["x", "y"]},
            {"label_separator": ";", "delimiter": "comma"},
            "row 3: has no label; if no label applies to this text, write ; alone in the cell",
        ),
        ({"label": ["a", "a|a"], "text": ["x", "y"]}, {}, r"has only one label \('a'\); add"),
        ({"label": ["|", "|"], "text": ["x", "y"]}, {}, "has no row with a label; add"),
        (
            {"label": ["a,b"], "text": ["x"]},
            {"label_separator": ""},
            "`label_separator` '' cannot separate labels",
        ),
    ],
)
def test_unusable_sets_of_labels_are_refused(
    refused: Refused, train: Table, options: dict[str, Any], message: str
) -> None:
    refused(message, train, task="multi-label", **options)


def test_label_of_the_test_set_must_occur_in_training_rows(refused: Refused) -> None:
    train, test = {"label": SETS, "text": texts(8)}, {"label": ["joy", "joy|awe"], "text": [1, 2]}
    message = "test_file.csv, row 3: the label 'awe' does not occur in the training rows"
    refused(message, train, test, task="multi-label")


@pytest.mark.parametrize(
    ("train", "columns", "message"),
    [
        (FLAGS | {"joy": [1, 0, 2, 0, 0, 0]}, "joy,anger", "row 4: the column 'joy' contains '2'"),
        (FLAGS | {"joy": [1, 0, "", 0, 0, 0]}, "joy,anger", "row 4: the column 'joy' contains ''"),
        (FLAGS, "joy,awe", "the column 'awe' of `label_columns` does not occur"),
        (FLAGS, "joy,2", "`label_columns` joy and `label_columns` 2 are the same column"),
        (FLAGS, "joy,text", "`text_column` text and `label_columns` text are the same column"),
        (FLAGS, "joy,,anger", "`label_columns` 'joy,,anger' contains an empty name"),
        (FLAGS, "joy", r"has only one label \('joy'\)"),
        (
            {"text": texts(2), "a|b": [0, 1], "c": [1, 0]},
            "a|b,c",
            r"the column name 'a\|b' contains the `label_separator` '\|'",
        ),
    ],
)
def test_unusable_columns_of_0_and_1_are_refused(
    refused: Refused, train: Table, columns: str, message: str
) -> None:
    refused(message, train, label_columns=columns, delimiter="comma")


def test_two_label_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,joy,joy\nx,1,0\n")
    with pytest.raises(ConfigError, match="two of the columns of `label_columns` are named 'joy'"):
        list(read_rows(path, ReadOptions("1", label_columns=("2", "3"))))


WEIGHTED: Table = {
    "label": ["yes", "no"] * 5,
    "text": texts(10),
    "w": [1, 0.5, 2, 0, "1e1", 3, 4, 5, 6, 7],
}


def test_weights_are_written_to_every_split(prepared: Prepare) -> None:
    test = {"label": ["no"], "text": ["t"], "w": [0.125]}
    result = prepared(WEIGHTED, test, weight_column="w")
    tables = [read_tsv(result.folder / f"{split}.tsv") for split in ("train", "dev", "test")]
    found = {t: w for table in tables for t, w in zip(table["text"], table["weight"])}  # noqa: B905
    weights = [float(weight) for weight in WEIGHTED["w"]]
    assert found == dict(zip(texts(10), weights, strict=True)) | {"t": 0.125}
    assert str(tables[0]["weight"].dtype) == "float64"
    lines = (result.folder / "test.tsv").read_text().splitlines()
    assert lines == ["label\ttext\tweight", "0\tt\t0.125"]
    assert result.manifest["options"]["weight_column"] == "w"


def test_test_rows_need_no_weights(prepared: Prepare, tmp_path: Path) -> None:
    test = {"label": ["yes"], "text": ["t"]}
    folder = prepared(WEIGHTED, test, weight_column="w").folder
    assert (folder / "test.tsv").read_text() == "label\ttext\n1\tt\n"
    assert read_tsv(folder / "train.tsv")["weight"].tolist()
    for name in ("yes", "no"):
        (tmp_path / "texts" / name).mkdir(parents=True)
        (tmp_path / "texts" / name / "1.txt").write_text(f"a text of {name}")
    options = {"weight_column": "w", "test_file": str(tmp_path / "texts"), "overwrite": True}
    assert len(read_tsv(prepared(WEIGHTED, **options).folder / "test.tsv")) == 2


def test_weights_follow_the_second_text(prepared: Prepare) -> None:
    table = WEIGHTED | {"other": [f"other {number}" for number in range(10)]}
    folder = prepared(table, weight_column="w", text_pair_column="other").folder
    lines = (folder / "dev.tsv").read_text().splitlines()
    assert lines[0] == "label\ttext\ttext_pair\tweight"
    number = int(lines[1].split("\t")[1].split()[1])
    label, weight = "10"[number % 2], float(WEIGHTED["w"][number])
    assert lines[1] == f"{label}\ttext {number}\tother {number}\t{weight!r}"


def test_column_named_weight_of_a_users_table_is_read_only_on_request(prepared: Prepare) -> None:
    table = {"label": ["yes", "no"] * 5, "text": texts(10), "weight": ["75 kg"] * 10}
    assert "weight" not in (prepared(table).folder / "train.tsv").read_text()


@pytest.mark.parametrize("weight", ["-1", "nan", "inf", "", "much"])
def test_unusable_weight_is_refused_with_its_row(refused: Refused, weight: str) -> None:
    table = WEIGHTED | {"w": [1, 1, weight, *[1] * 7]}
    message = f"row 4: the weight '{weight}' is not a finite number of at least 0"
    refused(message, table, weight_column="w")


def test_absent_weights_are_refused(refused: Refused) -> None:
    message = "the column 'weight' of `weight_column` does not occur in the header"
    refused(message, WEIGHTED, weight_column="weight")
    zeros = WEIGHTED | {"w": [0] * 10}
    message = "the weight of every training row is 0; choose another `weight_column`"
    refused(message, zeros, weight_column="w")


@pytest.mark.parametrize(
    ("train", "options", "message"),
    [
        (WEIGHTED, {"weight_column": "w"}, "weights"),
        ({"label": SCORES, "text": texts(10)}, {"task": "regression"}, "scores"),
        (FLAGS, {"label_columns": "joy,anger"}, "several labels"),
    ],
)
def test_cola_layout_cannot_hold_them(
    refused: Refused, train: Table, options: dict[str, Any], message: str
) -> None:
    message = f"`layout` cola has no column for {message}; use `layout` plain"
    refused(message, train, layout="cola", **options)


def test_folder_of_texts_has_no_columns(tmp_path: Path) -> None:
    for option in ("weight_column", "label_columns"):
        reading = ReadOptions(**{option: ("a", "b") if option == "label_columns" else "w"})
        message = f"is a folder of texts, which has no columns; omit `{option}`"
        with pytest.raises(ConfigError, match=message):
            read_rows(tmp_path, reading)


def test_contradicting_options_are_refused() -> None:
    own = {"source": "csv", "train_file": "mine.csv"}
    for options, message in (
        ({"source": "sample", "task": "regression"}, "`task` cannot be used with `source` sample"),
        ({"source": "sample", "weight_column": "w"}, "`weight_column` cannot be used with"),
        ({"label_column": "stars"}, "`label_column` cannot be used with `source` yelp"),
        ({"source": "sample", "text_pair_column": "b"}, "`text_pair_column` cannot be used with"),
        ({"source": "glue", "text_column": "question"}, "`text_column` cannot be used with"),
        (own | {"task": "regression", "label_columns": "a,b"}, "`task` regression contradict"),
        (own | {"label_separator": ","}, "`label_separator` applies only to `task` multi-label"),
        (own | {"label_separator": "|"}, "`label_separator` applies only to `task` multi-label"),
        (own | {"label_columns": "a,b", "label_column": "y"}, "`label_column` y and `label_colu"),
        (
            own | {"test_file": "t.csv", "label_columns": "a,b", "test_label_column": "y"},
            "`test_label_column` y and `label_columns` both name the labels; omit one of the two",
        ),
        (
            {"source": "tfds", "dataset": "x", "task": "token-classification"},
            "`task` token-classification cannot be used with `source` tfds; set `source` to hub",
        ),
        (own | {"task": "ranking"}, "is not one of classification, regression, multi-label"),
    ):
        with pytest.raises(ConfigError, match=message):
            PrepareConfig(**options)
    for options in ({"label_columns": "a,b"}, {"label_separator": ","}, {"label_separator": "|"}):
        with pytest.raises(ConfigError, match="apply only to `file`, which is not given"):
            EvalConfig(**options)
        assert EvalConfig(file="a.csv", **options)


def test_statistics_of_many_scores_are_exact(prepared: Prepare) -> None:
    scores = [math.sin(number) for number in range(500)]
    table = {"label": scores, "text": texts(500)}
    result = prepared(table, task="regression", dev_fraction=0.1)
    assert [c["rows"] for c in result.manifest["counts"].values()] == [450, 50]
    kept = [float(label) for label in rows_of(result, "train").values()]
    counts = result.manifest["counts"]["train"]
    mean = math.fsum(kept) / 450
    assert counts["mean"] == pytest.approx(mean, abs=1e-12)
    variance = math.fsum((score - mean) ** 2 for score in kept) / 450
    assert counts["std"] == pytest.approx(math.sqrt(variance), abs=1e-12)
