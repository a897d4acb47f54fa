"""Every kind of task as a user runs it, from a table to predictions, an export and a report."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from small import copied, write_small_model

from bertaccum.bert.packed_tokens import unpack
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.tokenizer_files import read_vocabulary
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.options.metrics import LABELS
from bertaccum.tasks import multi_label

Run = Callable[..., tuple[int, str, str]]
WORDS = ["a", "b", "c", "d"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Run) -> Run:
    """Return a function that runs the program in an empty folder: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    return program


def test_tokens_and_segments_match_the_golden_pairs(shared: Path) -> None:
    golden = json.loads((shared / "golden/pairs.json").read_text(encoding="utf-8"))
    vocabulary = read_vocabulary(shared / "data/vocab/vocab.txt")
    assert len(golden) == 103
    for length in {case["max_seq_length"] for case in golden}:
        cases = [case for case in golden if case["max_seq_length"] == length]
        texts = (tf.constant([case[name] for case in cases]) for name in ("text_a", "text_b"))
        tokens = Tokenizer(Tokenization(Vocabulary(vocabulary), length))(*texts)
        ids, segments = (tokens.with_values(v).to_list() for v in unpack(tokens.values))
        for case, *found in zip(cases, ids, segments, strict=True):
            assert found == [case["ids"], case["segment_ids"]], case


def write_pairs(path: Path) -> None:
    """Write a table of 64 different pairs of up to three words; `yes` if the first words match."""
    pairs = [(a + x, b + y) for a in WORDS for b in WORDS for x in (" a", "") for y in (" b", "")]
    rows = [f"{a},{b},{'yes' if a[0] == b[0] else 'no'}" for a, b in pairs]
    path.write_text("\n".join(["one,other,same", *rows]) + "\n")


def test_unusable_pairs_give_one_line_and_write_nothing(run: Run) -> None:
    write_pairs(Path("pairs.csv"))
    Path("single.csv").write_text("one,same\na,yes\n")
    columns = ["--text-column", "one", "--label-column", "same"]
    csv = ["prepare", "--source", "csv", *columns, "--out", "data"]
    paired = [*csv, "--text-pair-column", "other"]
    for arguments, message in (
        ([*csv, "--text-pair-column", "none", "--train-file", "pairs.csv"], "the column 'none' of"),
        ([*csv, "--text-pair-column", "one", "--train-file", "pairs.csv"], "are the same column"),
        ([*paired, "--train-file", "pairs.csv", "--test-file", "single.csv"], "the column 'other'"),
        ([*paired, "--train-file", "pairs.csv", "--layout", "cola"], "has no column for second"),
    ):
        code, _, err = run(*arguments)
        assert (code, message in err.splitlines()[-1]) == (2, True), err
        assert not Path("data").exists()


def write_tasks(folder: Path) -> None:
    """Write a table with pairs and scores, one with several labels, and one with weights."""
    texts = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]
    pairs = [
        f"{t},{t[::-1]},{1 + 0.75 * t.count('a') + 0.1 * (n % 3)}" for n, t in enumerate(texts)
    ]
    sets = [f"{t};{','.join(w for w in WORDS[:3] if w in t) or ','}" for t in texts]
    weighted = [f"{t},{'yes' if 'a' in t else 'no'},{n % 4}" for n, t in enumerate(texts)]
    tables = {
        "scores.csv": ["text,text_pair,score", *pairs],
        "tags.csv": ["text;tags", *sets],
        "weighted.csv": ["text,label,importance", *weighted],
    }
    for name, rows in tables.items():
        (folder / name).write_text("\n".join(rows) + "\n")
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n")
    write_small_model(folder / "bert_config.json", folder / "vocab.txt")


MODEL = ["--bert-config", "bert_config.json", "--init-checkpoint", "none", "--vocab", "vocab.txt"]
# For each kind: the table and its columns, the options of `train`, and the metrics of the task.
KINDS = {
    "regression": (
        ["scores.csv", "--task", "regression", "--label-column", "score"],
        [],
        ["pearson", "spearman", "mse"],
    ),
    "multi-label": (
        ["tags.csv", "--task", "multi-label", "--label-column", "tags", "--label-separator", ","],
        ["--thresholds", "dev", "--calibrate"],
        ["micro_f1", "macro_f1", "average_precision"],
    ),
    "classification": (
        ["weighted.csv", "--weight-column", "importance"],
        ["--class-weight", "balanced", "--label-smoothing", 0.1, "--best-by", "macro_f1"],
        ["accuracy", "macro_f1", "matthews_correlation"],
    ),
}


@pytest.fixture
def temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    """These few examples are no evidence for a temperature, so one is given."""
    monkeypatch.setattr(multi_label, "fitted_temperature", lambda *_: 1.7)


