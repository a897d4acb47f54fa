"""Data, optimizer and result files of run_classifier.py in google-research/bert."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from full_disk import full_disk
from small import write_small_task

import bertaccum
from bertaccum.cli.commands import inference
from bertaccum.cli.display.run_classifier_files import write_results
from bertaccum.errors import ConfigError
from bertaccum.inference.results import Prediction
from bertaccum.training.events import Updated
from data_prep.tables.manifest import TOOL
from data_prep.tables.tsv import read_tsv

OPTIONS = {"optimizer": "bert-adamw", "epochs": 4.0, "learning_rate": 1e-2}
# run_classifier reads quotes as ordinary characters.
OPENINGS = ("the food was", '"the food was', 'the "food" was', "the foodé'\"was ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a data folder `cola` in run_classifier's layout, without a manifest.

    Only test.tsv has a header.
    """
    folder = tmp_path_factory.mktemp("run_classifier")
    write_small_task(folder / "cola")
    words = [f"{'very ' * (i % 5)}{'good' if i % 2 else 'bad'}" for i in range(24)]
    texts = [f"{OPENINGS[i % 4]} {word}" for i, word in enumerate(words)]
    rows = [f"gj04\t{i % 2}\t{'' if i % 2 else '*'}\t{text}\n" for i, text in enumerate(texts)]
    (folder / "cola/train.tsv").write_text("".join(rows))
    (folder / "cola/dev.tsv").write_text("".join(rows[:5]))
    unlabelled = "".join(f"{i}\t{text}\n" for i, text in enumerate(texts[:7]))
    (folder / "cola/test.tsv").write_text(f"index\tsentence\n{unlabelled}")
    return folder


def updates(folder: Path, micro_batch: int) -> list[Updated]:
    events = bertaccum.training_events(
        data=str(folder / "cola"),
        bert_config=str(folder / "cola/bert_config.json"),
        init_checkpoint="none",
        max_seq_length=16,
        target_batch=8,
        micro_batch=micro_batch,
        eval_every=4.0,
        out=str(folder / f"by-{micro_batch}"),
        **OPTIONS,
    )
    return [event for event in events if isinstance(event, Updated)]


@pytest.fixture(scope="module")
def cut(folder: Path) -> list[Updated]:
    """Train the run `by-2` with micro-batches of 2, and return its updates."""
    return updates(folder, 2)


@pytest.fixture
def run(folder: Path, cut: Any, monkeypatch: pytest.MonkeyPatch, program: Any) -> Any:
    """Return a function that runs a command on `by-2`, and returns exit code, stdout and stderr."""
    monkeypatch.chdir(folder)
    return lambda command, *arguments: program(command, "--run", "by-2", *arguments)


@pytest.mark.parametrize(("name", "skipped", "column"), [("train", 0, 3), ("test", 1, 1)])
def test_read_tsv_returns_the_same_texts_as_run_classifier(
    folder: Path, name: str, skipped: int, column: int
) -> None:
    path = folder / f"cola/{name}.tsv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quotechar=None))[skipped:]
    assert read_tsv(path)["text"].tolist() == [row[column] for row in rows]
    assert sum('"' in row[column] for row in rows) > 3


def test_bert_adamw_gives_the_same_updates_with_micro_batches(
    folder: Path, cut: list[Updated]
) -> None:
    """1 x 8 and 4 x 2 give the same updates, with the learning rates of bert-adamw's schedule."""
    whole = updates(folder, 8)
    assert [{u.micro_steps for u in some} for some in (whole, cut)] == [{1}, {4}]
    for name in ("loss", "grad_norm"):
        one, other = ([getattr(u, name) for u in some] for some in (whole, cut))
        np.testing.assert_allclose(one, other, rtol=1e-4, err_msg=name)
    # int(0.1 * 12) = 1 of the 12 updates is the warm-up.
    assert [u.learning_rate for u in cut] == pytest.approx(
        [0.0, *(1e-2 * (1 - n / 12) for n in range(1, 12))]
    )
    assert "optimizer: bert-adamw\n" in (folder / "by-2/config.yaml").read_text()
    assert "| optimizer | bert-adamw |" in (folder / "by-2/model-card.md").read_text()


def test_eval_writes_eval_results(run: Any, folder: Path) -> None:
    code, out, _ = run("eval", "--split", "dev", "--results", "eval_results.txt", "--json")
    found, summary = json.loads(out), json.loads((folder / "by-2/summary.json").read_text())
    assert (code, found["examples"]) == (0, 5)
    assert (folder / "eval_results.txt").read_text() == (
        f"eval_accuracy = {found['accuracy']}\n"
        f"eval_loss = {found['loss']}\n"
        f"global_step = {summary['best_update']}\n"
        f"loss = {found['loss']}\n"
    )
    assert found["accuracy"] == summary["best_dev_accuracy"]


def test_predict_writes_test_results(run: Any, folder: Path) -> None:
    code, out, _ = run("predict", "--file", "cola/test.tsv", "--results", "test_results.tsv")
    assert (code, out) == (0, "test_results.tsv: 7 predictions\n")
    texts = read_tsv(folder / "cola/train.tsv")["text"].tolist()[:7]
    wanted = list(bertaccum.predict(texts, run=str(folder / "by-2")))
    rows = np.loadtxt("test_results.tsv", delimiter="\t")
    np.testing.assert_allclose(rows, [list(p.probabilities.values()) for p in wanted], atol=1e-6)
    assert [str(row.argmax()) for row in rows] == [p.label for p in wanted]


CHANCES = {"entailment": 0.1, "neutral": 0.2, "contradiction": 0.7}


