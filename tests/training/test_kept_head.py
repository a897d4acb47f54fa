"""Classifiers that other tools fine-tuned keep their heads, and are evaluated unchanged."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from small import scatter, write_small_task
from teaching import make_teacher

from bertaccum import api
from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import read_bert_config
from bertaccum.bert.google_checkpoint import GOOGLE
from bertaccum.bert.huggingface_folder import write_description
from bertaccum.bert.model_finder import find_model
from bertaccum.bert.model_source import FineTunedHead, HeadMapping, ModelSource
from bertaccum.bert.packed_tokens import encoder_inputs
from bertaccum.bert.pretrained_weights import load_encoder, save_huggingface
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.tokenizer_files import read_tokenizer
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import TrainConfig
from bertaccum.options.task_names import CLASSIFICATION, MULTI_LABEL, REGRESSION
from bertaccum.runs.record import read_run_config
from bertaccum.system.progress import silent
from bertaccum.tasks.head import build_classifier
from bertaccum.tasks.head_mapping import head_difference, head_mapping
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.tasks.task import Decoding
from bertaccum.training.inputs import check_run
from bertaccum.training.recipe import build_model

TEXTS = ["the food was good", "bad bad food", "very very good"]
SCORES = Labels([], [], task=REGRESSION, mean=3.0, std=2.0)
TOPICS = Labels(["a", "b", "c"], ["Art", "Books", "Cats"], task=MULTI_LABEL)
MULTI = "multi_label_classification"
KINDS = Labels(["a", "b", "c"], ["Art", "Books", "Cats"])


@pytest.mark.parametrize(
    ("head", "labels", "expected"),
    [
        (FineTunedHead(), KINDS, [0, 1, 2]),
        (FineTunedHead(3), KINDS, [0, 1, 2]),
        (FineTunedHead(3, ["cats ", "ART", "Books"]), KINDS, [1, 2, 0]),
        (FineTunedHead(3, ["c", "b", "a"], MULTI), TOPICS, "labels"),
        (FineTunedHead(3, ["Cats", "Books", "Art"], MULTI), TOPICS, [2, 1, 0]),
        (FineTunedHead(3, ["Cats", "Books", "Art"], MULTI), KINDS, "multi_"),
        (FineTunedHead(2), KINDS, "2 outputs"),
        (FineTunedHead(2, ["x", "y"]), KINDS, r"2 outputs \(x, y\), .* classification \(Art, "),
        (FineTunedHead(1), Labels(["a"], ["a"]), "problem_type regression"),
        (FineTunedHead(1, ["LABEL_0"]), SCORES, [0]),
        (FineTunedHead(3, [], "regression"), KINDS, "problem_type regression"),
    ],
)
def test_outputs_correspond_by_name_else_by_number(
    head: FineTunedHead, labels: Labels, expected: list[int] | str
) -> None:
    source = ModelSource("any", None, None, Path("any"), head=head)  # type: ignore[arg-type]
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=f"head of `init_checkpoint` has .*{expected}"):
            head_mapping(source, labels, True)
    else:
        assert head_mapping(source, labels, True) == HeadMapping(expected, labels.mean, labels.std)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_small_task(tmp_path / "reviews", train=8, dev=4)
    return tmp_path / "reviews"


def options(**more: Any) -> dict[str, Any]:
    return {
        "data": "reviews",
        "max_seq_length": 16,
        "out": "run",
        "micro_batch": 4,
        "noise_scale": "none",
        "keep_head": True,
    } | more


def fine_tuned(data: Path, folder: Path, names: list[str], task: str = CLASSIFICATION) -> Any:
    """Write a classifier in Hugging Face's format, and return it."""
    encoder = read_bert_config(data / "bert_config.json")
    model = scatter(build_classifier(build_encoder(encoder), encoder, len(names)))
    folder.mkdir()
    vocabulary = read_tokenizer(data / "vocab.txt", "uncased")
    write_description(folder, encoder, Tokenization(vocabulary, 16), names, 0.1, task)
    save_huggingface(model, folder)
    return model


