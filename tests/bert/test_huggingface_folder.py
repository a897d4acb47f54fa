"""Folders in Hugging Face's format mean the same here as in transformers."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy_bert
import pytest
import tensorflow as tf
import tf_keras
from safetensors.numpy import load_file, save_file
from small import Notes, scatter
from torch_writer import write_torch

from bertaccum.bert import pretrained_weights
from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import EncoderConfig, write_bert_config
from bertaccum.bert.google_checkpoint import GOOGLE
from bertaccum.bert.huggingface_folder import HUGGINGFACE, write_description
from bertaccum.bert.model_finder import find_model
from bertaccum.bert.model_source import LazyTensor, ModelSource
from bertaccum.bert.packed_tokens import encoder_inputs
from bertaccum.bert.pretrained_weights import load_encoder, read_head, save_huggingface
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import TrainConfig
from bertaccum.tasks.head import build_classifier

WORDS = [*SPECIAL_TOKENS, "good", "bad", "##ly", "[unused0]"]
VOCABULARY = Vocabulary(WORDS)
# The same entries in a folder of this format, where words of over 100 characters are [UNK].
READ = dataclasses.replace(VOCABULARY, longest_word=100, as_transformers=True)
SMALL = EncoderConfig(
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    vocab_size=len(WORDS),
    max_position_embeddings=16,
)
NAMES = ["negative", "none", "positive"]


def scattered(config: EncoderConfig) -> tf_keras.Model:
    return scatter(build_classifier(build_encoder(config), config, len(NAMES)))


def write(folder: Path, model: tf_keras.Model, config: EncoderConfig) -> Path:
    folder.mkdir()
    write_description(folder, config, Tokenization(VOCABULARY, 12), NAMES, dropout=0.1)
    save_huggingface(model, folder)
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("written") / "model", scattered(SMALL), SMALL)


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """Return a folder in this format that a test may change."""
    return shutil.copytree(written, tmp_path / "model")


def find(folder: Path, **options: Any) -> ModelSource:
    options = {"init_checkpoint": str(folder), "max_seq_length": 8} | options
    return find_model(TrainConfig(**options), lambda *_: None)


def loaded(folder: Path, encoder: tf_keras.Model | None = None) -> tf_keras.Model:
    """Return a new encoder, or the given one, with the weights in a folder."""
    source = find(folder)
    assert source.checkpoint is not None and source.format is not None
    encoder = encoder or build_encoder(source.encoder)
    load_encoder(encoder, source.format, source.checkpoint)
    return encoder


@functools.cache
def shared_encoder() -> tf_keras.Model:
    return build_encoder(SMALL)


def loaded_weights(folder: Path) -> list[np.ndarray]:
    """Return the weights in a folder, all of which must be loaded."""
    encoder = shared_encoder()
    for weight in encoder.weights:
        weight.assign(tf.fill(weight.shape, np.nan))
    return loaded(folder, encoder).get_weights()


@pytest.fixture(scope="module")
def weights(written: Path) -> list[np.ndarray]:
    """Return the weights in `folder` before a test changes it."""
    return loaded_weights(written)


def inputs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    token_ids = rng.integers(0, len(WORDS), [5, 7]).astype(np.int32)
    return token_ids, (np.arange(7) < [[7], [5], [3], [2], [7]]).astype(np.int32)


@pytest.mark.parametrize(("ours", "theirs"), [("gelu", "gelu_new"), ("gelu_erf", "gelu")])
def test_files_compute_the_same_as_the_model(tmp_path: Path, ours: str, theirs: str) -> None:
    config = dataclasses.replace(SMALL, hidden_act=ours)
    model = scattered(config)
    folder = write(tmp_path / "model", model, config)
    assert json.loads((folder / "config.json").read_text())["hidden_act"] == theirs
    logits = model(encoder_inputs(*map(tf.constant, inputs())))
    assert np.ptp(logits, axis=0).max() > 0.5
    np.testing.assert_allclose(logits, numpy_bert.logits(folder, *inputs()), rtol=0, atol=1e-5)
    pooled = loaded(folder)(encoder_inputs(*map(tf.constant, inputs())))["pooled_output"]
    np.testing.assert_allclose(pooled, numpy_bert.pooled(folder, *inputs()), rtol=0, atol=2e-6)


def test_written_weights_are_read_bit_for_bit(folder: Path) -> None:
    encoder = loaded(folder)
    source = find(folder)
    assert (source.encoder, source.vocabulary, source.has_pooler) == (SMALL, READ, True)
    assert source.identity_file == folder / "model.safetensors"
    expected = {w.name: w.numpy() for w in scattered(SMALL).weights}
    for weight in encoder.weights:
        np.testing.assert_array_equal(weight, expected[weight.name])


def test_files_are_those_of_transformers(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "negative", "1": "none", "2": "positive"}
    assert config["label2id"] == {"negative": 0, "none": 1, "positive": 2}
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    assert (tokenizer["do_lower_case"], tokenizer["model_max_length"]) == (True, 12)
    tensors = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}
    assert tensors["bert.encoder.layer.1.intermediate.dense.weight"].shape == (16, 8)
    assert tensors["classifier.weight"].shape == (3, 8)
    modes = {path.stat().st_mode for path in folder.iterdir()}
    assert len(modes) == 1, "the files have different permissions"


Tensors = dict[str, np.ndarray]


def renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): t for name, t in tensors.items()}


def early(tensors: Tensors) -> Tensors:
    """Return tensors with the names of the first release, and its buffer."""
    tensors = renamed("LayerNorm.weight", "LayerNorm.gamma")(tensors)
    tensors = renamed("LayerNorm.bias", "LayerNorm.beta")(tensors)
    return tensors | {"bert.embeddings.position_ids": np.arange(16)[np.newaxis]}


def around(before: str, within: str = "") -> Callable[[Tensors], Tensors]:
    """Return a function that adds prefixes to all names, and within those of layers."""
    return lambda held: {
        before + name.replace("layer.0.", f"layer.0.{within}"): t for name, t in held.items()
    }


FORMS = {
    **{
        name: around(*name.split(" "))
        for name in ("module.", "_orig_mod.", "module._orig_mod.", "model.", "my_net.inner.")
    },
    "FSDP": around("_fsdp_wrapped_module.", "_checkpoint_wrapped_module."),
    "compiled encoder": renamed("bert.", "bert._orig_mod."),
    "sentence-transformers": renamed("bert.", "0.auto_model."),
    "with another tower": lambda held: held | {"image.embeddings.weight": np.ones(3)},
    "BertModel": renamed("bert.", ""),
    "early names": early,
    "float16": lambda tensors: {n: t.astype(np.float16) for n, t in tensors.items()},
    "bfloat16": lambda tensors: {n: t.astype(ml_dtypes.bfloat16) for n, t in tensors.items()},
}


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> Tensors:
    tensors = change(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors")
    return tensors


@pytest.mark.parametrize("form", FORMS)
def test_other_file_variants_hold_the_same_weights(
    folder: Path, weights: list[np.ndarray], form: str
) -> None:
    rewrite(folder, FORMS[form])
    bound = {"float16": 1e-3, "bfloat16": 1e-2}.get(form, 0)
    for one, other in zip(weights, loaded_weights(folder), strict=True):
        np.testing.assert_allclose(one, other, rtol=bound, atol=bound)


@pytest.mark.parametrize("form", ["module.", "_orig_mod.", "model.", "my_net.inner."])
def test_head_beside_a_wrapped_encoder_is_found(folder: Path, form: str) -> None:
    before = read_head(HUGGINGFACE, folder / "model.safetensors")
    rewrite(folder, FORMS[form])
    after = read_head(HUGGINGFACE, folder / "model.safetensors")
    assert all(map(np.array_equal, before, after))


def test_weights_in_several_files_are_those_of_one(folder: Path, weights: list[np.ndarray]) -> None:
    head = read_head(HUGGINGFACE, folder / "model.safetensors")
    split(folder, 3)
    for one, other in zip(weights, loaded_weights(folder), strict=True):
        np.testing.assert_array_equal(one, other)
    source = find(folder, keep_head=True)
    assert source.checkpoint == folder / INDEX
    assert all(map(np.array_equal, head, read_head(HUGGINGFACE, folder / INDEX)))
    digest = source.weights_digest
    shard = folder / "model-00002-of-00003.safetensors"
    save_file({name: t + 1 for name, t in load_file(shard).items()}, shard)
    assert find(folder, keep_head=True).weights_digest != digest


@pytest.mark.parametrize(
    ("key", "older"),
    [
        *(("model_state_dict", False), ("state_dict", True)),
        *(("model", False), ("checkpoint.model", True)),
    ],
)
def test_pytorch_checkpoint_of_a_training_script_holds_the_same_weights(
    folder: Path, weights: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, older: bool, key: str
) -> None:
    held = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    wrapped = {f"module.{name}": t for name, t in held.items()}
    write_torch(folder / "pytorch_model.bin", wrapped, monkeypatch, older, within=key)
    for one, other in zip(weights, loaded_weights(folder), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("older", [False, True])
def test_pytorch_model_holds_the_same_weights(
    folder: Path, weights: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    path = folder / "pytorch_model.bin"
    write_torch(path, load_file(folder / "model.safetensors"), monkeypatch, older)
    assert find(folder).checkpoint == folder / "model.safetensors"
    (folder / "model.safetensors").unlink()
    assert find(folder).identity_file == path
    for one, other in zip(weights, loaded_weights(folder), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("fraction", "side"), [(1.0, "right"), (0.25, "right"), (0.0, "left")])
def test_tokenizer_truncates_at_the_same_end(tmp_path: Path, fraction: float, side: str) -> None:
    write_description(tmp_path, SMALL, Tokenization(VOCABULARY, 12, fraction), NAMES, dropout=0.1)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (settings["truncation_side"], settings["model_max_length"]) == (side, 12)


def test_missing_pooler_keeps_its_random_weights(folder: Path) -> None:
    before = loaded(folder)
    rewrite(folder, lambda tensors: {n: t for n, t in tensors.items() if "pooler" not in n})
    assert not find(folder).has_pooler
    for one, other in zip(before.weights, loaded(folder).weights, strict=True):
        drawn = "pooler_transform" in one.name
        assert np.array_equal(one, other) != drawn, one.name
        assert np.abs(other).max() < (0.05 if drawn else np.inf)


def test_vocabulary_is_read_from_tokenizer_json(folder: Path) -> None:
    numbers = {word: number for number, word in reversed(list(enumerate(WORDS)))}
    (folder / "vocab.txt").unlink()
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"model": {"vocab": numbers}, "normalizer": {"lowercase": True}}))
    assert find(folder).vocabulary == READ
    for words in ({**numbers, "good": 70}, {**numbers, "good": "5"}, ["good"], None):
        path.write_text(json.dumps({"model": {"vocab": words}}))
        with pytest.raises(InputError, match=r"tokenizer.json: contains no WordPiece"):
            find(folder)


@pytest.mark.parametrize("described", [False, True])
def test_weights_of_google_in_the_same_folder(folder: Path, described: bool) -> None:
    """As on the Hub, those in Hugging Face's format have priority."""
    (folder / "bert_model.ckpt.index").touch()
    if described:
        write_bert_config(folder / "bert_config.json", SMALL)
    for named in (folder, folder / "config.json", folder / "model.safetensors"):
        assert find(named).checkpoint == folder / "model.safetensors"
    alone = shutil.copytree(folder, folder.with_name("alone"))
    (alone / "config.json").unlink()
    for named in (folder / "bert_model.ckpt", alone):
        if described:
            assert find(named).format is GOOGLE
        else:
            with pytest.raises(InputError, match=r"has no bert_config.json; pass that of the"):
                find(named)


