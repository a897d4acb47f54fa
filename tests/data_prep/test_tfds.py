"""Data sets of tensorflow-datasets: small builders that are registered here, read by our code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import requests
import tensorflow_datasets as tfds
from preparing import ignore, run, words

from bertaccum.errors import BertAccumError, ConfigError, InputError
from bertaccum.options.prepare import PrepareConfig
from data_prep.preparation import PrepareResult, prepare
from data_prep.tables.tsv import default_split, read_tsv

features = tfds.features
CLASSES = features.ClassLabel(names=["no", "maybe", "yes"])


class _Small(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A data set of a few examples."""

    VERSION = tfds.core.Version("1.2.0")
    FEATURES: ClassVar[dict[str, Any]]
    ROWS: ClassVar[dict[str, list[tuple[Any, ...]]]]

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(builder=self, features=features.FeaturesDict(self.FEATURES))

    def _split_generators(self, _: Any) -> dict[str, Any]:
        return {split: self._generate_examples(rows) for split, rows in self.ROWS.items()}

    def _generate_examples(self, rows: list[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        for number, row in enumerate(rows):
            yield number, dict(zip(self.FEATURES, row, strict=True))


class SmallReviews(_Small):
    FEATURES: ClassVar = {"id": features.Scalar(np.int32), "text": features.Text(), "mood": CLASSES}
    ROWS: ClassVar = {
        "train": [(n, f"café\n{n}", n % 3) for n in range(30)],
        "test": [*((n, f"test {n}", n % 3) for n in range(6)), (6, "nobody knows", -1)],
        "unsupervised": [(0, "no label", -1)],
    }


class SmallEntailment(_Small):
    FEATURES: ClassVar = {
        "hypothesis": features.Text(),
        "premise": features.Text(),
        "label": CLASSES,
    }
    ROWS: ClassVar = {
        "train": [(f"then {n}", f"if {n}", n % 4 - 1) for n in range(20)],
        "validation_matched": [("so", "because", 2), ("m", "n", -1)],
        "validation_mismatched": [("c", "d", 0)],
        "test_matched": [("e", f"f {n}", -1) for n in range(4)],
        "test_mismatched": [("g", "h", -1)],
    }


class SmallSimilarity(_Small):
    FEATURES: ClassVar = {
        "sentence1": features.Text(),
        "sentence2": features.Text(),
        "label": features.Scalar(np.float32),
    }
    ROWS: ClassVar = {
        "train": [("a", f"b {n}", n / 10) for n in range(20)],
        "validation": [("c", "d", 3.8), ("e", "f", -1)],
        "test": [("g", "h", -1), ("i", "j", -1)],
    }


class SmallEmotions(_Small):
    FEATURES: ClassVar = {
        "comment": features.Text(),
        "emotions": features.Sequence(features.ClassLabel(names=["joy", "fear", "awe"])),
    }
    ROWS: ClassVar = {
        "train": [(f"text {n}", [0, 2][n % 3 :]) for n in range(12)],
        "validation": [("both", [2, 1]), ("none", [])],
    }


class SmallTopics(_Small):
    """The label is a text, so it must not be taken for the text."""

    FEATURES: ClassVar = {"comment": features.Text(), "label": features.Text()}
    ROWS: ClassVar = {"train": [(f"text {n}", ["art", "war"][n % 2]) for n in range(12)]}


class SmallFlags(_Small):
    FEATURES: ClassVar = {
        "comment": features.Text(),
        "author": features.Scalar(np.str_),
        "joy": features.Scalar(np.bool_),
        "awe": features.Scalar(np.bool_),
        "stars": features.Scalar(np.int64),
        "votes": features.Tensor(shape=(2,), dtype=np.int64),
    }
    ROWS: ClassVar = {
        "train": [(f"text {n}", "A", n % 2 == 0, n % 3 == 0, n % 5, [1, 2]) for n in range(12)],
        "test": [("both", "B", True, True, 1, [1, 2]), ("none", "B", False, False, 3, [1, 2])],
    }


class Glue(_Small, skip_registration=True):
    """A miniature of glue/mrpc, whose test rows are stored in another order."""

    BUILDER_CONFIGS: ClassVar = [tfds.core.BuilderConfig(name="mrpc", version="2.0.0")]
    FEATURES: ClassVar = {
        "sentence1": features.Text(),
        "sentence2": features.Text(),
        "label": features.ClassLabel(names=["not_equivalent", "equivalent"]),
        "idx": features.Scalar(np.int32),
    }
    ROWS: ClassVar = {
        "train": [("a", f"b {n}", n % 2, n) for n in range(8)],
        "validation": [("c", "d", 1, 0)],
        "test": [("e", f"f {n}", -1, n) for n in (3, 1, 0, 2)],
    }


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PrepareResult]:
    """Return a function that prepares a data set in folders of this test."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))

    def prepare(dataset: str, **options: Any) -> PrepareResult:
        return run(source="tfds", dataset=dataset, **({"out": str(tmp_path / "out")} | options))

    return prepare


def rows_of(result: PrepareResult, *splits: str) -> list[tuple[str, ...]]:
    tables = [read_tsv(result.folder / f"{split}.tsv").drop(columns="row") for split in splits]
    return [tuple(row) for table in tables for row in table.itertuples(index=False)]


def test_classes_and_splits_of_a_data_set(prepared: Any) -> None:
    result = prepared("small_reviews", dev_fraction=0.2)
    expected = {(str(n % 3), f"café {n}") for n in range(30)}
    assert set(rows_of(result, "train", "dev")) == expected
    assert sorted(rows_of(result, "test")) == sorted((str(n % 3), f"test {n}") for n in range(6))
    manifest = result.manifest
    assert manifest["source"] == "small_reviews/1.2.0 of tensorflow-datasets"
    assert (manifest["task"], manifest["labels"]) == ("classification", ["no", "maybe", "yes"])
    assert [counts["rows"] for counts in manifest["counts"].values()] == [24, 6, 6]
    assert manifest["options"]["dataset"] == "small_reviews" and "glue" not in manifest
    assert default_split(result.folder) == "test"
    assert prepared("small_reviews", dev_fraction=0.2).unchanged


def test_pairs_with_two_dev_sets_and_missing_labels(prepared: Any, tmp_path: Path) -> None:
    said: list[str] = []
    options = {"out": str(tmp_path / "out"), "dataset": "small_entailment", "source": "tfds"}
    result = prepare(PrepareConfig(**options), ignore, words, said.append)
    assert rows_of(result, "dev") == [("2", "because", "so")]
    assert rows_of(result, "dev-mismatched") == [("0", "d", "c")]
    assert sorted(rows_of(result, "test")) == [(f"f {n}", "e") for n in range(4)]
    assert rows_of(result, "test-mismatched") == [("h", "g")]
    assert len(rows_of(result, "train")) == 15
    assert said == [
        "small_entailment/1.2.0 train: skipped 5 rows without a label",
        "small_entailment/1.2.0 validation_matched: skipped 1 row without a label",
    ]


def test_float_labels_are_scores(prepared: Any) -> None:
    result = prepared("small_similarity")
    assert result.manifest["task"] == "regression"
    # A float32 label keeps its digits, and -1 is a score in a split with other scores.
    assert sorted(rows_of(result, "dev")) == [("-1.0", "e", "f"), ("3.8", "c", "d")]
    assert result.manifest["counts"]["test"] == {"rows": 2}


def test_sequence_of_classes_is_multi_label(prepared: Any) -> None:
    result = prepared("small_emotions")
    assert result.manifest["labels"] == ["joy", "fear", "awe"]
    assert sorted(rows_of(result, "dev")) == [("1|2", "both"), ("|", "none")]
    expected = [(["0|2", "2", "|"][n % 3], f"text {n}") for n in range(12)]
    assert sorted(rows_of(result, "train")) == sorted(expected)


def test_several_classes_are_refused_as_one(prepared: Any) -> None:
    with pytest.raises(InputError, match=r"has several labels \(joy, awe\); write one class"):
        prepared("small_emotions", task="classification")


def test_text_label_is_a_class(prepared: Any) -> None:
    result = prepared("small_topics", dev_fraction=0.5)
    assert result.manifest["labels"] == ["art", "war"]
    assert sorted(rows_of(result, "train", "dev")) == sorted(
        (str(n % 2), f"text {n}") for n in range(12)
    )


def test_features_are_chosen_by_name(prepared: Any) -> None:
    options = {"text_column": "comment", "label_columns": "joy,awe"}
    result = prepared("small_flags", **options)
    assert result.manifest["labels"] == ["awe", "joy"]
    assert sorted(rows_of(result, "test")) == [("0|1", "both"), ("|", "none")]
    options = {"text_column": "comment", "text_pair_column": "author", "overwrite": True}
    options["label_column"] = "stars"
    result = prepared("small_flags", **options)
    assert result.manifest["labels"] == ["0", "1", "2", "3", "4"]
    assert sorted(rows_of(result, "test")) == [("1", "both", "B"), ("3", "none", "B")]
    result = prepared("small_flags", **options, task="regression")
    assert sorted(rows_of(result, "test")) == [("1.0", "both", "B"), ("3.0", "none", "B")]


def test_test_rows_of_glue_are_in_the_order_of_the_submission(
    prepared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tfds, "builder", lambda name, data_dir: Glue(data_dir=data_dir, config="mrpc")
    )
    result = prepared("glue/mrpc")
    assert rows_of(result, "test") == [("e", f"f {n}") for n in range(4)]
    assert result.manifest["labels"] == ["not_equivalent", "equivalent"]
    assert result.manifest["glue"] == {
        "dataset": "MRPC",
        "submission": {"test": "MRPC.tsv"},
        "labels": ["0", "1"],
    }


FEATURES = (
    r"comment \(text\), author \(text\), joy \(number\), awe \(number\), stars \(number\),"
    r" votes \(unusable\)"
)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("no_such_data", {}, "`dataset` no_such_data is unknown to tensorflow-datasets .*; choose"),
        ("small_flags", {}, rf"small_flags has no feature label; .*`label_column`: {FEATURES}"),
        (
            "small_flags",
            {"label_column": "stars"},
            rf"small_flags has several texts and no feature text; .*`text_column`: {FEATURES}",
        ),
        (
            "small_flags",
            {"label_column": "votes"},
            rf"`label_column` votes is not a suitable feature of small_flags; .*: {FEATURES}",
        ),
        ("small_flags", {"label_columns": "joy,author"}, "`label_columns` author is not a"),
        ("small_reviews", {"text_column": "id"}, "`text_column` id is not a suitable feature"),
        ("small_reviews", {"text_pair_column": "x"}, "`text_pair_column` x is not a suitable"),
        ("small_reviews", {"test_fraction": 0.1}, "which already has test rows; omit"),
    ],
)
def test_unusable_data_sets_give_one_line(
    prepared: Any, tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        prepared(name, **options)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_flags_are_0_or_1(prepared: Any, tmp_path: Path) -> None:
    message = "the feature 'stars' contains [234], which is neither 0 nor 1; name other"
    with pytest.raises(InputError, match=message):
        prepared("small_flags", text_column="comment", label_columns="joy,stars")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            AssertionError("Manual directory is empty.\nDownload the files by hand."),
            r"cannot prepare small_reviews \(Manual directory is empty\.\); choose another",
        ),
        (requests.ConnectionError(), "no network: cannot download the data set small_reviews; che"),
    ],
)
def test_failure_of_a_builder_gives_one_line(
    prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(SmallReviews, "_split_generators", fail)
    with pytest.raises(BertAccumError, match=message) as caught:
        prepared("small_reviews")
    assert caught.value.exit_code == 2 and not (tmp_path / "out").exists()


def test_other_sources_do_not_import_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from bertaccum.options.prepare import PrepareConfig;"
        "from data_prep.preparation import prepare;"
        f"prepare(PrepareConfig(source='sample', out={str(tmp_path / 'out')!r}),"
        " lambda *_: None, lambda texts: []);"
        "print([m for m in ('tensorflow', 'tensorflow_datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
