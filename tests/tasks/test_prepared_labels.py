"""Labels of a data folder, and of files that are read as its training rows were."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bertaccum.errors import InputError
from bertaccum.options.prepare import PrepareConfig
from bertaccum.system.progress import silent
from bertaccum.tasks.kinds import make_task, task_in
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.prepared_labels import read_labels
from data_prep.preparation import prepare
from data_prep.tables.manifest import MANIFEST

PLAIN = ["a|b", "a", "b", "c"]
NAMES = ["[a, b]", "[a]", "[b]", "[c]"]
INDICES = ["[0, 1]", "[0]", "[1]"]
FLAGS = ["[0, 1]", "[1, 0]", "[1, 1]"]
SPACED_FLAGS = ["0 1", "1 0", "1 1"]


def prepared(folder: Path, cells: list[str], **options: Any) -> dict[str, Any]:
    """Prepare a column of labels; return the manifest."""
    path, out = folder.with_suffix(".csv"), str(folder)
    rows = [(cell, f"text {number}") for number, cell in enumerate(cells * 4)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("label", "text"), *rows])
    options = {"task": "multi-label", "dev_fraction": 0.2, "out": out} | options
    config = PrepareConfig(source="csv", train_file=str(path), **options)
    return prepare(config, silent, lambda _: []).manifest


def encoded(labels: Labels, *cells: str) -> list[Any]:
    table = pd.DataFrame({"row": range(2, len(cells) + 2), "label": cells})
    by_name = any(name in cell for cell in cells for name in labels.names)
    found: list[Any] = make_task(labels).encode(Path("x"), table, by_name=by_name).tolist()
    return found


@pytest.mark.parametrize(
    ("cells", "options", "recorded"),
    [
        (PLAIN, {}, None),
        (["a", "b"], {"task": None}, None),
        (["1.5", "2"], {"task": "regression"}, None),
        (NAMES, {}, {"lists": True}),
        (["a;b", "a", "b"], {}, {"separator": ";"}),
        (["[0, 1, 0]", "[1, 0, 0]"], {"task": None}, {"lists": True, "flags": 3}),
        (SPACED_FLAGS, {}, {"separator": " ", "flags": 2}),
    ],
)
def test_manifest_contains_the_format_if_it_is_not_plain(
    tmp_path: Path, cells: list[str], options: dict[str, Any], recorded: dict[str, Any] | None
) -> None:
    assert prepared(tmp_path / "out", cells, **options).get("label_format") == recorded
    assert read_labels(tmp_path / "out").format == (recorded or {})


@pytest.mark.parametrize(
    ("cells", "cell", "expected", "options"),
    [
        (NAMES, "[c]", [0, 0, 1], {}),
        (NAMES, "a|c", [1, 0, 1], {}),
        (INDICES, "[0, 1]", [1, 1], {}),
        (["0|1", "0", "1"], "[0, 1]", [1, 1], {}),
        (FLAGS, "[0, 1]", [0, 1], {}),
        (FLAGS, "0", [1, 0], {}),
        (FLAGS, "0|1", [1, 1], {}),
        (SPACED_FLAGS, "1 0", [1, 0], {}),
        (SPACED_FLAGS, "0|1", [1, 1], {}),
        (["a|x;b", "b", "c"], "b;a|x", [1, 1, 0], {"label_separator": ";"}),
        # The training rows do not contain such cells.
        (["a|b", "a", "b"], "[0, 1]", [0, 1], {}),
        (["a;b", "a", "b"], "a|b", [1, 1], {}),
    ],
)
def test_file_is_read_as_the_training_rows_were(
    tmp_path: Path, cells: list[str], cell: str, expected: list[int], options: dict[str, Any]
) -> None:
    """By itself, the cell may have another meaning."""
    prepared(tmp_path / "out", cells, **options)
    assert encoded(read_labels(tmp_path / "out"), cell) == [expected]


def test_class_in_a_list_without_quotes(tmp_path: Path) -> None:
    prepared(tmp_path / "out", ["['a']", "[b]", "[c]"], task=None)
    assert encoded(read_labels(tmp_path / "out"), "[c]", "a") == [2, 0]


def test_cell_that_does_not_have_the_format_is_an_error(tmp_path: Path) -> None:
    prepared(tmp_path / "out", ["[0, 1, 0]", "[1, 0, 0]", "[0, 0, 1]"], task=None)
    with pytest.raises(
        InputError, match=r"row 3: label '\[0, 1\]' is unknown; write 0 or 1 for each of the 3 lab"
    ):
        encoded(read_labels(tmp_path / "out"), "[0, 0, 1]", "[0, 1]")


def test_prepared_files_are_plain(tmp_path: Path) -> None:
    prepared(tmp_path / "out", FLAGS)
    labels = read_labels(tmp_path / "out")
    assert labels.format
    assert task_in(tmp_path / "out/dev.tsv", make_task(labels)).labels.format == {}
    assert encoded(task_in(tmp_path / "out/dev.tsv", make_task(labels)).labels, "0|1") == [[1, 1]]


def test_rows_of_dev_are_read_as_those_of_train_without_a_manifest(tmp_path: Path) -> None:
    rows = "".join(f"{cell}\ttext\n" for cell in FLAGS)
    (tmp_path / "train.tsv").write_text("label\ttext\n" + rows)
    assert encoded(read_labels(tmp_path), "[0, 1]") == [[0, 1]]


@pytest.mark.parametrize(
    "found", [3, {"lists": "yes"}, {"flags": "3"}, {"separator": ""}, {"x": 1}]
)
def test_damaged_format_is_an_error(tmp_path: Path, found: Any) -> None:
    manifest = prepared(tmp_path / "out", NAMES) | {"label_format": found}
    (tmp_path / "out" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"manifest.json: the format of the labels .* is unknown"):
        read_labels(tmp_path / "out")


@pytest.mark.parametrize("has_manifest", [True, False])
def test_pairs_are_refused_if_words_have_tags(tmp_path: Path, has_manifest: bool) -> None:
    prepared(tmp_path / "data", ["B-X O", "O O"], task="token-classification")
    (tmp_path / "data/train.tsv").write_text("label\ttext\ttext_pair\n0 1\ta b\tc\n")
    if not has_manifest:
        (tmp_path / "data" / MANIFEST).unlink()
    with pytest.raises(InputError, match="has the column 'text_pair', but only the words of"):
        read_labels(tmp_path / "data", "token-classification")