def test_vocabulary_may_have_fewer_entries_than_the_model_has_embeddings(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(WORDS[:-2]) + "\n")
    entries = find(folder).vocabulary.entries
    assert entries[:-2] == WORDS[:-2] and len(set(entries)) == len(WORDS)
    (folder / "vocab.txt").write_text("\n".join([*WORDS, "more"]) + "\n")
    with pytest.raises(InputError, match=r"has 10 entries, but the model's vocab_size is 9"):
        find(folder)


def test_vocabulary_from_elsewhere_has_an_entry_for_each_embedding(
    folder: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("\n".join(WORDS[:-2]) + "\n")
    with pytest.raises(InputError, match=r"short.txt: has 7 entries, but the model's vocab_size"):
        find(folder, vocab=str(short))
    short.replace(folder / "vocab.txt")
    assert find(folder, vocab=str(folder / "vocab.txt")).vocabulary == find(folder).vocabulary


@pytest.mark.parametrize(("spare", "told"), [(64, []), (600, ["9 entries for 609 embeddings"])])
def test_vocabulary_with_far_fewer_entries_is_told(
    folder: Path, spare: int, told: list[str]
) -> None:
    set_to("config.json", vocab_size=len(WORDS) + spare)(folder)
    notes = Notes()
    find_model(TrainConfig(init_checkpoint=str(folder), max_seq_length=8), notes)
    sizes = [line.partition("vocab.txt has only ")[2].partition(":")[0] for line in notes.lines]
    assert sizes == told


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, False),
        ({"model_input_names": ["input_ids", "token_type_ids"]}, False),
        ({"model_input_names": ["input_ids", "attention_mask"]}, True),
        ({"tokenizer_class": "DistilBertTokenizerFast"}, True),
    ],
)
def test_segments_that_a_model_has_not_seen_are_told(
    folder: Path, settings: dict[str, Any], warned: bool
) -> None:
    set_to("tokenizer_config.json", **settings)(folder)
    found = find(folder).segment_warning()
    assert (found is not None) == warned
    if found:
        assert found.startswith("model: its tokenizer in transformers gives no token_type_ids")
        only = dataclasses.replace(SMALL, type_vocab_size=1)
        assert dataclasses.replace(find(folder), encoder=only).segment_warning() is None


