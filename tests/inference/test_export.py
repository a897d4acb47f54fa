"""Exported models give the same answers as `bertaccum eval`, without needing bertaccum."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import tf_keras
from safetensors.numpy import load_file
from small import run_isolated, scatter

from bertaccum import api
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.model_finder import find_model
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.data.tokenizing import open_store
from bertaccum.errors import ConfigError, RunError
from bertaccum.inference import export
from bertaccum.inference.predictor import Predictor
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import ExportConfig, TrainConfig
from bertaccum.runs.folder import RunFolder
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.training.checkpoints import save_best
from bertaccum.training.events import Evaluated
from bertaccum.training.recipe import build_model

WORDS = [*SPECIAL_TOKENS, "good", "bad", "##ly", "cafe", "…", "!"]
VOCABULARY = Vocabulary(WORDS)
TEXTS = ["good", "BADLY  good!", "Café… \u200bgood", "x" * 300, "good bad " * 20, "[SEP] 中 ß ™"]
NAMES = ["negativo", "positivo ✓", "ninguno"]
ENCODER = EncoderConfig(
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    vocab_size=len(WORDS),
    max_position_embeddings=16,
)
# A script that runs the model without bertaccum and without the libraries that built it.
ELSEWHERE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("bertaccum", "data_prep", "official", "tf_keras"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import json
import tensorflow as tf
import tensorflow_text

model = tf.saved_model.load(sys.argv[1])
serve = model.signatures["serving_default"]
assert serve.structured_input_signature[1]["text"].shape.as_list() == [None]
answer = serve(text=tf.constant(json.loads(sys.argv[2])))
answer["label"] = tf.strings.unicode_decode(answer["label"], "UTF-8").to_list()
print(json.dumps({k: v if isinstance(v, list) else v.numpy().tolist() for k, v in answer.items()}))
"""


def make_run(folder: Path, **options: str) -> RunFolder:
    """Create a run with a best checkpoint."""
    data = folder / "reviews"
    data.mkdir(parents=True)
    rows = [f"{number % 3}\t{text}" for number, text in enumerate(TEXTS)]
    (data / "test.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    config = TrainConfig(data=str(data), init_checkpoint="none", max_seq_length=12, **options)
    source = ModelSource("small", ENCODER, VOCABULARY, None)
    model = scatter(build_model(config, source, len(NAMES)))
    run = RunFolder(folder / "run")
    run.create(config, {})
    files = ModelFiles(ENCODER, VOCABULARY, Labels(["0", "1", "2"], NAMES))
    evaluated = Evaluated(7, True, {"accuracy": 0.875, "loss": 0.5, "matthews_correlation": 0.5})
    save_best(model, files, evaluated, run)
    run.append(run.eval, {"kind": evaluated.kind} | evaluated.record())
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("export"), precision="mixed_bfloat16")


def predicted(run: RunFolder, model: tf_keras.Model | None = None) -> np.ndarray:
    """Return the logits of `model`, by default the run's best model, for the run's test.tsv."""
    best = load_trained(run.path)
    tsv = run.path.parent / "reviews" / "test.tsv"
    store = open_store(tsv, best.task, Tokenization(VOCABULARY, 12), lambda *_: None)
    logits = Predictor(model or best.model, batch=4)(store, lambda *_: None)
    assert np.ptp(logits, axis=0).max() > 0.5
    return logits


def test_savedmodel_gives_the_same_answers_without_bertaccum(run: RunFolder) -> None:
    result = api.export(ExportConfig(run=str(run.path)))
    folder = run.path / "export-savedmodel"
    assert (result.folder, result.run) == (folder, "run")
    assert result.bytes > 10_000
    answer = run_isolated(ELSEWHERE, folder, json.dumps(TEXTS))
    logits = predicted(run)
    np.testing.assert_allclose(answer["logits"], logits, rtol=0, atol=1e-5)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(answer["probabilities"], shares, rtol=0, atol=1e-5)
    assert len(set(logits.argmax(-1))) > 1
    labels = ["".join(map(chr, letters)) for letters in answer["label"]]
    assert labels == [NAMES[number] for number in logits.argmax(-1)]
    extra = folder / "assets.extra"
    assert ModelFiles.read(extra) == ModelFiles.read(run.best)
    assert str(run.path).encode() not in (folder / "saved_model.pb").read_bytes()


