"""Tests of scores against values computed by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from runs_of_tasks import TEXTS, RunOf, write_table
from small import Notes

from bertaccum.data.token_store import TokenStore
from bertaccum.inference import evaluate
from bertaccum.inference.evaluate import (
    Predictions,
    _marked,
    most_wrong,
    predictions,
    write_evaluation,
)
from bertaccum.inference.results import EvalResult
from bertaccum.options.commands import EvalConfig
from bertaccum.system.files import sha256
from bertaccum.tasks.classification import Classification
from bertaccum.tasks.labels import Labels
from data_prep.tables.manifest import MANIFEST, TOOL


def task(*names: str) -> Classification:
    return Classification(Labels([str(number) for number in range(len(names))], [*names]))


def test_scores_match_values_by_hand() -> None:
    # The labels are 0 0 0 1 1 2, the predictions 0 0 1 1 2 2.
    labels = np.array([0, 0, 0, 1, 1, 2])
    logits = np.log(np.full((6, 3), 0.25))
    logits[np.arange(6), [0, 0, 1, 1, 2, 2]] = math.log(0.5)
    report = task("a", "b", "c").report(logits, labels)
    assert report["confusion_matrix"] == [[2, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert report["accuracy"] == pytest.approx(4 / 6)
    assert report["loss"] == pytest.approx((4 * math.log(2) + 2 * math.log(4)) / 6)
    assert [row.name for row in report["classes"]] == ["a", "b", "c"]
    assert dataclasses.asdict(report["classes"][0]) == {
        "name": "a",
        "precision": pytest.approx(1.0),
        "recall": pytest.approx(2 / 3),
        "f1": pytest.approx(0.8),
        "examples": 3,
    }
    assert report["macro_f1"] == pytest.approx((0.8 + 0.5 + 2 / 3) / 3)
    assert (report["majority_class"], report["majority_accuracy"]) == ("a", 0.5)
    assert report["only_prediction"] is None
    # Source: Gorodkin 2004, (c s - Σ p t) / sqrt((s² - Σ p²)(s² - Σ t²)) with c 4, s 6.
    assert report["matthews_correlation"] == pytest.approx((24 - 12) / math.sqrt(24 * 22))


def test_class_that_never_occurs_scores_zero() -> None:
    report = task("a", "b").report(np.array([[2.0, 1.0]] * 3, np.float32), np.zeros(3, int))
    assert dataclasses.asdict(report["classes"][1]) | {"name": ""} == dict(
        name="", precision=0.0, recall=0.0, f1=0.0, examples=0
    )
    assert report["matthews_correlation"] == 0.0
    assert (report["majority_accuracy"], report["only_prediction"]) == (1.0, "a")
    # The mean leaves out classes that neither occur nor are predicted.
    assert report["macro_f1"] == 1.0


def test_model_that_always_predicts_one_class_is_reported() -> None:
    report = task("ham", "spam").scores(np.array([[2.0, 1.0]] * 200), np.array([0] * 199 + [1]))
    assert (report["accuracy"], report["majority_accuracy"]) == (0.995, 0.995)
    assert report["only_prediction"] == "ham"
    assert report["macro_f1"] == pytest.approx(199 / 399, abs=1e-12)


def test_most_wrong_matches_values_by_hand(tmp_path: Path) -> None:
    """The result lists misclassified rows with text and row, least likely label first."""
    tsv = tmp_path / "dev.tsv"
    labels, texts = [0, 1, 0, 1], ["a", "<b>", "c", "d"]
    rows = [f"{label}\t{text}\n" for label, text in zip(labels, texts, strict=True)]
    tsv.write_text("label\ttext\n" + "".join(rows))
    likely = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.4, 0.6]])
    tokens, shapes = np.zeros(4, np.int32), np.ones([4, 2], np.int32)
    store = TokenStore(tokens, np.arange(5), shapes, np.array(labels, np.int32), np.ones(4))
    # Adding a constant to all logits changes nothing.
    found = Predictions("r", 1, tsv, store, task("no", "yes"), np.log(likely) + 1000, [{}] * 4)
    first, second = most_wrong(found, 9)
    assert first == {
        "row": 4,
        "text": "c",
        "label": "no",
        "label_probability": pytest.approx(0.2),
        "prediction": "yes",
        "probability": pytest.approx(0.8),
    }
    assert (second["row"], second["text"], second["probability"]) == (3, "<b>", pytest.approx(0.7))
    assert most_wrong(found, 1) == [first]


def test_wrong_word_is_marked_between_any_spaces() -> None:
    assert _marked(" EU  rejects", 1) == "EU →rejects←"
    assert _marked(" two  spaces", None) == " two  spaces"


@pytest.mark.parametrize("edited", [False, True])
def test_copy_of_a_prepared_file_has_the_same_texts(
    run_of: RunOf, tmp_path: Path, edited: bool
) -> None:
    """If all texts are in quotes, they are part of the texts only in files that `prepare` wrote.

    If such a file was edited since, it is not read in place of the copy.
    """
    run = run_of("calibrated").copied(tmp_path)
    kind = run.kind
    path, copy = tmp_path / "data/test.tsv", tmp_path / "copy.tsv"
    texts = [f'"{text}"' for text in TEXTS]
    write_table(path, kind.cells, [texts], "\t")
    manifest = {"tool": TOOL, "source": "", "task": kind.labels.task}
    manifest |= {"labels": kind.labels.names, "options": {}}
    (path.parent / MANIFEST).write_text(json.dumps(manifest | {"files": {path.name: sha256(path)}}))
    copy.write_bytes(path.read_bytes())
    found, said = [], list[str]()
    for tsv in (path, copy):
        config = EvalConfig(run=str(run.folder.path), file=str(tsv))
        found.append(predictions(config, tsv, Notes()))
        if edited:
            write_table(path, kind.cells, [texts[::-1]], "\t")
    predictions(EvalConfig(run=str(run.folder.path), file=str(path)), path, Notes(), said.append)
    assert edited == any("was changed since bertaccum prepare wrote it" in line for line in said)
    np.testing.assert_array_equal(found[0].store.token_ids, found[1].store.token_ids)


def test_reading_of_a_table_that_prepare_did_not_write_is_noted(
    run_of: RunOf, tmp_path: Path
) -> None:
    run, said = run_of("calibrated").copied(tmp_path), list[str]()
    path = tmp_path / "data/test.tsv"
    predictions(EvalConfig(run=str(run.folder.path)), path, Notes(), said.append)
    assert f"{path}: columns separated by tab" in said


def test_files_with_the_same_name_have_evaluations_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluate, "write_card", lambda _: None)
    (tmp_path / "run").mkdir()
    (tmp_path / "data").mkdir()
    files = ["x.csv", "data/x.csv", "x.jsonl", "./x.csv", str(tmp_path / "data/x.csv"), "x.jsonl"]
    for number, file in enumerate(files):
        if number == 5:  # The same relative path names another file in another folder.
            monkeypatch.chdir(tmp_path / "data")
        result = EvalResult("run", number, file, "classification", {})
        write_evaluation(EvalConfig(run=str(tmp_path / "run"), file=file), result)
    saved = [json.loads(path.read_text()) for path in (tmp_path / "run").glob("eval-file-x*.json")]
    found = {values["data"]: values["update"] for values in saved}
    # A repeated evaluation replaces the earlier one of the same file.
    wanted = {"x.jsonl": 2, "x.csv": 3, "data/x.csv": 4, "data/x.jsonl": 5}
    assert len(saved) == 4
    assert found == {str(tmp_path / file): number for file, number in wanted.items()}