@pytest.mark.parametrize(("types", "named"), [(1, ["input_ids", "attention_mask"]), (2, None)])
def test_tokenizer_gives_segments_if_there_are_several(
    tmp_path: Path, types: int, named: list[str] | None
) -> None:
    config = dataclasses.replace(SMALL, type_vocab_size=types)
    write_description(tmp_path, config, Tokenization(VOCABULARY, 12), NAMES, dropout=0.1)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings.get("model_input_names") == named


def test_missing_configuration_keys_default_to_bert_base(folder: Path) -> None:
    kept = {"hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size"}
    edit(folder / "config.json", lambda c: {k: c[k] for k in {*kept, "vocab_size"}})
    found = find(folder).encoder
    assert found == dataclasses.replace(SMALL, max_position_embeddings=512, hidden_act="gelu_erf")


def test_keys_of_other_families_have_no_meaning(folder: Path) -> None:
    set_to("config.json", embedding_size=7)(folder)
    assert find(folder).encoder == SMALL


def test_epsilon_is_rounded_to_that_of_bert(folder: Path) -> None:
    """Some programs store it as float32."""
    set_to("config.json", layer_norm_eps=float(np.float32(1e-12)))(folder)
    assert find(folder).encoder == SMALL


def edit(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def set_to(name: str, **values: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / name, lambda old: old | values)


def tensors(change: Callable[[Tensors], Tensors]) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, change) and None