def test_keras_policy_of_the_process_does_not_change_the_model(run: RunFolder) -> None:
    wanted = predicted(run)
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        np.testing.assert_array_equal(predicted(run), wanted)
        assert tf_keras.mixed_precision.global_policy().name == "mixed_float16"
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")


@pytest.fixture(scope="module")
def huggingface(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("huggingface") / "deep" / "model"
    result = api.export(ExportConfig(str(run.path), "huggingface", str(out)))
    assert result.folder == out
    return out


def test_huggingface_export_is_read_back_unchanged(run: RunFolder, huggingface: Path) -> None:
    tensors = load_file(huggingface / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}
    config = TrainConfig(init_checkpoint=str(huggingface), max_seq_length=12)
    source = find_model(config, lambda *_: None)
    # transformers, too, treats long words and private-use characters in another way than Google.
    of_transformers = dataclasses.replace(VOCABULARY, longest_word=100, as_transformers=True)
    assert (source.encoder, source.vocabulary) == (ENCODER, of_transformers)
    again = build_model(config, source, len(NAMES))
    head = [tensors["classifier.weight"].T, tensors["classifier.bias"]]
    again.get_layer("sentence_prediction").set_weights(head)
    model = load_trained(run.path).model
    before = [np.array(weight) for weight in model.get_weights()]
    model.set_weights(again.get_weights())
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(predicted(run, model), predicted(run), rtol=0, atol=1e-6)


def test_model_card_describes_the_export(run: RunFolder, huggingface: Path) -> None:
    card = (huggingface / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "negativo, positivo ✓, ninguno" in card
    assert "0.8750 (update 7)" in card
    assert "from transformers import pipeline" in card
    assert "reviews" in card and str(run.path.parent) not in card


def test_existing_files_are_never_replaced(run: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "model"
    out.mkdir()
    config = ExportConfig(run=str(run.path), format="huggingface", out=str(out))
    (out / ".model-0123456789ab").mkdir()  # By a process that was killed.
    api.export(config)  # An existing but empty folder is accepted.
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    for path in (out, out / "config.json", tmp_path / "link"):
        (tmp_path / "link").is_symlink() or (tmp_path / "link").symlink_to("absent")
        with pytest.raises(ConfigError, match=r"exists; delete an earlier export, or choose"):
            api.export(dataclasses.replace(config, out=str(path)))
    with pytest.raises(ConfigError, match="is not a valid name"):
        api.export(dataclasses.replace(config, out="x" * 300))


@pytest.mark.parametrize("out", ["/proc/x", "file/model"])
def test_model_is_not_loaded_if_folder_cannot_be_created(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    def never(_: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(export, "load_trained", never)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=rf"`out` .*{out} .*; choose another folder"):
        api.export(ExportConfig(str(run.path), out=str(tmp_path / out)))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_folder_that_appears_during_the_export_is_not_replaced(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(model: object, folder: Path, *_: float, pooler: bool) -> None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model/mine").write_text("mine")

    monkeypatch.setattr(export, "save_huggingface", late)
    with pytest.raises(RunError, match=r"model: cannot be written \(Directory not empty\); "):
        api.export(ExportConfig(str(run.path), "huggingface", str(tmp_path / "model")))
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "mine"]


def test_failed_export_leaves_no_files(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(model: object, folder: Path, *_: float, pooler: bool) -> None:
        (folder / "model.safetensors").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "save_huggingface", full)
    with pytest.raises(RunError, match=r"model: cannot be written \(No space left on device\); "):
        api.export(ExportConfig(str(run.path), "huggingface", str(tmp_path / "model")))
    assert not list(tmp_path.iterdir())
