"""The saved model of each kind of task: `eval`, `predict` and both exports agree."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy_bert
import pytest
import tensorflow as tf
from runs_of_tasks import KINDS, OTHERS, TEXTS, VOCABULARY, Kind, Run, RunOf, loaded_once, values

from bertaccum import api
from bertaccum.bert.tokenization import Tokenization
from bertaccum.errors import ConfigError, InputError
from bertaccum.inference import predict
from bertaccum.options.task_names import CLASSIFICATION, MULTI_LABEL, REGRESSION
from bertaccum.reporting.rendering import render
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.tasks.task import Decoding


# Each task, with single texts and pairs, and with and without a fitted decoding. Other tests of
# this folder have classes of pairs.
@pytest.fixture(params=["calibrated", "multi-label", "regression of pairs"])
def run(request: pytest.FixtureRequest, run_of: RunOf, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a run of each kind, whose files tests must not change; its model is loaded once."""
    monkeypatch.setattr(predict, "TextClassifier", loaded_once)
    return run_of(request.param)


def test_predictions_differ_and_have_the_fields_of_the_task(run: Run) -> None:
    """Otherwise, the comparisons below would not compare anything."""
    found, task = run.predictions, run.kind.labels.task
    assert [one.text for one in found] == TEXTS
    assert [one.text_pair for one in found] == (
        OTHERS if run.kind.labels.pairs else [None] * len(TEXTS)
    )
    assert np.ptp(values(found), axis=0).max() > 0.05
    for one in found:
        present = {name for name, value in vars(one).items() if value is not None}
        assert (
            present - {"text", "text_pair"}
            == {
                CLASSIFICATION: {"label", "probabilities"},
                MULTI_LABEL: {"labels", "probabilities"},
                REGRESSION: {"score"},
            }[task]
        )


def test_evaluation_is_that_of_the_predictions(run: Run) -> None:
    found, kind, result = run.predictions, run.kind, run.evaluation
    assert result.task == kind.labels.task
    if kind.labels.task == REGRESSION:
        assert result.pearson == result.scores["pearson"]
        with pytest.raises(AttributeError, match="an evaluation has no 'accuracy'"):
            result.accuracy  # noqa: B018
        wanted = np.array(kind.cells, float)
        assert result.mse == pytest.approx(np.mean((values(found)[:, 0] - wanted) ** 2), rel=1e-5)
        assert result.loss == pytest.approx(result.mse / kind.labels.std**2)
        return
    names = kind.labels.names
    sets = [{names[int(n)] for n in cell.split("|") if n} for cell in kind.cells]
    likelihoods = [
        [p if name in own or len(names) == 0 else 1 - p for name, p in one.probabilities.items()]
        for one, own in zip(found, sets, strict=True)
        if one.probabilities is not None
    ]
    if kind.labels.task == MULTI_LABEL:
        exact = [set(one.labels or []) == own for one, own in zip(found, sets, strict=True)]
        assert result.exact_match == np.mean(exact)
        assert result.loss == pytest.approx(-np.mean(np.log(likelihoods)), rel=1e-5)
    else:
        right = [{one.label} == own for one, own in zip(found, sets, strict=True)]
        assert result.accuracy == np.mean(right)
        own_class = [
            (one.probabilities or {})[next(iter(own))] for one, own in zip(found, sets, strict=True)
        ]
        assert result.loss == pytest.approx(-np.mean(np.log(own_class)), rel=1e-5)


def test_table_of_the_user_has_the_same_scores(run: Run) -> None:
    assert api.evaluate(**run.options, keep=False).scores == run.evaluation.scores
    options = {k: v for k, v in run.options.items() if k != "label_separator"}
    found = list(api.predict(**options))
    # Tests before this one may have turned off fused products, which changes the last bit.
    np.testing.assert_allclose(values(found), values(run.predictions), rtol=0, atol=1e-6)
    for one, other in zip(found, run.predictions, strict=True):
        assert (one.text, one.text_pair) == (other.text, other.text_pair)
        assert (one.label, one.labels) == (other.label, other.labels)