@pytest.fixture
def trained(
    made_once: Callable[..., Path], run: Run, temperature: None, tmp_path: Path
) -> Callable[[str], None]:
    """Return a function that puts a table, prepared data and `runs/one` into the test's folder."""

    def make(folder: Path, kind: str) -> None:
        (table, *columns), options, _ = KINDS[kind]
        write_tasks(folder)
        csv = ["--source", "csv", "--train-file", table, "--dev-fraction", 0.25, "--out", "data"]
        size = ["--max-seq-length", 12, "--micro-batch", 3, "--target-batch", 8]
        size += ["--epochs", 16, "--eval-every", 4.0]
        data = ["--data", "data", "--learning-rate", 0.01, "--out", "runs/one"]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            for command in (["prepare", *csv, *columns], ["train", *data, *MODEL, *size, *options]):
                code, _, err = run(*command)
                assert code == 0, err

    def copy(kind: str) -> None:
        copied(made_once(f"task-{kind}", functools.partial(make, kind=kind)), tmp_path)

    return copy


@pytest.mark.parametrize(
    "kind",
    [
        "regression",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("multi-label", "classification")),
    ],
)
def test_a_task_from_a_table_to_predictions_and_an_export(
    run: Run, trained: Callable[[str], None], kind: str
) -> None:
    trained(kind)
    metrics = KINDS[kind][2]
    chosen = ["--run", "runs/one"]
    evaluated = json.loads(run("eval", *chosen, "--json")[1])
    assert evaluated["task"] == kind
    assert all(np.isfinite(evaluated[metric]) for metric in [*metrics, "loss"])
    dev = json.loads(Path("runs/one/eval.jsonl").read_text().splitlines()[-1])
    summary = json.loads(Path("runs/one/summary.json").read_text())
    best = summary["best_evaluation"]
    assert {m: evaluated[m] for m in metrics} == pytest.approx({m: best[m] for m in metrics})
    assert set(metrics) <= set(dev)
    # The small model learns each task.
    assert best[metrics[0]] > 0.8

    found = [
        json.loads(line)
        for line in run("predict", *chosen, "--file", "data/dev.tsv", "--json")[1].splitlines()
    ]
    rows = [line.split("\t") for line in Path("data/dev.tsv").read_text().splitlines()[1:]]
    assert [one["text"] for one in found] == [row[1] for row in rows]
    assert run("export", *chosen, "--out", "exported")[0] == 0
    serve = tf.saved_model.load("exported").signatures["serving_default"]
    columns = {"text": 1, "text_pair": 2} if kind == "regression" else {"text": 1}
    served = serve(**{name: tf.constant([row[i] for row in rows]) for name, i in columns.items()})
    if kind == "regression":
        wanted = np.array([float(row[0]) for row in rows])
        scores = [one["score"] for one in found]
        assert np.mean((np.array(scores) - wanted) ** 2) == pytest.approx(
            evaluated["mse"], rel=1e-4
        )
        np.testing.assert_allclose(served["score"], scores, rtol=1e-4)
    else:
        own = [list(one["probabilities"].values()) for one in found]
        np.testing.assert_allclose(served["probabilities"], own, atol=1e-5)
    if kind == "multi-label":
        names = json.loads(Path("data/manifest.json").read_text())["labels"]
        sets = [set(np.array(names)[applies]) for applies in served["predicted"].numpy()]
        assert sets == [set(one["labels"]) for one in found]
        right = [
            one["labels"] == [names[int(n)] for n in row[0].split("|") if n]
            for one, row in zip(found, rows, strict=True)
        ]
        assert np.mean(right) == pytest.approx(evaluated["exact_match"])
        assert evaluated["temperature"] == best["temperature"] != 1
        assert evaluated["thresholds"] == best["thresholds"]
    if kind == "classification":
        assert [one["label"] for one in found] == [
            label.decode() for label in served["label"].numpy()
        ]
        code, _, err = run("predict", *chosen, "--file", "scores.csv")
        assert (code, "has a second text, but the model takes single texts" in err) == (2, True)
        code, _, err = run("eval", *chosen, "--file", "scores.csv", "--label-column", "score")
        assert (code, "scores.csv: has pairs of texts, but the model was" in err) == (2, True)

    assert run("report", *chosen)[0] == 0
    page = Path("runs/one/report.html").read_text()
    assert ("Calibration" in page, "confusion matrix" in page, "largest error" in page) == (
        kind != "regression",
        kind == "classification",
        kind == "regression",
    )
    shown = run("show", "runs/one")[1]
    assert LABELS[metrics[0]] in shown
    assert "runs/one" in run("runs")[1]
    compared = json.loads(run("compare", "runs/one", "runs/one", "--json")[1])
    assert compared["runs"][0][f"best_dev_{metrics[0]}"] == best[metrics[0]]


