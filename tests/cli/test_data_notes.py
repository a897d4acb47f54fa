"""Notes of `bertaccum prepare` about problems in the data."""

from __future__ import annotations

from typing import Any

import pytest

from bertaccum.cli.display.data_notes import notes

NOTHING: dict[str, Any] = {
    "repeated": {"texts": 0, "rows": 0},
    "conflicting": {"texts": 0, "rows": []},
    "also_in_test": {"texts": 0, "rows": 0},
    "empty": {},
    "missing_labels": {},
    "spellings": {},
    "estimated_tokens": {"median": 9, "longer_than": {"128": 0.0, "256": 0.0, "512": 0.0}},
    "dropped_rows": 0,
}


def counted(**classes: int) -> dict[str, Any]:
    return {"rows": sum(classes.values()), "classes": classes}


def manifest(
    counts: dict[str, Any], options: dict[str, Any] | None = None, **found: Any
) -> dict[str, Any]:
    """Return a manifest with the given parts."""
    return {
        "task": "classification",
        "counts": counts,
        "options": {"dev_fraction": 0.1, "drop_duplicates": None} | (options or {}),
        "dev_fraction": 0.1,
        "findings": NOTHING | found,
    }


def said(drop: bool | None = None, **found: Any) -> str:
    counts = {name: counted(a=50, b=50) for name in ("train", "dev")}
    options = {"drop_duplicates": drop}
    lines = notes(manifest(counts, options, **found))
    assert all(line.startswith("note: ") for line in lines)
    return "\n".join(lines)


def test_data_without_problems_has_no_notes() -> None:
    assert said() == ""


def test_training_texts_in_the_test_set_are_counted() -> None:
    shared = {"texts": 1234, "rows": 1300}
    counted = "1,234 texts of the test set are also in the training set (1,300 rows): "
    left_out = "left out of train.tsv and dev.tsv; --no-drop-duplicates keeps them"
    for drop in (None, True):
        assert counted + left_out in said(drop, also_in_test=shared)
    kept = "kept in train.tsv and dev.tsv; --drop-duplicates leaves them out"
    assert counted + kept in said(False, also_in_test=shared)
    one = {"texts": 1, "rows": 1}
    assert "1 text of the test set is also in the training set (1 row): " in said(also_in_test=one)


def test_texts_shared_with_a_dev_set_of_the_source_are_counted() -> None:
    """These splits are kept as published, and nothing is held out from the training rows."""
    shared = {"texts": 2, "rows": 3}
    found = {"also_in_test": shared, "also_in_dev": shared, "repeated": {"texts": 1, "rows": 2}}
    lines = said(False, **found).splitlines()
    for line, split in zip(lines, ("test", "dev"), strict=False):
        assert line == (
            f"note: 2 texts of the {split} set are also in the training set (3 rows):"
            " kept in train.tsv; --drop-duplicates leaves them out"
        )
    assert lines[2].endswith(
        "(2 rows): all of these rows are in train.tsv; --drop-duplicates keeps only the first"
    )
    assert "left out of train.tsv; --no-drop-duplicates" in said(True, also_in_dev=shared)
    assert said(dev_also_in_test=shared) == (
        "note: 2 texts of the dev set are also in the test set (3 rows): kept in both, although"
        " dev.tsv selects the checkpoint"
    )
    few = {"train": counted(a=9, b=9), "dev": counted(a=2, b=0), "test": {"rows": 3}}
    nothing_shared = {"also_in_dev": {"texts": 0, "rows": 0}}
    assert notes(manifest(few, {"drop_duplicates": False}, **nothing_shared)) == []
    few["test"], options = counted(a=2, b=1), {"dev_fraction": None, "test_fraction": 0.1}
    [line] = notes(manifest(few, options, **nothing_shared))
    assert line.startswith("note: test.tsv has only 3 rows, so")


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("classification", "more than one label in the training set (rows 4 and 17): correct"),
        ("regression", "more than one score in the training set (rows 4 and 17): the model learns"),
        ("multi-label", "more than one set of labels in the training set (rows 4 and 17): correct"),
    ],
)
def test_notes_suit_the_task(task: str, words: str) -> None:
    statistics = {"rows": 10, "mean": 0.5}
    small = counted(a=5, b=5) if task != "regression" else statistics
    conflicting = {"texts": 1, "rows": [[4, 17]]}
    counts = {"train": small, "dev": small}
    first, last = notes(manifest(counts, conflicting=conflicting) | {"task": task})
    assert words in first
    by_chance = "dev.tsv has only 10 rows, so its scores depend largely on chance; raise --dev"
    by_accuracy = "dev.tsv has only 10 rows, so each row changes the accuracy by 10%; raise --dev"
    assert (by_accuracy if task == "classification" else by_chance) in last