def inputs_of(data: Path) -> Any:
    vocabulary = read_tokenizer(data / "vocab.txt", "uncased")
    ids = Tokenizer(Tokenization(vocabulary, 16))(tf.constant(TEXTS)).to_tensor()
    return encoder_inputs(ids, tf.cast(ids > 0, tf.int32))


def test_huggingface_classifier_is_evaluated_unchanged(data: Path) -> None:
    model = fine_tuned(data, Path("theirs"), ["1", "0"])
    result = api.train(init_checkpoint="theirs", max_updates=0, **options())
    logits = model(inputs_of(data)).numpy()[:, ::-1]
    odds = np.exp(logits - logits.max(1, keepdims=True))
    found = [[*p.probabilities.values()] for p in api.predict(TEXTS, run="run")]
    np.testing.assert_allclose(found, odds / odds.sum(1, keepdims=True), atol=1e-5)
    assert (result.updates, result.summary["examples_per_second"]) == (0, None)
    assert result.best.accuracy == api.evaluate(run="run").accuracy
    page = api.report("run")
    assert page.exists()
    # Without updates there is nothing to resume, so the run starts again from the same weights.
    best = Path("run/best/evaluation.json").read_text()
    again = api.train(resume="run", max_updates=1)
    assert again.updates == 1
    assert Path("run/best-update-0/evaluation.json").read_text() == best


def test_unchanged_classifier_of_a_run_keeps_what_was_fitted(data: Path) -> None:
    labels = Labels(["0", "1"], ["1", "0"], task=MULTI_LABEL)
    run = make_teacher(data.parent / "first", labels, truncate="tail")
    fitted = ModelFiles.read(run / "best")
    dataclasses.replace(fitted, decoding=Decoding(2.5, [0.125, 0.75])).write_decoding(run / "best")
    given = options(init_checkpoint="first", task=MULTI_LABEL)
    told: list[str] = []

    def tell_of(**more: Any) -> str:
        told.clear()
        check_run(TrainConfig(**given | more), lambda line, *_: told.append(line))
        return "; ".join(told)

    reading = (
        "run first reads texts with `max_seq_length` 20, `truncate` tail, but the new run does not"
    )
    assert reading in tell_of(max_updates=0)
    assert "reads texts" not in tell_of(max_updates=0, max_seq_length=20, truncate="tail")
    assert "the temperature and thresholds of run first are not kept" in tell_of()
    assert "not kept" not in tell_of(thresholds="dev")
    evaluated = api.train(max_updates=0, **given).best
    decoding = ModelFiles.read(Path("run/best")).decoding
    assert decoding == Decoding(2.5, [0.75, 0.125])
    assert evaluated.loss == pytest.approx(api.evaluate(run="run").loss)
    own, theirs = (api.predict(TEXTS, run=name) for name in ("run", "first"))
    assert [set(one.labels) for one in own] == [set(one.labels) for one in theirs]
    (run / "best/decoding.json").write_text('{"thresholds": [0.5]}')
    with pytest.raises(InputError, match=r"first: decoding.json is damaged"):
        tell_of(out="other")


def test_scores_are_in_the_unit_of_the_labels(data: Path) -> None:
    model = fine_tuned(data, Path("theirs"), ["score"], REGRESSION)
    config = TrainConfig(init_checkpoint="theirs", **options())
    source = find_model(config, silent)
    ours = build_model(config, source, 1, head_mapping(source, SCORES, True))
    inputs = inputs_of(data)
    np.testing.assert_allclose(ours(inputs) * 2 + 3, model(inputs), rtol=1e-5, atol=1e-5)
    plain = find_model(TrainConfig(init_checkpoint="theirs", max_seq_length=16), silent)
    assert head_mapping(plain, SCORES, False) is None