def without(*parts: str) -> Callable[[Tensors], Tensors]:
    return lambda held: {n: t for n, t in held.items() if not any(p in n for p in parts)}


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


INDEX = "model.safetensors.index.json"


def split(folder: Path, count: int) -> Path:
    """Split the weights into several files, as transformers does; return the folder."""
    held = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = [f"model-{n + 1:05}-of-{count:05}.safetensors" for n in range(count)]
    files = {name: names[number % count] for number, name in enumerate(sorted(held))}
    for file in names:
        save_file({n: held[n] for n in held if files[n] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 9}, "weight_map": files}))
    return folder


def other_tensor(index: dict[str, Any]) -> dict[str, Any]:
    return {"weight_map": index["weight_map"] | {"more": "model-00001-of-00002.safetensors"}}


def only(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.safetensors").rename(folder / name) and None


MISTAKES = {
    "roberta": (set_to("config.json", model_type="roberta"), "a RoBERTa model, .*; use bert-base-"),
    "activation": (set_to("config.json", hidden_act="silu"), "hidden_act is 'silu'; use a"),
    "no activation": (set_to("config.json", hidden_act=[]), r"hidden_act is \[\]; use a"),
    "epsilon": (set_to("config.json", layer_norm_eps="1e-5"), "layer_norm_eps is '1e-5', not a"),
    "large epsilon": (set_to("config.json", layer_norm_eps=10**400), "layer_norm_eps is 1000"),
    "distilbert": (set_to("config.json", model_type="distilbert"), "transformer.layer.0.* missing"),
    "electra": (
        set_to("config.json", model_type="electra"),
        r"has shape \[9, 8\], expected \[9, 128\]",
    ),
    "positions": (
        set_to("config.json", position_embedding_type="relative_key"),
        "config.json: position_embedding_type is 'relative_key', expected 'absolute'",
    ),
    "cased": (
        set_to("tokenizer_config.json", do_lower_case="no"),
        "its tokenizer's lower_case is 'no', expected true or false",
    ),
    "no config": (lambda folder: (folder / "config.json").unlink(), "model: has no config.json"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "model: has no model.safetensors; download the model again, or pass a folder with one of",
    ),
    "shard": (
        lambda folder: split(folder, 2) and (folder / "model-00002-of-00002.safetensors").unlink(),
        "has no model-00002-of-00002.safetensors, which model.safetensors.index.json lists",
    ),
    "index": (
        lambda folder: (
            (split(folder, 2) / INDEX).write_text('{"weight_map": {"a": "../a"}}') and None
        ),
        "model.safetensors.index.json: lists no weights",
    ),
    "index of other tensors": (
        lambda folder: edit(split(folder, 2) / INDEX, lambda old: other_tensor(old)),
        r"model-00001-of-00002.safetensors: has no more, which model.safetensors.index.json lists",
    ),
    "two encoders": (
        tensors(lambda held: {f"{n}.{name}": t for n in "ab" for name, t in held.items()}),
        "does not fit the model: embeddings.word_embeddings.weight is missing",
    ),
    "another model": (
        tensors(lambda held: {n.replace("bert.", "roberta."): t for n, t in held.items()}),
        "does not fit the model: embeddings.word_embeddings.weight is missing",
    ),
    "tensorflow": (only("tf_model.h5"), r"has tf_model.h5, .*; load .*from_tf=True\) in tr"),
    "flax": (only("flax_model.msgpack"), r"has flax_model.msgpack, .*from_flax=True"),
    "keras hub": (only("model.weights.h5"), "has model.weights.h5, weights of .* KerasHub, "),
    "unknown model": (set_to("config.json", model_type="x1"), "describes a x1 .*model_type bert"),
    "no words": (lambda folder: (folder / "vocab.txt").unlink(), "there is no vocab.txt in"),
    "damaged": (cut_short, "model.safetensors: is not a readable safetensors file .*; download"),
    "empty": (
        lambda folder: (folder / "model.safetensors").write_bytes(b""),
        "is not a readable safetensors file",
    ),
    "shape": (
        set_to("config.json", intermediate_size=32),
        r"layer.0.intermediate.dense.weight has shape \[16, 8\], expected \[32, 8\]; .*config.json",
    ),
    "lacking": (
        tensors(without("layer.0.output", "key.")),
        "does not fit the model: encoder.layer.0.attention.self.key.weight is missing;.*3 more",
    ),
    "half a pooler": (tensors(without("pooler.dense.bias")), "pooler.dense.bias is missing"),
    "integers": (
        tensors(lambda held: held | {"bert.pooler.dense.bias": np.zeros(8, np.int8)}),
        "pooler.dense.bias has dtype I8, expected floats",
    ),
    "infinite": (
        tensors(lambda held: held | {"bert.pooler.dense.bias": np.full(8, -np.inf, np.float32)}),
        "model.safetensors: pooler.dense.bias contains a number that is NaN, infinite or above",
    ),
    "double": (
        tensors(lambda held: held | {"bert.pooler.dense.bias": np.full(8, 1e300)}),
        "model.safetensors: pooler.dense.bias contains a number that is NaN, infinite or above",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_error_names_the_cause(folder: Path, mistake: str) -> None:
    spoil, message = MISTAKES[mistake]
    spoil(folder)
    with pytest.raises((InputError, ConfigError), match=message) as error:
        loaded(folder)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("value", [np.float32("nan"), np.float16("inf"), np.float64(1e300)])
def test_numbers_that_are_not_finite_are_refused_in_each_format_of_pytorch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, value: np.floating, older: bool
) -> None:
    held = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    held["bert.pooler.dense.weight"] = np.full((8, 8), value)
    write_torch(folder / "pytorch_model.bin", held, monkeypatch, older)
    with pytest.raises(InputError, match=r"pytorch_model.bin: pooler.dense.weight contains a numb"):
        loaded(folder)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.float32(3e38), np.float64(1e300)])