def test_repeated_texts_are_counted() -> None:
    repeated = {"texts": 40, "rows": 92}
    counted = "40 texts occur more than once in the training set (92 rows): "
    together = (
        "all rows with the same text are in one split; --drop-duplicates keeps only the first"
    )
    for drop in (None, False):
        assert counted + together in said(drop, repeated=repeated)
    assert counted + "only the first row of each is kept" in said(True, repeated=repeated)


def test_conflicting_labels_are_listed_with_their_rows() -> None:
    two = {"texts": 2, "rows": [[4, 17], [1002, 8, 9]]}
    named = "2 texts have more than one label in the training set (rows 4 and 17; 1,002 and 8 and 9"
    assert f"{named}): correct" in said(conflicting=two)
    many = {"texts": 6, "rows": [[4, 17]]}
    assert "(rows 4 and 17; ...): correct" in said(conflicting=many)


def test_empty_texts_and_missing_labels_are_counted_for_each_set() -> None:
    empty = {"training": {"rows": 12, "first_row": 7}, "test": {"rows": 1, "first_row": 2}}
    found = said(empty=empty)
    kept = "they are kept: delete them if that is not meant"
    assert f"12 rows of the training set have an empty text (first: row 7); {kept}" in found
    assert "1 row of the test set has an empty text (first: row 2)" in found
    found = said(missing_labels={"training": {"NaN": 3, "None": 1}})
    assert (
        "3 rows of the training set have the label 'NaN'; if it stands for a missing value, delete"
        " the rows" in found
    )
    assert (
        "1 row of the training set has the label 'None'; if it stands for a missing value, delete"
        " the row" in found
    )
    counts = {"train": counted(a=50, NaN=0), "dev": counted(a=500, NaN=0, None_=0)}
    missing = {"missing_labels": {"training": {"NaN": 3}}}
    options = {"drop_duplicates": None}
    lines = notes(manifest(counts, options, **missing))
    assert len(lines) == 2 and "labeled None_, because" in lines[1]  # No second note on NaN.


@pytest.mark.parametrize(
    ("dev", "test_fraction", "lines"),
    [
        (counted(neg=50, pos=50), 0, []),
        (
            counted(neg=20, pos=20),
            0,
            ["dev.tsv has only 40 rows, so each row changes the accuracy by 2%; raise --dev"],
        ),
        (
            counted(neg=10, pos=10),
            0,
            ["dev.tsv has only 20 rows, so each row changes the accuracy by 5%; raise --dev"],
        ),
        (
            counted(neg=10, pos=10),
            0.1,
            [
                "test.tsv has only 20 rows, so each row changes the accuracy by 5%; raise --test",
                "dev.tsv has only 20 rows",
            ],
        ),
        (
            counted(neg=900, neutral=0, pos=0),
            0,
            ["dev.tsv has no rows labeled neutral, pos, because all of the few texts with this"],
        ),
        (
            counted(a=1, **dict.fromkeys("bcdefgh", 0)),
            0,
            [
                "dev.tsv has no rows labeled b, c, d, e, f and 2 more, because all",
                "dev.tsv has only 1 row, so",
            ],
        ),
    ],
)
def test_small_splits_and_absent_classes_are_noted(
    dev: dict[str, Any], test_fraction: float, lines: list[str]
) -> None:
    train = {"classes": dict.fromkeys(dev["classes"], 9)}
    counts = {"train": train, "dev": dev, "test": dev}
    found = notes(manifest(counts, {"test_fraction": test_fraction}))
    assert len(found) == len(lines)
    assert all(line in note for line, note in zip(lines, found, strict=True))


def test_tags_outside_of_their_scheme_are_counted() -> None:
    counts = {name: counted(a=500) for name in ("train", "dev")}
    counts["train"]["forbidden_tags"] = 1
    [found] = notes(manifest(counts) | {"label_format": {"scheme": "BIO"}})
    assert found.startswith("note: 1 word of train.tsv has a tag that BIO forbids")


def test_class_found_only_in_the_test_set_is_named() -> None:
    counts = {"train": counted(a=50, b=0), "dev": counted(a=400, b=0), "test": counted(b=9)}
    lines = notes(manifest(counts))
    assert lines == [
        "note: train.tsv has no rows labeled b, because all texts with this label are in another"
        " split"
    ]
    # Published names may have no rows at all.
    del counts["test"]
    without = "note: train.tsv has no rows labeled b, so a model cannot learn to predict it"
    assert notes(manifest(counts)) == [without]
    # Rows of published data sets are kept, so the class has no training rows in the source.
    options = {"drop_duplicates": False}
    counts["test"] = counted(b=9)
    assert notes(manifest(counts, options)) == [without]
