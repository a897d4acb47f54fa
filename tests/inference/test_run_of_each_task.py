"""The saved model of each kind of task: `eval`, `predict` and both exports agree."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy_bert
import pytest
import tensorflow as tf
from small import scatter

from bertaccum import api
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.packed_tokens import unpack
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.cli.program import main
from bertaccum.config import TrainConfig
from bertaccum.errors import InputError
from bertaccum.inference.results import Prediction
from bertaccum.task_names import CLASSIFICATION, MULTI_LABEL, REGRESSION
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.tasks.task import Decoding
from bertaccum.training.checkpoints import save_best
from bertaccum.training.events import Evaluated
from bertaccum.training.initial_model import build_model
from bertaccum.training.run_folder import RunFolder

WORDS = [*SPECIAL_TOKENS, "good", "bad", "##ly", "food", "!"]
VOCABULARY = Vocabulary(WORDS)
# With an even number of tokens for both texts, transformers cuts long pairs as bertaccum does.
LENGTH = 13
TEXTS = ["good", "bad food", "badly good food!", "food food food", "bad bad bad good", "!"]
OTHERS = ["bad", "good", "food " * 9, "badly!", "good good", "food bad"]
ENCODER = EncoderConfig(
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    vocab_size=len(WORDS),
    max_position_embeddings=16,
)


@dataclass(frozen=True)
class Kind:
    """A kind of task, with what was fitted to it.

    Args:
      labels: Labels of the dataset.
      decoding: The saved decoding.
      cells: Label of each text in test.tsv.
      names: The same labels in a table of the user.
    """

    labels: Labels
    decoding: Decoding
    cells: list[str]
    names: list[str]


KINDS = {
    "calibrated": Kind(
        Labels(["0", "1", "2"], ["no", "some", "all"]),
        Decoding(temperature=2.5),
        ["0", "1", "2", "0", "1", "2"],
        ["no", "some", "all", "no", "some", "all"],
    ),
    "pairs": Kind(
        Labels(["0", "1"], ["no", "yes"], pairs=True),
        Decoding(),
        ["0", "1", "1", "0", "1", "0"],
        ["no", "yes", "yes", "no", "yes", "no"],
    ),
    "multi-label": Kind(
        Labels(["0", "1", "2"], ["cold", "rude", "dear"], task=MULTI_LABEL),
        Decoding(temperature=4.0, thresholds=[0.2, 0.5, 0.8]),
        ["0|2", "|", "1", "0|1|2", "2", "0"],
        ["dear, cold", ",", "rude", "cold,rude,dear", "dear", "cold"],
    ),
    "regression of pairs": Kind(
        Labels([], [], pairs=True, task=REGRESSION, mean=3.2, std=0.7),
        Decoding(),
        ["1.5", "2.0", "4.5", "3.0", "5.0", "0.5"],
        ["1.5", "2", "4.5", "3", "5", "0.5"],
    ),
}


@dataclass(frozen=True)
class Run:
    kind: Kind
    folder: RunFolder
    table: Path

    @property
    def columns(self) -> list[list[str]]:
        return [TEXTS, OTHERS] if self.kind.labels.pairs else [TEXTS]

    @property
    def given(self) -> list[Any]:
        return list(zip(TEXTS, OTHERS, strict=True)) if self.kind.labels.pairs else TEXTS

    @property
    def options(self) -> dict[str, str]:
        """The options for `table`."""
        pair = {"text_pair_column": "text_pair"} if self.kind.labels.pairs else {}
        separator = {"label_separator": ","} if self.kind.labels.task == MULTI_LABEL else {}
        return {"run": str(self.folder.path), "file": str(self.table), **pair, **separator}

    @cached_property
    def predictions(self) -> list[Prediction]:
        return list(api.predict(self.given, run=str(self.folder.path)))


def write_table(path: Path, labels: list[str], columns: list[list[str]], separator: str) -> Path:
    head = ["label", "text", "text_pair"][: 1 + len(columns)]
    rows = zip(labels, *columns, strict=True)
    path.write_text("".join(separator.join(row) + "\n" for row in [head, *rows]))
    return path


def make_run(folder: Path, kind: Kind) -> Run:
    """Create a run with a best checkpoint of random weights."""
    (folder / "data").mkdir(parents=True)
    columns = [TEXTS, OTHERS] if kind.labels.pairs else [TEXTS]
    for split in ("dev", "test"):
        write_table(folder / f"data/{split}.tsv", kind.cells, columns, "\t")
    (folder / "data/train.tsv").touch()
    config = TrainConfig(
        data=str(folder / "data"),
        init_checkpoint="none",
        max_seq_length=LENGTH,
        task=kind.labels.task,
        best_by="loss",
    )
    outputs = make_task(kind.labels).outputs
    model = scatter(build_model(config, ModelSource("small", ENCODER, VOCABULARY, None), outputs))
    run = RunFolder(folder / "run")
    run.create(config, {})
    evaluated = Evaluated(7, True, {"loss": 0.5, "examples": 6})
    save_best(model, ModelFiles(ENCODER, VOCABULARY, kind.labels, kind.decoding), evaluated, run)
    run.append(run.eval, evaluated.record())
    table = write_table(folder / "own.csv", kind.names, columns, ";")
    return Run(kind, run, table)


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run of each kind, whose files tests must not change."""
    return make_run(tmp_path_factory.mktemp("run"), KINDS[request.param])


