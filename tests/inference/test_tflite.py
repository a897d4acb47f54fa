"""Models for TensorFlow Lite give the same answers as `bertaccum predict`.

The interpreter of LiteRT contains only built-in operations, so a model with others does not run.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from runs_of_tasks import ENCODER, KINDS, LENGTH, TEXTS, WORDS, Kind, Run, RunOf, make_run, values

from bertaccum import api
from bertaccum.data.tokenizing import open_store
from bertaccum.errors import ConfigError
from bertaccum.inference.predictor import Predictor
from bertaccum.inference.tflite import Int8Predictor
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.task_names import MULTI_LABEL, REGRESSION, TOKEN_CLASSIFICATION
from bertaccum.system.atomic import complete_folder
from bertaccum.system.progress import silent
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.tasks.task import PLAIN

# The converter quantizes only matrices of at least 1,024 numbers.
WIDE = dataclasses.replace(ENCODER, hidden_size=32, intermediate_size=64)


def export_tflite(run: Run, folder: Path, **options: str) -> Interpreter:
    api.export(run=str(run.folder.path), format="tflite", out=str(folder), **options)
    return Interpreter(str(folder / "model.tflite"))


def served(model: Interpreter, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return model.get_signature_runner()(**inputs)


def result_of(outputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return the probabilities or scores, [texts, outputs]."""
    return outputs["score"][:, None] if "score" in outputs else outputs["probabilities"]


def run_card(folder: Path) -> dict[str, np.ndarray]:
    """Run the code in the model card, and return the outputs of the model."""
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code = code.replace("FOLDER", str(folder)).replace("run(token_ids", "outputs = run(token_ids")
    found: dict[str, dict[str, np.ndarray]] = {}
    exec(code.replace(" 100,", " 5,"), found)  # The small vocabulary has no such ID.
    return found["outputs"]


@pytest.mark.parametrize("name", ["calibrated", "multi-label", "regression of pairs"])
def test_model_gives_the_predictions_for_batches_of_any_size(
    name: str, run_of: RunOf, tmp_path: Path
) -> None:
    # Hugging Face's models have another activation.
    erf = dataclasses.replace(ENCODER, hidden_act="gelu_erf")
    run = make_run(tmp_path / "run", KINDS[name], erf) if name == MULTI_LABEL else run_of(name)
    folder = tmp_path / "exported"
    model = export_tflite(run, folder)
    outputs = served(model, run.tokens)
    np.testing.assert_allclose(result_of(outputs), values(run.predictions), rtol=1e-5, atol=1e-5)
    if run.kind.labels.task == MULTI_LABEL:
        names = np.array(run.kind.labels.names)
        applies = [names[own].tolist() for own in outputs["predicted"]]
        assert applies == [one.labels for one in run.predictions]
    # Without the padding, each text gives the same.
    for row, expected in enumerate(values(run.predictions)):
        count = run.tokens["padding_mask"][row].sum()
        alone = {n: own[row : row + 1, :count] for n, own in run.tokens.items()}
        np.testing.assert_allclose(result_of(served(model, alone))[0], expected, 1e-5, 1e-5)
    empty = served(model, {n: own[:0] for n, own in run.tokens.items()})
    assert result_of(empty).shape == (0, result_of(outputs).shape[1])

    assert ModelFiles.read(folder) == ModelFiles.read(run.folder.best)
    description = json.loads((folder / "model.json").read_text())
    assert description["outputs"] == {
        n: {"dtype": own.dtype.name, "shape": ["batch", *own.shape[1:]]}
        for n, own in outputs.items()
    }
    assert description["inputs"].keys() == run.tokens.keys()
    assert description["special_tokens"]["[SEP]"] == WORDS.index("[SEP]")
    assert (description["max_seq_length"], description["quantize"]) == (LENGTH, "none")
    assert description["pairs"] == run.kind.labels.pairs
    assert "label" not in outputs
    assert result_of(run_card(folder)).shape == (1, result_of(outputs).shape[1])


def test_int8_model_is_smaller_and_close(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", KINDS["regression of pairs"], WIDE)
    assert run.kind.labels.task == REGRESSION
    sizes, found = [], []
    for quantize in ("none", "int8"):
        folder = tmp_path / quantize
        model = export_tflite(run, folder, quantize=quantize)
        found.append(result_of(served(model, run.tokens)))
        sizes.append((folder / "model.tflite").stat().st_size)
        kinds = {detail["dtype"] for detail in model.get_tensor_details()}
        assert (np.int8 in kinds) == (quantize == "int8")
        assert json.loads((folder / "model.json").read_text())["quantize"] == quantize
    assert sizes[1] < sizes[0] - 6 * 1024
    spread = np.ptp(found[0])
    assert 0 < abs(found[1] - found[0]).max() < 0.1 * spread


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"quantize": "int8"},
            "int8 does not apply to `format` savedmodel; omit it, or use `format` tflite",
        ),
        ({"format": "huggingface", "quantize": "int8"}, "does not apply to `format` huggingface"),
        (
            {"format": "huggingface", "inputs": "tokens"},
            "tokens does not apply to `format` huggingface; omit it, or use `format` savedmodel",
        ),
        ({"format": "google", "inputs": "tokens"}, "tokens does not apply to `format` google"),
        ({"format": "tflite", "quantize": "int4"}, "int4"),
    ],
)
def test_options_of_other_formats_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        api.export(run="absent", **options)
    assert message in str(caught.value)