def test_savedmodel_gives_the_predictions(run: Run, tmp_path: Path) -> None:
    """Its second signature gives the same for token IDs, and both accept an empty batch."""
    api.export(run=str(run.folder.path), out=str(tmp_path / "exported"))
    signatures = tf.saved_model.load(str(tmp_path / "exported")).signatures
    names = ["text", "text_pair"]
    texts = {n: tf.constant(c) for n, c in zip(names, run.columns, strict=False)}
    tokens = {n: tf.constant(own) for n, own in run.tokens.items()}
    served = signatures["serving_default"](**texts)
    for name, inputs in (("serving_default", texts), ("tokens", tokens)):
        empty = signatures[name](**{n: own[:0] for n, own in inputs.items()})
        assert {n: [0, *own.shape[1:]] for n, own in served.items()} == {
            n: own.shape.as_list() for n, own in empty.items()
        }
    for name, own in signatures["tokens"](**tokens).items():
        if own.dtype == tf.float32:
            # Other padding rounds differently; logits are larger than 5.
            np.testing.assert_allclose(own, served[name], rtol=0, atol=1e-5)
        else:
            np.testing.assert_array_equal(own, served[name])
    found = run.predictions
    if run.kind.labels.task == REGRESSION:
        np.testing.assert_allclose(served["score"], values(found)[:, 0], rtol=1e-5)
        return
    np.testing.assert_allclose(served["probabilities"], values(found), atol=1e-5)
    if run.kind.labels.task == MULTI_LABEL:
        applies = [[n in (one.labels or []) for n in run.kind.labels.names] for one in found]
        assert served["predicted"].numpy().tolist() == applies
    else:
        assert [label.decode() for label in served["label"].numpy()] == [one.label for one in found]


def as_predictions(kind: Kind, logits: np.ndarray) -> np.ndarray:
    """Return what transformers computes from the logits of a folder for `problem_type`."""
    if kind.labels.task == REGRESSION:
        return logits
    if kind.labels.task == MULTI_LABEL:
        return 1 / (1 + np.exp(-logits))
    odds = np.exp(logits)
    return odds / odds.sum(1, keepdims=True)


def test_huggingface_folder_gives_the_predictions(run: Run, tmp_path: Path) -> None:
    """Its weights contain the temperature, or the unit of the scores."""
    folder = tmp_path / "exported"
    api.export(run=str(run.folder.path), format="huggingface", out=str(folder))
    tokens = run.tokens
    logits = numpy_bert.logits(
        folder, tokens["token_ids"], tokens["padding_mask"] > 0, tokens["segment_ids"]
    )
    np.testing.assert_allclose(as_predictions(run.kind, logits), values(run.predictions), atol=1e-5)
    config = json.loads((folder / "config.json").read_text())
    assert (
        config["problem_type"]
        == {
            CLASSIFICATION: "single_label_classification",
            MULTI_LABEL: "multi_label_classification",
            REGRESSION: "regression",
        }[run.kind.labels.task]
    )
    assert list(config["id2label"].values()) == (run.kind.labels.names or ["score"])
    card = (folder / "README.md").read_text()
    assert ("cold 0.2000, rude 0.5000, dear 0.8000" in card) == bool(run.kind.decoding.thresholds)


def test_card_of_a_google_folder_says_what_its_head_contains(run: Run, tmp_path: Path) -> None:
    api.export(run=str(run.folder.path), format="google", out=str(tmp_path / "exported"))
    contained = "the temperature in `decoding.json`"
    if run.kind.labels.task == REGRESSION:
        contained = "the mean and the standard deviation in `labels.json`"
    card = (tmp_path / "exported/README.md").read_text()
    assert f"Its weights already contain {contained}." in card