def values(found: list[Prediction]) -> np.ndarray:
    """Return the probabilities or scores of predictions, [texts, outputs]."""
    return np.array(
        [
            [one.score] if one.probabilities is None else [*one.probabilities.values()]
            for one in found
        ]
    )


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
    found, kind = run.predictions, run.kind
    result = api.evaluate(run=str(run.folder.path), keep=False)
    if kind.labels.task == REGRESSION:
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
    split = api.evaluate(run=str(run.folder.path), keep=False)
    own = api.evaluate(**run.options, keep=False)
    assert own.scores == split.scores
    options = {k: v for k, v in run.options.items() if k != "label_separator"}
    assert list(api.predict(**options)) == run.predictions


def test_savedmodel_gives_the_predictions(run: Run, tmp_path: Path) -> None:
    api.export(run=str(run.folder.path), out=str(tmp_path / "exported"))
    serve = tf.saved_model.load(str(tmp_path / "exported")).signatures["serving_default"]
    names = ["text", "text_pair"]
    served = serve(**{n: tf.constant(c) for n, c in zip(names, run.columns, strict=False)})
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
    tokens = Tokenizer(Tokenization(VOCABULARY, LENGTH))(
        *(tf.constant(column) for column in run.columns)
    ).to_tensor()
    ids, segments = unpack(tokens)
    logits = numpy_bert.logits(folder, ids.numpy(), (ids != 0).numpy(), segments.numpy())
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


@pytest.mark.slow
def test_pipeline_of_transformers_gives_the_predictions(
    run: Run, tmp_path: Path, transformers_python: Path
) -> None:
    """The code in the model card runs as it is, except for the names in capitals."""
    folder = tmp_path / "exported"
    api.export(run=str(run.folder.path), format="huggingface", out=str(folder))
    snippet = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert "FOLDER" in snippet
    if run.kind.labels.pairs:
        texts: list[Any] = [{"text": a, "text_pair": b} for a, b in run.given]
    else:
        texts = TEXTS
    script = snippet.replace("FOLDER", str(folder)) + (
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
    theirs = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(theirs, values(run.predictions), atol=1e-4)


Program = Callable[..., tuple[int, str, str]]


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str]) -> Program:
    """Return a function that runs the program: exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        found = capsys.readouterr()
        return int(end.value.code or 0), found.out, found.err

    return call


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
def several(tmp_path: Path) -> Run:
    """Return a run of several labels that a test may change."""
    return make_run(tmp_path, KINDS["multi-label"])


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
    api.evaluate(run=run, calibrate=False, keep=False)
    assert ModelFiles.read(several.folder.best).decoding == Decoding(1.0, fitted.thresholds)


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