@pytest.mark.slow
def test_what_was_fitted_can_be_removed(run: Run, trained: Callable[[str], None]) -> None:
    trained("multi-label")
    eval_json = ["eval", "--run", "runs/one", "--json"]
    removed = json.loads(run(*eval_json, "--no-calibrate", "--thresholds", "0.5")[1])
    assert (removed["temperature"], removed["thresholds"]) == (1, [0.5] * 3)
    again = json.loads(run(*eval_json, "--calibrate", "--thresholds", "dev")[1])
    best = json.loads(Path("runs/one/best/evaluation.json").read_text())
    assert again["temperature"] == best["temperature"] == 1.7
    assert again["thresholds"] == pytest.approx(best["thresholds"], abs=1e-3)
    assert json.loads(run(*eval_json)[1])["thresholds"] == again["thresholds"]


def test_options_that_do_not_suit_the_task_give_one_line(
    run: Run, trained: Callable[[str], None]
) -> None:
    trained("regression")
    write_pairs(Path("pairs.csv"))
    csv = ["--source", "csv", "--text-column", "one", "--label-column", "same"]
    assert run("prepare", *csv, "--train-file", "pairs.csv", "--out", "classes")[0] == 0
    for folder, weight in (("zeros", "0"), ("heavy", "3e38")):
        Path(folder).mkdir()
        rows = "label\ttext\tweight\n" + "".join(f"{n % 2}\ta b\t{weight}\n" for n in range(4))
        for name in ("train", "dev"):
            Path(f"{folder}/{name}.tsv").write_text(rows)
    Path("unknown.csv").write_text("text,text_pair,score\na,b,good\n")
    small = ["--max-seq-length", 12, "--micro-batch", 2, "--out", "runs/two"]
    train = ["train", *MODEL, *small, "--data"]
    for arguments, message in (
        ([*train, "classes", "--best-by", "pearson"], "--best-by pearson is not a metric of the"),
        ([*train, "classes", "--thresholds", "dev"], "--thresholds cannot be used with the task"),
        ([*train, "classes", "--class-weight", "maybe=2"], "'maybe' is not a class; pass balanced"),
        ([*train, "classes", "--class-weight", "no=1,no=2"], "'no' is named twice"),
        ([*train, "classes", "--class-weight", "no=1e39"], "'1e39' is not a weight"),
        ([*train, "classes", "--class-weight", "no=-1"], "'-1' is not a weight; use a number of"),
        ([*train, "classes", "--class-weight", "no=0,yes=0"], "gives every class weight 0"),
        ([*train, "classes", "--task", "regression"], "were prepared with --task classification"),
        ([*train, "data", "--class-weight", "balanced"], "--class-weight cannot be used with the"),
        ([*train, "data", "--label-smoothing", 0.1], "--label-smoothing cannot be used with the"),
        ([*train, "data", "--calibrate"], "--calibrate cannot be used with the task regression"),
        ([*train, "heavy"], "heavy/train.tsv: its weights have the sum 1.2e+39, above 1e+30; div"),
        ([*train, "heavy", "--class-weight", "1=9"], "heavy/train.tsv: its weights have the sum i"),
        ([*train, "zeros"], "zeros/train.tsv: every row has weight 0; raise the weights"),
        (
            ["eval", "--run", "runs/one", "--file", "data/dev.tsv", "--label-form", "names"],
            "--label-form cannot be used with the task regression",
        ),
        (
            ["eval", "--run", "runs/one", "--file", "data/dev.tsv", "--label-separator", ";"],
            "--label-separator cannot be used with the task regression",
        ),
        (["eval", "--run", "runs/one", "--calibrate"], "--calibrate cannot be used with the task"),
        (
            ["eval", "--run", "runs/one", "--file", "unknown.csv", "--label-column", "score"],
            "unknown.csv, row 2: label 'good' is not a finite number",
        ),
        (
            ["train", *MODEL, *small[2:], "--data", "data", "--max-seq-length", 4],
            "--max-seq-length 4 leaves no room for both texts of a pair; use at least 5",
        ),
        (
            ["predict", "--run", "runs/one", "a single text"],
            "'a single text' is single, but the model takes pairs; separate the two",
        ),
    ):
        code, out, err = run(*arguments)
        assert (code, out, message in err.splitlines()[-1]) == (2, "", True), (arguments, err)
        assert err.splitlines()[-1].startswith("error: ")
        assert not Path("runs/two").exists()
