"""Labels that are spelled differently and yet are one class, from the file to the manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from preparing import run

from bertaccum.cli.display.data_notes import notes
from bertaccum.errors import InputError
from data_prep.preparation import PrepareResult
from data_prep.tables.spellings import class_finder, finite_number, merged, number_remedy, shown
from data_prep.tables.tsv import read_tsv

ACCENT, COMPOSED = "caf\u0065\u0301", "caf\u00e9"


@pytest.mark.parametrize(
    "spellings",
    [
        ("1", "1.0", "1.00", "+1"),
        ("0", "0.0"),
        ("-1", "\u22121", "-1.0"),
        ("12345678901234567", "12345678901234567.0"),
        ("True", "true", "TRUE"),
        (COMPOSED, ACCENT, "CAF\u00c9", "CAFE\u0301"),
        ("\uc778", "\u110b\u1175\u11ab"),
        ("pos", "\ufeffpos", "p\u200bos", "pos\u00ad", "pos\u200e"),
        ("not good", "not\u00a0good", "not  good", "not\u2009good"),
        ("\u2764", "\u2764\ufe0f"),
    ],
)
def test_spellings_of_one_class_are_merged_and_found(spellings: tuple[str, ...]) -> None:
    first = spellings[0]
    found = merged(dict.fromkeys(spellings, 1) | {first: 2, "9": 1})
    assert found == dict.fromkeys(spellings, first) | {"9": "9"}
    find = class_finder([first, "9"])
    assert {find(label) for label in spellings} == {first}
    exact = class_finder([first, "9"], as_written=True)
    assert [label for label in spellings if exact(label)] == [first]


@pytest.mark.parametrize(
    "labels",
    [
        ["1", "-1", "10", "1.5"],
        ["12345678901234567", "12345678901234568"],
        ["1.1", "1.10", "2.0.1"],
        ["1.1", "1.10"],  # Chapters.
        ["007", "7", "07"],  # Codes.
        ["true", "1"],
        ["a", "\u00e1", "\u0430"],
        ["A01", "A1", "a 1"],
        ["\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e007f", "\U0001f3f4"],
    ],
)
def test_different_labels_stay_apart(labels: list[str]) -> None:
    assert merged(dict.fromkeys(labels, 1)) == {label: label for label in labels}


def test_minus_sign_of_typeset_tables_is_understood() -> None:
    assert (finite_number("\u22121.5"), number_remedy("\u22121,5")) == (
        -1.5,
        "write a decimal point instead of the comma, as in -1.5",
    )


def test_whole_numbers_are_merged_among_words() -> None:
    counts = {"1": 3, "1.0": 1, "none": 1, "01": 1}
    assert merged(counts) == {"1": "1", "1.0": "1", "none": "none", "01": "01"}


def test_most_frequent_spelling_names_the_class() -> None:
    assert set(merged({"b": 1, "B": 2, "A": 1, "a": 1}).values()) == {"B", "A"}


@pytest.mark.parametrize("labels", [["+1", "1"], [ACCENT, COMPOSED], ["p\u200bos", "pos"]])
def test_usual_spelling_names_the_class_if_several_are_equally_frequent(labels: list[str]) -> None:
    assert merged(dict.fromkeys(labels, 1)) == dict.fromkeys(labels, labels[1])


def test_class_with_two_candidates_is_not_guessed() -> None:
    find = class_finder(["Us", "us"])
    assert (find("us"), find("Us"), find("US")) == ("us", "Us", None)


def test_what_cannot_be_seen_is_shown_as_escapes() -> None:
    labels = ["pos\u200b", ACCENT, COMPOSED, "a\u00a0b", "\u2764\ufe0f"]
    assert list(map(shown, labels)) == [
        r"'pos\u200b'",
        r"'cafe\u0301'",
        f"'{COMPOSED}'",
        r"'a\xa0b'",
        "'\u2764\\ufe0f'",
    ]


def prepared(tmp_path: Path, name: str, data: str, test: str = "", **options: Any) -> PrepareResult:
    (tmp_path / name).write_text(data)
    if test:
        (tmp_path / f"test-{name}").write_text(test)
        options["test_file"] = tmp_path / f"test-{name}"
    options = {"train_file": tmp_path / name, "dev_fraction": 0.2} | options
    return run(source="csv", out=str(tmp_path / "out"), overwrite=True, **options)


def csv(labels: list[str]) -> str:
    return "label,text\n" + "".join(f"{label},text {i}\n" for i, label in enumerate(labels))


def json_lines(labels: list[Any]) -> str:
    rows = enumerate(labels)
    return "".join(json.dumps({"label": label, "text": f"text {i}"}) + "\n" for i, label in rows)


@pytest.mark.parametrize(
    ("name", "data", "test"),
    [
        ("a.csv", csv(["1", "1.0", "1", "2", "2"]), csv(["1.00", "2.0"])),
        ("a.jsonl", json_lines([1, 1.0, "1", 2, 2]), json_lines([1.0, "2"])),
    ],
)
def test_numbers_written_differently_are_one_class(
    tmp_path: Path, name: str, data: str, test: str
) -> None:
    done = prepared(tmp_path, name, data, test)
    assert done.manifest["labels"] == ["1", "2"]
    assert read_tsv(done.folder / "test.tsv")["label"].tolist() == ["0", "1"]
    one = next(line for line in notes(done.manifest) if "spellings" in line)
    assert "spellings of the class '1': '1' (2 rows), '1.0' (" in one
    assert one.endswith("--labels-as-written keeps them apart")


def test_labels_are_kept_apart_on_request(tmp_path: Path) -> None:
    data, options = csv(["us", "US", "us", "US", ACCENT, COMPOSED]), {"labels_as_written": True}
    done = prepared(tmp_path, "a.csv", data, **options)
    assert done.manifest["labels"] == ["US", ACCENT, COMPOSED, "us"]
    assert done.manifest["options"]["labels_as_written"] is True
    assert not any("spellings" in line for line in notes(done.manifest))
    with pytest.raises(InputError, match="row 2: the label 'Us' does not occur"):
        prepared(tmp_path, "a.csv", data, csv(["Us"]), **options)


def test_spellings_in_sets_of_labels_are_one_label(tmp_path: Path) -> None:
    data = csv(["Joy|fear", "joy|\u200bfear", "joy|Joy", "joy"])
    done = prepared(tmp_path, "a.csv", data, csv(["JOY|fear"]), task="multi-label")
    assert done.manifest["labels"] == ["fear", "joy"]
    cells = read_tsv(done.folder / "train.tsv")["label"].tolist()
    assert set(cells) <= {"0|1", "1"}
    assert read_tsv(done.folder / "test.tsv")["label"].tolist() == ["0|1"]
    assert done.manifest["findings"]["spellings"] == {
        "fear": {"fear": 2, "\u200bfear": 1},
        "joy": {"joy": 3, "Joy": 2, "JOY": 1},
    }
    assert r"'fear' (2 rows), '\u200bfear' (1 row)" in "\n".join(notes(done.manifest))


def test_one_class_in_two_spellings_is_not_enough(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="every row has the label 'yes'"):
        prepared(tmp_path, "a.csv", csv(["yes", "Yes", "yes"]))


def test_label_without_visible_character_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 3: has no label"):
        prepared(tmp_path, "a.csv", csv(["yes", "\u200b\ufeff", "no"]))


def test_class_name_with_an_invisible_character_is_noted(tmp_path: Path) -> None:
    done = prepared(tmp_path, "a.csv", csv(["yes\u200b", "no"] * 3))
    assert r"note: class names contain invisible characters: 'yes\u200b'; correct" in "\n".join(
        notes(done.manifest)
    )
