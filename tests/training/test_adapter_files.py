"""Checkpoints of adapted models contain what was trained; the rest is read from where it began."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from forked import SEVERAL_RUNS, output
from resuming import killed_copy, result
from small import scatter, write_google_checkpoint, write_small_task

import bertaccum
from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import read_bert_config
from bertaccum.errors import ConfigError, InputError
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import TrainConfig
from bertaccum.system.progress import silent
from bertaccum.tasks.forward import logits_of
from bertaccum.tasks.head import build_classifier
from bertaccum.training import loop
from bertaccum.training.train import resume, train

LORA = {"adapt": "lora", "lora_rank": 3, "lora_targets": "all"}
CASES: dict[str, dict[str, Any]] = {
    "lora": LORA,
    "bias": {"adapt": "bias"},
    "half": {
        **LORA,
        **{"frozen_dtype": "bfloat16", "train_layers": 1, "lora_dropout": 0.3},
        **{"windows": 2, "max_seq_length": 8},
    },
}
TOKENS = tf.ragged.constant([[2, 5, 6, 7, 3], [2, 9, 10, 3]], tf.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data and a pretrained encoder in Google's format."""
    folder = tmp_path_factory.mktemp("adapters")
    write_small_task(folder / "reviews", train=24, dev=8)
    base = folder / "base"
    base.mkdir()
    for name in ("vocab.txt", "bert_config.json"):
        shutil.copy(folder / "reviews" / name, base / name)
    write_pretrained(base)
    return folder


def write_pretrained(base: Path, larger: bool = False) -> None:
    dimensions = read_bert_config(base / "bert_config.json")
    model = scatter(build_classifier(build_encoder(dimensions), dimensions, 2))
    if larger:
        model.weights[0].assign_add(tf.ones_like(model.weights[0]))
    write_google_checkpoint(model.checkpoint_items["encoder"], base / "bert_model.ckpt")


def options(folder: Path, out: str, **more: Any) -> dict[str, Any]:
    given = {
        "data": str(folder / "reviews"),
        "out": str(folder / out),
        "init_checkpoint": str(folder / "base"),
        "max_seq_length": 16,
        "target_batch": 8,
        "micro_batch": 3,
        "max_updates": 4,
        "eval_every": 2,
        "save_every": "1",
        "keep": 9,
        "learning_rate": 1e-2,
        "best_by": "loss",
    }
    return given | more


def trained(config: TrainConfig) -> tf_keras.Model:
    """Return the model in training, with the weights after the last update."""
    models: list[tf_keras.Model] = []
    with pytest.MonkeyPatch.context() as patch:
        made = loop.Run.__init__

        def spy(self: loop.Run, *arguments: Any) -> None:
            made(self, *arguments)
            models.append(self.model)

        patch.setattr(loop.Run, "__init__", spy)
        list(train(config, silent))
    return models[0]


def saved_names(prefix: Path) -> list[str]:
    return [name for name, _ in tf.train.list_variables(str(prefix))]


@pytest.fixture(scope="module")
def whole(folder: Path) -> Callable[[str], tf_keras.Model]:
    """Return a function that trains a case once, in `folder`, and returns the model."""
    more = {"eval_every": 4}
    return functools.cache(
        lambda case: trained(TrainConfig(**options(folder, case, **CASES[case] | more)))
    )


@pytest.mark.parametrize("case", CASES)
def test_checkpoint_contains_only_trained_weights_and_gives_the_same_outputs(
    folder: Path, whole: Callable[[str], tf_keras.Model], case: str
) -> None:
    model, run = whole(case), folder / case
    names = {v.name.removesuffix(":0") for v in model.trainable_variables}
    assert {*saved_names(run / "best/model.ckpt")} == names
    found = saved_names(run / "checkpoints/update-4/state")
    # Each weight has two moments. The other variables are numbers.
    kept = [name for name in found if re.search("kernel|bias|gamma|beta|lora|embeddings", name)]
    assert len(kept) == 3 * len(names)
    loaded = load_trained(run).model
    assert not any("lora" in weight.name for weight in loaded.weights)
    np.testing.assert_allclose(logits_of(loaded, TOKENS), logits_of(model, TOKENS), atol=1e-5)


@pytest.mark.parametrize("case", ["bias", "half"])
def test_resumed_run_is_the_uninterrupted_one(
    folder: Path, whole: Callable[[str], tf_keras.Model], tmp_path: Path, case: str
) -> None:
    whole(case)
    cut = killed_copy(folder / case, tmp_path / "cut", 3)
    with pytest.raises(ConfigError, match=r"cannot change `adapt` to full \(was "):
        list(resume(cut, {"adapt": "full"}, silent))
    if "lora_rank" in CASES[case]:
        with pytest.raises(ConfigError, match=r"cannot change `lora_rank` to 4 \(was 3\)"):
            list(resume(cut, {"lora_rank": 4}, silent))
    list(resume(cut, {}, silent))
    one, two = result(folder / case), result(cut)
    assert one["state"] == two["state"]
    assert one["best"] == two["best"]