@pytest.mark.parametrize(
    ("kind", "fraction", "kept"),
    [
        ("adapter", 0.25, "the beginning and the end of texts that are too long (25% of the"),
        ("adapter", 0.0, None),  # The tokenizer of transformers can cut the beginning.
        ("huggingface", 0.25, "the beginning and the end of texts that are too long (25% of the"),
        ("google", 0.0, "the end of texts that are too long. `run_classifier.py` keeps only"),
        ("google", 1.0, None),
    ],
)
def test_cards_for_other_programs_say_what_only_predict_does(
    kind: str, fraction: float, kept: str | None
) -> None:
    several = KINDS["multi-label"]
    card = render(
        f"usage-{kind}.md.j2",
        base={"base_model_name_or_path": "owner/name", "revision": None},
        task=make_task(several.labels, several.decoding),
        tokenization=Tokenization(VOCABULARY, 9, fraction),
    )
    assert "reaches its threshold: cold 0.2000, rude 0.5000, dear 0.8000." in card
    assert "too long" not in card if kept is None else f"was trained with {kept}" in card


@pytest.mark.slow
def test_pipeline_of_transformers_gives_the_predictions(
    run_of: RunOf, tmp_path: Path, transformers_python: Path
) -> None:
    """The code in the model card runs as it is, except for the names in capitals."""
    runs, script = [run_of(kind) for kind in KINDS], ""
    for number, run in enumerate(runs):
        folder = tmp_path / str(number)
        api.export(run=str(run.folder.path), format="huggingface", out=str(folder))
        snippet = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
        assert "FOLDER" in snippet
        if run.kind.labels.pairs:
            texts: list[Any] = [{"text": a, "text_pair": b} for a, b in run.given]
        else:
            texts = TEXTS
        script += snippet.replace("FOLDER", str(folder)) + (
            "import json\n"
            f"found = classifier({texts!r}, truncation=True, top_k=None)\n"
            f"names = {run.kind.labels.names or ['score']!r}\n"
            "rows = [{own['label']: own['score'] for own in one} for one in found]\n"
            "print(json.dumps([[row[name] for name in names] for row in rows]))\n"
        )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [transformers_python, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=environment | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    theirs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]
    for run, found in zip(runs, theirs, strict=True):
        np.testing.assert_allclose(found, values(run.predictions), atol=1e-4)


Program = Callable[..., tuple[int, str, str]]


def test_program_prints_one_line_for_each_prediction(run: Run, program: Program) -> None:
    texts = ["\t".join(row) for row in zip(*run.columns, strict=True)]
    code, out, _ = program("predict", "--run", run.folder.path, *texts)
    assert code == 0
    for line, one in zip(out.splitlines(), run.predictions, strict=True):
        if one.probabilities is None:
            first = [f"{one.score:.4f}"]
        elif one.labels is None:
            first = [str(one.label), f"{one.probabilities[str(one.label)]:.4f}"]
        else:
            own = "|".join(f"{one.probabilities[label]:.4f}" for label in one.labels)
            first = ["|".join(one.labels), own]
        rest = [one.text] if one.text_pair is None else [one.text, " ".join(one.text_pair.split())]
        assert line == "\t".join([*first, *rest])


def test_file_of_results_has_one_row_for_each_prediction(
    run: Run, program: Program, tmp_path: Path
) -> None:
    dev = run.folder.path.parent / "data/dev.tsv"
    results = tmp_path / "results.tsv"
    code, _, err = program("predict", "--run", run.folder.path, "--file", dev, "--results", results)
    assert code == 0, err
    rows = [[float(cell) for cell in row.split("\t")] for row in results.read_text().splitlines()]
    np.testing.assert_allclose(rows, values(run.predictions), rtol=1e-6)


@pytest.fixture
def several(run_of: RunOf, tmp_path: Path) -> Run:
    """Return a run of several labels that a test may change."""
    return run_of("multi-label").copied(tmp_path)