def test_folder_with_files_and_unknown_run_are_refused(run_of: RunOf, tmp_path: Path) -> None:
    run = run_of("pairs")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(ConfigError, match=r"full exists; delete an earlier export, or choose"):
        export_tflite(run, tmp_path / "full")
    with pytest.raises(Exception, match=r"there is no run here"):
        api.export(run=str(tmp_path / "absent"), format="tflite")


@pytest.mark.parametrize("options", [{"format": "tflite"}, {"inputs": "tokens"}])
def test_models_that_read_windows_are_refused(
    options: dict[str, str], run_of: RunOf, tmp_path: Path
) -> None:
    run = run_of("calibrated").copied(tmp_path)
    path = run.folder.path / "config.yaml"
    path.write_text(path.read_text().replace("windows: 1\n", "windows: 4\n"))
    for name, program in (("huggingface", "transformers"), ("google", "run_classifier.py")):
        with pytest.raises(ConfigError, match=f"because {program} has no such classifier"):
            api.export(run=str(run.folder.path), format=name)
    with pytest.raises(ConfigError) as caught:
        api.export(run=str(run.folder.path), **options)
    assert str(caught.value).endswith(
        "cannot hold a model that reads up to 4 windows of a text, because windows are cut from the"
        " text; use `format` savedmodel with `inputs` text"
    )


def test_exact_gelu_is_refused_for_google_bert(run_of: RunOf, tmp_path: Path) -> None:
    run = run_of("calibrated").copied(tmp_path)
    path = complete_folder(run.folder.path / "best") / "bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": "gelu_erf"}))
    with pytest.raises(ConfigError, match="the run has hidden_act gelu_erf; use `format` hugg"):
        api.export(run=str(run.folder.path), format="google")


@pytest.mark.parametrize("name", ["multi-label", "regression of pairs", "tags"])
def test_evaluation_of_the_int8_model_is_that_of_the_exported_one(
    name: str, tmp_path: Path
) -> None:
    labels = Labels(["0", "1"], ["O", "B-X"], task=TOKEN_CLASSIFICATION)
    cells = [" ".join("01"[n % 2] for n in range(len(text.split()))) for text in TEXTS]
    run = make_run(tmp_path / "run", KINDS.get(name) or Kind(labels, PLAIN, cells, cells), WIDE)
    trained, test = load_trained(run.folder.path), run.folder.path.parent / "data/test.tsv"
    store = open_store(test, trained.task, trained.tokenization, silent)
    exact = Predictor(trained.model, 2).with_passages(store, silent)
    predictor = Int8Predictor(trained.model, 2)
    found = predictor.with_passages(store, silent)
    assert found.shape == exact.shape and (np.isnan(found) == np.isnan(exact)).all()
    difference = np.nanmax(abs(found - exact))
    assert 0 < difference < 0.2 * (np.nanmax(exact) - np.nanmin(exact)), difference

    scores = api.evaluate(run=str(run.folder.path), quantize="int8", latency=True).scores
    logits = found[:, 0]
    assert scores["loss"] == pytest.approx(trained.task.scores(logits, store.labels)["loss"], 1e-5)
    assert scores["model_bytes"] == predictor.bytes and scores["milliseconds_per_text"] > 0
    own = api.evaluate(run=str(run.folder.path), latency=True).scores
    assert own["model_bytes"] == 4 * trained.model.count_params()
    if name != "tags":
        export_tflite(run, tmp_path / "exported", quantize="int8")
        assert (tmp_path / "exported/model.tflite").stat().st_size == pytest.approx(
            predictor.bytes, rel=0.2
        )
    saved = {path.name for path in run.folder.path.glob("eval-*.json")}
    assert saved == {"eval-test.json", "eval-test-int8.json"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"calibrate": True},
            "`calibrate` fits the run's own weights, not those of `quantize` int8",
        ),
        ({"thresholds": "dev"}, "`thresholds` fits the run's own weights"),
    ],
)
def test_int8_model_is_not_fitted(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        api.evaluate(quantize="int8", **options)


def test_int8_model_of_windows_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", KINDS["calibrated"])
    config = run.folder.path / "config.yaml"
    config.write_text(config.read_text().replace("windows: 1", "windows: 2"))
    with pytest.raises(ConfigError, match="int8 cannot evaluate a model that reads"):
        api.evaluate(run=str(run.folder.path), quantize="int8")