def test_weight_that_is_too_large_is_refused_without_a_warning(
    folder: Path, value: np.floating
) -> None:
    tensor = LazyTensor([8], "F32", lambda: np.full(8, value).astype(np.float32))
    with pytest.raises(InputError, match=r"weights: w contains a number"):
        pretrained_weights._usable({"w": tensor}, "w", Path("weights"))


def test_head_that_is_not_finite_is_refused(folder: Path) -> None:
    rewrite(folder, lambda held: held | {"classifier.bias": np.array([0, np.nan, 0])})
    with pytest.raises(InputError, match=r"model.safetensors: classifier.bias contains a number"):
        read_head(HUGGINGFACE, folder / "model.safetensors")


def test_error_without_safetensors_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ConfigError, match=r"pip install 'bertaccum\[huggingface\]'"):
        find(folder)


@pytest.fixture(scope="module")
def from_transformers(
    tmp_path_factory: pytest.TempPathFactory, transformers_python: Path
) -> Iterator[Path]:
    """Yield a folder of random models by transformers, with its outputs for them and for ours."""
    work = tmp_path_factory.mktemp("transformers")
    for act in ("gelu", "gelu_erf"):
        config = dataclasses.replace(SMALL, hidden_act=act)
        write(work / f"ours_{act}", scattered(config), config)
    token_ids, mask = inputs()
    np.savez(work / "inputs.npz", token_ids=token_ids, mask=mask)
    script = Path(__file__).with_name("transformers_side.py")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run(
        [transformers_python, script, work], check=True, env=environment | {"HF_HUB_OFFLINE": "1"}
    )
    yield work