def test_unknown_label_of_several_is_named_with_its_row(several: Run, program: Program) -> None:
    several.table.write_text("label;text\nrude;good\ncold,nice;bad\n")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in several.options.items()]
    before = {path: path.read_bytes() for path in several.folder.path.rglob("*.json")}
    for fitting in ([], ["--no-calibrate"], ["--thresholds", "dev"]):
        code, out, err = program("eval", *options, *fitting)
        assert (code, out) == (2, "")
        assert err.splitlines()[-1] == (
            f"error: {several.table}, row 3: label 'nice' is unknown; use one of cold, rude, dear"
        )
        # An evaluation that fails neither fits nor removes anything.
        assert before == {p: p.read_bytes() for p in several.folder.path.rglob("*.json")}


def test_each_label_of_a_run_needs_a_column(several: Run) -> None:
    """A label without a column would count as one that applies to no text."""
    several.table.write_text("text;rude;Dear;cold\ngood;1;0;0\nbad food;0;1;1\n")
    given = {"run": str(several.folder.path), "file": str(several.table), "keep": False}
    for columns, missing in (("rude,Dear", "cold"), ("2,3", "cold, rude, dear")):
        message = f"`label_columns` {columns} lacks labels of the run; name .*, also for {missing}"
        with pytest.raises(ConfigError, match=message):
            api.evaluate(label_columns=columns, **given)
    scores = [api.evaluate(label_columns=c, **given).scores for c in ("rude,Dear,cold", "2,3,4")]
    assert scores[0] == scores[1] and scores[0]["examples"] == 2


def test_evaluation_saves_what_it_fits(several: Run) -> None:
    run = str(several.folder.path)
    fitted = api.evaluate(run=run, calibrate=True, thresholds="dev", keep=False)
    assert fitted.thresholds != several.kind.decoding.thresholds
    assert fitted.temperature != several.kind.decoding.temperature
    again = api.evaluate(run=run, keep=False)
    assert again.scores == fitted.scores
    assert ModelFiles.read(several.folder.best).decoding == Decoding(
        fitted.temperature, fitted.thresholds
    )
    predicted = [one.labels for one in api.predict(TEXTS, run=run)]
    assert len({len(labels or []) for labels in predicted}) > 1
    uncalibrated = api.evaluate(run=run, calibrate=False, keep=False)
    decoding = ModelFiles.read(several.folder.best).decoding
    assert decoding.temperature == 1.0
    assert decoding.thresholds not in (None, fitted.thresholds)
    # The thresholds were fitted to calibrated probabilities; the predicted labels remain.
    assert [one.labels for one in api.predict(TEXTS, run=run)] == predicted
    assert uncalibrated.exact_match == fitted.exact_match


def test_thresholds_move_with_the_probabilities() -> None:
    moved = Decoding(4.0, [0.0, 0.2, 0.5, 1.0]).uncalibrated()
    assert moved.temperature == 1.0
    assert moved.thresholds == pytest.approx([0.0, 1 / (1 + 4**4), 0.5, 1.0])
    assert Decoding(4.0).uncalibrated() == Decoding()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, r"decoding.json: is damaged \(a temperature or threshold is not"),
        ({"thresholds": ["a", "b", "c"]}, r"decoding.json: is damaged \(a temperature or thres"),
        ({"margin": 1.0}, r"decoding.json: is damaged \(.*unexpected keyword argument 'margin'"),
        ({"thresholds": [0.5]}, r"decoding.json: is damaged \(1 thresholds for 3 labels"),
    ],
)
def test_damaged_decoding_is_an_error(several: Run, changes: dict[str, Any], message: str) -> None:
    saved = dataclasses.asdict(several.kind.decoding) | changes
    (several.folder.best / "decoding.json").write_text(json.dumps(saved))
    with pytest.raises(InputError, match=message + ".*; train the model again"):
        api.evaluate(run=str(several.folder.path))
