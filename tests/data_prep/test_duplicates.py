"""Repeated texts, empty texts and odd labels: the rows `prepare` keeps, and its findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from preparing import run

from bertaccum.errors import ConfigError, InputError
from bertaccum.options.prepare import PrepareConfig
from data_prep.sources.published_splits import check_fractions
from data_prep.tables.tsv import read_tsv

Rows = list[tuple[str, str]]
DIFFERENT: Rows = [("no" if i % 2 else "yes", f"text {i}") for i in range(40)]


@pytest.fixture
def prepared(tmp_path: Path) -> Any:
    """Return a function that prepares rows and returns the rows of each split and the manifest."""

    def prepare(train: Rows, test: Rows | None = None, **options: Any) -> Any:
        for name, rows in (("train", train), ("test", test)):
            lines = [f"{label},{text}\n" for label, text in rows or ()]
            (tmp_path / f"{name}.csv").write_text("label,text\n" + "".join(lines))
        if test is not None:
            options["test_file"] = str(tmp_path / "test.csv")
        files = {"train_file": str(tmp_path / "train.csv"), "out": str(tmp_path / "out")}
        result = run(source="csv", **({"dev_fraction": 0.25} | files | options))
        tables = {
            name: read_tsv(result.folder / f"{name}.tsv") for name in result.manifest["counts"]
        }
        names = result.manifest["labels"]
        splits = {
            split: [
                (names[int(label)], text)
                for label, text in zip(table["label"], table["text"], strict=True)
            ]
            for split, table in tables.items()
        }
        return splits, result.manifest

    return prepare


def texts(*splits: Rows) -> set[str]:
    return {text for split in splits for _, text in split}


def test_rows_of_one_text_stay_in_one_split(prepared: Any) -> None:
    """Regression test: all rows of dev.tsv were also in train.tsv."""
    splits, manifest = prepared(DIFFERENT * 4)
    assert not texts(splits["train"]) & texts(splits["dev"])
    assert (len(splits["train"]), len(splits["dev"])) == (120, 40)
    found = manifest["findings"]
    assert (found["repeated"], found["dropped_rows"]) == ({"texts": 40, "rows": 160}, 0)
    assert found["also_in_test"] == {"texts": 0, "rows": 0}


def test_texts_of_the_test_set_are_dropped_from_training_rows(prepared: Any) -> None:
    """Regression test: train.tsv contained test texts, and the manifest counted none of them."""
    shared = DIFFERENT[:10]
    splits, manifest = prepared([*DIFFERENT, *shared[:3]], [*shared, ("yes", "another")])
    assert splits["test"] == [*shared, ("yes", "another")]
    assert sorted(splits["train"] + splits["dev"]) == sorted(DIFFERENT[10:])
    found = manifest["findings"]
    assert (found["also_in_test"], found["dropped_rows"]) == ({"texts": 10, "rows": 13}, 13)


def test_drop_duplicates_false_keeps_every_row(prepared: Any) -> None:
    splits, manifest = prepared(DIFFERENT, DIFFERENT, drop_duplicates=False)
    assert sorted(splits["train"] + splits["dev"]) == sorted(DIFFERENT)
    found = manifest["findings"]
    assert (found["also_in_test"], found["dropped_rows"]) == ({"texts": 40, "rows": 40}, 0)


def test_drop_duplicates_true_keeps_the_first_row_of_each_text(prepared: Any) -> None:
    repeated: Rows = [("yes", "both"), *DIFFERENT, ("no", "both"), *DIFFERENT[:5]]
    test = [*DIFFERENT[:2], *DIFFERENT[:2]]
    splits, manifest = prepared(repeated, test, drop_duplicates=True)
    assert sorted(splits["train"] + splits["dev"]) == sorted([("yes", "both"), *DIFFERENT[2:]])
    assert splits["test"] == test, "the user's test set is kept whole"
    assert manifest["findings"]["dropped_rows"] == 2 + 1 + 5


def test_no_rows_left_after_dropping_is_refused(prepared: Any, tmp_path: Path) -> None:
    message = "train.csv: all its texts are also in the test set; choose another `test_file`"
    with pytest.raises(InputError, match=message):
        prepared(DIFFERENT, DIFFERENT[::-1])
    with pytest.raises(InputError, match="has rows of only one class after duplicates are dropped"):
        prepared([("yes", "a"), ("yes", "b"), ("no", "b")], drop_duplicates=True)
    assert not (tmp_path / "out").exists()


def test_one_text_per_class_cannot_be_held_out(prepared: Any) -> None:
    message = r"too few different texts to hold out any of them as dev\.tsv"
    with pytest.raises(InputError, match=message):
        prepared([("yes", "good"), ("no", "bad")] * 10)


def test_labels_that_tell_rows_apart_are_refused(prepared: Any) -> None:
    message = "each of the 30 labels occurs in only one row; .* another `label_column`, or .* regr"
    with pytest.raises(InputError, match=message):
        prepared([(str(number), f"text {number}") for number in range(30)])


def test_manifest_lists_rows_of_conflicting_labels(prepared: Any) -> None:
    rows: Rows = [("yes", "both"), *DIFFERENT, ("yes", "both"), ("no", "both")]
    _, manifest = prepared(rows)
    assert manifest["findings"]["conflicting"] == {"texts": 1, "rows": [[2, 44]]}


def test_empty_texts_are_kept_and_counted(prepared: Any) -> None:
    splits, manifest = prepared([*DIFFERENT, ("yes", ""), ("no", " \u00a0")], [("yes", " ")])
    assert {"", " \u00a0"} <= texts(splits["train"], splits["dev"])
    assert manifest["findings"]["empty"] == {
        "training": {"rows": 2, "first_row": 42},
        "test": {"rows": 1, "first_row": 2},
    }


def test_labels_that_may_stand_for_missing_values_are_counted(prepared: Any) -> None:
    odd = ["NaN", "NA", "None", "null", "nan", "N/A", "\\N"]
    rows = [(label, f"{label} {i}") for label in [*odd, "names"] for i in range(2)]
    splits, manifest = prepared([*DIFFERENT, *rows], [("NaN", "a"), ("yes", "b")])
    found = manifest["findings"]["missing_labels"]
    assert found == {"training": dict.fromkeys(odd, 2), "test": {"NaN": 1}}
    assert texts(rows) <= texts(splits["train"], splits["dev"])


def test_test_fraction_holds_out_a_test_set(prepared: Any) -> None:
    rows = [("rare", "one"), *DIFFERENT, *DIFFERENT]
    splits, manifest = prepared(rows, test_fraction=0.5)
    assert {name: len(split) for name, split in splits.items()} == {
        "train": 21,
        "dev": 20,
        "test": 40,
    }
    assert sorted(split for part in splits.values() for split in part) == sorted(rows)
    assert sum(len(texts(part)) for part in splits.values()) == 41
    assert [manifest["counts"][name]["classes"]["rare"] for name in splits] == [1, 0, 0]
    assert list(splits) == ["train", "dev", "test"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_file": "t.csv"}, "cannot be used with `test_file` t.csv, which already has test"),
        ({"source": "sample", "train_file": None}, "used with `source` sample, which already has"),
        ({"dev_fraction": 0.7}, "`test_fraction` 0.3 and `dev_fraction` 0.7 leave no rows"),
    ],
)
def test_conflicting_test_fraction_is_refused(options: dict[str, Any], message: str) -> None:
    given = {"source": "csv", "train_file": "mine.csv", "test_fraction": 0.3}
    with pytest.raises(ConfigError, match=message):
        run(**given | options)


@pytest.mark.parametrize("split", ["test", "dev"])
def test_fraction_of_a_published_split_is_refused(split: str) -> None:
    config = PrepareConfig(source="hub", dataset="owner/name", **{f"{split}_fraction": 0.3})
    message = (
        f"`{split}_fraction` 0.3 cannot be used with owner/name, which already has {split} row"
    )
    with pytest.raises(ConfigError, match=message):
        check_fractions(["train", "dev", "test"], config, "owner/name")