@pytest.mark.slow
@pytest.mark.parametrize("act", ["gelu", "gelu_erf"])
def test_transformers_computes_the_same_logits_from_our_folder(
    from_transformers: Path, act: str
) -> None:
    model = scattered(dataclasses.replace(SMALL, hidden_act=act))
    ours = model(encoder_inputs(*map(tf.constant, inputs())))
    theirs = np.load(from_transformers / f"ours_{act}.npz")["logits"]
    print(f"largest difference: {np.abs(ours - theirs).max():.1e}")
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "kind"),
    [
        ("gelu", "BertModel"),
        ("gelu_new", "BertForSequenceClassification"),
        ("gelu_pytorch_tanh", "BertForMaskedLM"),
    ],
)
def test_encoder_matches_transformers_on_its_folders(
    from_transformers: Path, kind: str, act: str
) -> None:
    folder = from_transformers / f"{kind}-{act}"
    theirs = np.load(folder.with_suffix(".npz"))
    outputs = loaded(folder)(encoder_inputs(*map(tf.constant, inputs())))
    real = inputs()[1] == 1
    differences = [outputs["sequence_output"][real] - theirs["sequence"][real]]
    if find(folder).has_pooler:
        differences.append(outputs["pooled_output"] - theirs["pooled"])
    assert len(differences) == (1 if kind == "BertForMaskedLM" else 2)
    largest = max(float(np.abs(difference).max()) for difference in differences)
    print(f"largest difference: {largest:.1e}")
    assert largest < 1e-4