def glue_table(folder: Path, labels: dict[str, str]) -> str:
    """Return a test set of GLUE, given GLUE's word for each label."""
    manifest = {"tool": TOOL, "files": {"test.tsv": ""}, "options": {}, "counts": {}}
    glue = {"submission": {"test": "MNLI-m.tsv"}, "labels": [*labels.values()]}
    manifest |= {"source": "a task of GLUE", "task": "classification" if labels else "regression"}
    manifest |= {"labels": [*labels], "glue": glue}
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return str(folder / "test.tsv")


def test_submission_has_the_words_of_the_test_set(tmp_path: Path) -> None:
    """The classes of the run may have another order than those of the test set."""
    words = {"contradiction": "contra", "neutral": "neu", "entailment": "ent"}
    table, written = glue_table(tmp_path / "mnli", words), io.BytesIO()
    found = [
        Prediction("a", label="contradiction", probabilities=CHANCES),
        Prediction("b", label="entailment", probabilities=CHANCES),
    ]
    assert write_results(written, found, table) == 2
    assert written.getvalue() == b"index\tprediction\n0\tcontra\n1\tent\n"
    unknown = [Prediction("c", label="2", probabilities={"1": 0.2, "2": 0.8})]
    message = "GLUE does not know the run's class '2'; train with .*: contradiction, neutral, ent"
    with pytest.raises(ConfigError, match=message):
        write_results(io.BytesIO(), unknown, table)


def test_submission_needs_a_run_of_the_same_task(tmp_path: Path) -> None:
    of_classes = glue_table(tmp_path / "rte", {"entailment": "entailment", "neutral": "neutral"})
    of_scores = glue_table(tmp_path / "sts-b", {})
    one_class = Prediction("a", label="entailment", probabilities=CHANCES)
    several = Prediction("a", labels=["neutral"], probabilities=CHANCES)
    score, tags = Prediction("a", score=1.25), Prediction("a", tags=["O"])
    written = io.BytesIO()
    assert write_results(written, [score], of_scores) == 1
    assert written.getvalue() == b"index\tprediction\n0\t1.250\n"
    for table, wanted, wrong in (
        (of_classes, "one class", (score, several, tags)),
        (of_scores, "a number", (one_class, several, tags)),
    ):
        for one in wrong:
            with pytest.raises(ConfigError, match=f"GLUE expects {wanted} for each text of this"):
                write_results(io.BytesIO(), [one], table)


def test_words_that_were_not_read_have_no_tag() -> None:
    file = io.BytesIO()
    assert write_results(file, [Prediction("We met (Ada", tags=["PRON", "VERB"])], None) == 1
    assert file.getvalue() == b"We\tPRON\nmet\tVERB\n(\t_\nAda\t_\n\n"


def test_failed_evaluation_keeps_the_earlier_results_file(run: Any, folder: Path) -> None:
    (folder / "earlier.txt").write_text("earlier results\n")
    code, out, err = run("eval", "--split", "test", "--results", "earlier.txt")
    assert (code, out, err.count("\n")) == (2, "", 4)
    assert re.match(r"run: by-2; its best checkpoint: update \d+\nevaluating on test.tsv\n", err)
    assert (
        "cola/test.tsv: has no labels; run `bertaccum predict` on it, or choose a --split or --file"
        in err
    )
    assert [p.read_text() for p in folder.glob("*earlier*")] == ["earlier results\n"]


def test_scores_are_shown_if_the_results_file_cannot_be_written(run: Any, folder: Path) -> None:
    with full_disk():
        code, out, err = run("eval", "--split", "dev", "--results", "full.txt", "--json")
    assert (code, json.loads(out)["examples"]) == (1, 5)
    assert err.splitlines()[-1].startswith(f"error: {folder}/full.txt: File too large; check perm")
    assert not list(folder.glob("*full.txt*"))


def test_evaluation_is_saved_if_its_reader_ends_early(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, `bertaccum eval | head -1`."""
    (folder / "by-2/eval-dev.json").unlink(missing_ok=True)
    monkeypatch.setattr(inference, "print_result", mock.Mock(side_effect=BrokenPipeError))
    run("eval", "--split", "dev", "--results", "piped.txt")
    assert json.loads((folder / "by-2/eval-dev.json").read_text())["examples"] == 5
    assert (folder / "piped.txt").read_text().startswith("eval_accuracy = ")


def test_results_follow_links_and_refuse_paths_that_are_not_files(run: Any, folder: Path) -> None:
    (folder / "real.txt").write_text("earlier results\n")
    (folder / "link.txt").symlink_to("real.txt")
    assert run("eval", "--split", "dev", "--results", "link.txt")[0] == 0
    assert (folder / "link.txt").is_symlink()
    assert (folder / "real.txt").read_text().startswith("eval_accuracy = ")
    os.mkfifo(folder / "pipe")
    for named in ("", ".", "/dev/absent", "pipe", "none/file"):
        for command in (["eval", "--split", "dev"], ["predict", "a text"]):
            code, out, err = run(*command, "--results", named)
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert f"error: --results {named}" in err


def test_sigterm_leaves_no_partial_results(cut: Any, folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "bertaccum",
        "predict",
        "--run",
        "by-2",
        "--results",
        "out.tsv",
    ]
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=folder, **options)
    while process.poll() is None and not list(folder.glob(".out.tsv-*")):
        time.sleep(0.01)
    process.terminate()
    _, errors = process.communicate()
    assert process.returncode == 143
    assert re.sub(r"^run: by-2; its .*\n", "", errors) == "error: terminated\n"
    assert not list(folder.glob("*out.tsv*"))