def test_scores_of_a_run_are_in_the_unit_of_the_labels(tmp_path: Path) -> None:
    before = dataclasses.replace(SCORES, mean=-1.0, std=0.5)
    run = make_teacher(tmp_path / "run", before)
    config = TrainConfig(init_checkpoint=str(run), keep_head=True, max_seq_length=16)
    source = find_model(config, silent)
    ours = build_model(config, source, 1, head_mapping(source, SCORES, True))
    theirs = build_model(config, source, 1, head_mapping(source, before, True))
    ids = tf.constant([[2, 6, 8, 3], [2, 5, 3, 0]])
    inputs = encoder_inputs(ids, tf.cast(ids > 0, tf.int32))
    np.testing.assert_allclose(ours(inputs) * 2 + 3, theirs(inputs) * 0.5 - 1, rtol=1e-5, atol=1e-5)
    assert head_mapping(source, SCORES, False) is None
    assert head_difference(source, SCORES) == "the unit of the scores"
    assert head_difference(source, KINDS) == head_difference(source, before) == ""
    with pytest.raises(ConfigError, match="has the problem_type regression, but the data are clas"):
        head_mapping(source, KINDS, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
        ({"architectures": ["BertForTokenClassification"]}, "problem_type token_classification"),
        ({"architectures": 5}, "its architectures 5 have no head"),
        ({"id2label": {"0": "1", "2": "0"}}, "its id2label or problem_type is damaged"),
        ({"id2label": {"0": "LABEL_0"}}, "the problem_type single_label|1 output"),
        ({"id2label": {"0": "yes", "1": "no"}}, "has the labels .yes, no., but the data are class"),
        ({"problem_type": "regression"}, "the problem_type regression"),
        ({"id2label": None, "num_labels": 3}, "has 3 outputs, but the data are classification"),
        ({"id2label": None, "num_labels": "3"}, "num_labels is '3', expected a number"),
    ],
)
def test_head_that_does_not_fit_is_refused(
    data: Path, change: dict[str, Any], message: str
) -> None:
    fine_tuned(data, Path("theirs"), ["1", "0"])
    path = Path("theirs/config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises((ConfigError, InputError), match=message):
        api.train(init_checkpoint="theirs", max_updates=0, **options())
    assert not Path("run").exists()


def test_random_weights_have_no_head_to_keep(data: Path) -> None:
    with pytest.raises(ConfigError, match="`keep_head` needs `init_checkpoint`"):
        api.train(init_checkpoint="none", model="bert-tiny", **options())


@pytest.fixture
def output_folder(shared: Path, tmp_path: Path) -> tuple[Path, np.ndarray]:
    """Return what `run_classifier.py` writes to its output folder, and the kernel of the head."""
    reader = tf.train.load_checkpoint(str(shared / "pretrained/bert_tiny_reviews/bert_model.ckpt"))
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    kernel = np.random.default_rng(2).normal(size=(2, 128)).astype(np.float32)
    tensors |= {"output_weights": kernel, "output_bias": np.array([0.25, -0.5], np.float32)}
    tensors |= {"output_weights/adam_m": kernel, "global_step": np.int64(7)}
    folder = tmp_path / "output"
    folder.mkdir()
    names = list(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(folder / "model.ckpt"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tensors[name] for name in names],
    )
    return folder, kernel


def test_checkpoint_of_run_classifier_is_evaluated_unchanged(
    data: Path, shared: Path, output_folder: tuple[Path, np.ndarray]
) -> None:
    folder, kernel = output_folder
    release = shared / "pretrained/bert_tiny_reviews"
    given = options(init_checkpoint="output/model.ckpt", vocab=str(release / "vocab.txt"))
    with pytest.raises(InputError, match=r"output: has no bert_config.json; pass that of the"):
        api.train(**given)
    api.train(max_updates=0, bert_config=str(release / "bert_config.json"), **given)
    encoder = build_encoder(read_bert_config(release / "bert_config.json"))
    load_encoder(encoder, GOOGLE, folder / "model.ckpt")
    pooled = encoder(inputs_of(release))["pooled_output"].numpy()
    odds = np.exp(pooled @ kernel.T + [0.25, -0.5])
    found = [[*p.probabilities.values()] for p in api.predict(TEXTS, run="run")]
    np.testing.assert_allclose(found, odds / odds.sum(1, keepdims=True), atol=1e-5)
    assert read_run_config(Path("run")).init_checkpoint == str(folder / "model.ckpt")
    with pytest.raises(InputError, match=r"output_weights is missing;.* omit `keep_head`"):
        api.train(**given | {"init_checkpoint": str(release), "out": "other", "max_updates": 0})
    assert not Path("other").exists()