@pytest.fixture(scope="module")
def run(folder: Path, whole: Callable[[str], tf_keras.Model]) -> Path:
    whole("lora")
    return folder / "lora"


def test_changed_or_missing_base_is_one_error(folder: Path, run: Path) -> None:
    base, kept = folder / "base", shutil.copytree(folder / "base", folder / "kept")
    try:
        write_pretrained(base, larger=True)
        with pytest.raises(InputError, match=r"best: has adapters of .*base, whose weights change"):
            load_trained(run)
        with pytest.raises(InputError, match="pretrained weights changed since this run began"):
            list(resume(run, {"max_updates": 5}, silent))
        (base / "bert_model.ckpt.index").unlink()
        with pytest.raises(InputError, match=r"of .*base, which cannot be read: .*base: has no"):
            load_trained(run)
    finally:
        shutil.copytree(kept, base, dirs_exist_ok=True)
    load_trained(run)


def test_damaged_description_is_one_error(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "best/adapters.json").write_text('{"how": {"targets": []}}')
    with pytest.raises(InputError, match=r"adapters.json: is damaged"):
        load_trained(copy)


def test_random_weights_are_saved_with_their_adapters(folder: Path) -> None:
    bert_config = str(folder / "reviews/bert_config.json")
    random = {"init_checkpoint": "none", "bert_config": bert_config, "eval_every": 4, **LORA}
    config = TrainConfig(**options(folder, "random", **random))
    model, run = trained(config), folder / "random"
    assert len(saved_names(run / "best/model.ckpt")) == len(model.variables)
    found = load_trained(run).model
    np.testing.assert_allclose(logits_of(found, TOKENS), logits_of(model, TOKENS), atol=1e-5)


@pytest.mark.parametrize("more", [{"adapt": "full"}, CASES["half"]])
def test_another_run_begins_with_merged_weights(
    folder: Path, run: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    begun = options(folder, str(tmp_path / "next"), init_checkpoint=str(run), **more)
    bertaccum.train(**begun | {"max_updates": 0})
    first, second = (load_trained(path).model for path in (run, tmp_path / "next"))
    bound = 0.05 if "frozen_dtype" in more else 1e-6
    np.testing.assert_allclose(logits_of(second, TOKENS), logits_of(first, TOKENS), atol=bound)


def test_summary_tells_the_size_of_the_best_checkpoint(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["best_bytes"] == sum(f.stat().st_size for f in (run / "best").iterdir())


@pytest.mark.parametrize("form", ["huggingface", "google"])
def test_export_is_the_merged_model(folder: Path, run: Path, tmp_path: Path, form: str) -> None:
    bertaccum.export(run=str(run), format=form, out=str(tmp_path / "export"))
    again = options(folder, str(tmp_path / "again"), init_checkpoint=str(tmp_path / "export"))
    keep = {"keep_head": True} if form == "huggingface" else {}
    bertaccum.train(**again | keep | {"max_updates": 0})
    first, second = (load_trained(path).model for path in (run, tmp_path / "again"))
    encoders = (m.checkpoint_items["encoder"] for m in (first, second))
    for one, two in zip(*(e.weights for e in encoders), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("form", ["savedmodel", "tflite"])
def test_served_model_is_the_merged_one(run: Path, tmp_path: Path, form: str) -> None:
    bertaccum.export(run=str(run), format=form, out=str(tmp_path / "export"))
    texts = ["the food was very good", "bad"]
    expected = [p.probabilities for p in bertaccum.predict(texts, run=str(run))]
    if form == "savedmodel":
        serve = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
        found = serve(text=tf.constant(texts))["probabilities"]
        np.testing.assert_allclose(found, [[*p.values()] for p in expected], atol=1e-5)
    else:
        assert (tmp_path / "export/model.tflite").stat().st_size


@pytest.mark.slow
def test_two_replicas_train_the_same_weights(folder: Path, tmp_path: Path) -> None:
    dropout = {**LORA, "lora_dropout": 0.3, "dropout": 0.2, "learning_rate": 1e-3}
    for replicas in (1, 2):
        given = options(folder, str(tmp_path / f"{replicas}"), **dropout)
        output(SEVERAL_RUNS, json.dumps([{**given, "replicas": replicas}]))
    one, two = (load_trained(tmp_path / name).model.weights for name in ("1", "2"))
    for first, second in zip(one, two, strict=True):
        np.testing.assert_allclose(first, second, rtol=0, atol=1e-6, err_msg=first.name)
