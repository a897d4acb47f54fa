"""Weights that cannot be read are called what they are, with one remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file
from small import TINY, write_google_checkpoint

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import write_bert_config
from bertaccum.bert.huggingface_folder import HUGGINGFACE
from bertaccum.bert.model_finder import find_model
from bertaccum.bert.vocabulary import SPECIAL_TOKENS
from bertaccum.errors import InputError
from bertaccum.options.commands import TrainConfig
from bertaccum.system.progress import silent

MERGE = "merge it into its base model with merge_and_unload"
WORDS = [*SPECIAL_TOKENS, *(f"word{number}" for number in range(TINY.vocab_size - 5))]


def found(path: Path) -> Path | None:
    return find_model(TrainConfig(init_checkpoint=str(path), max_seq_length=8), silent).checkpoint


def google_folder(folder: Path) -> Path:
    write_bert_config(folder / "bert_config.json", TINY)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    return folder


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".safetensors"])
def test_weights_without_their_folder_are_not_called_a_damaged_zip(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / f"weights{suffix}").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"is a file of weights, .*; pass its folder"):
        found(tmp_path / f"weights{suffix}")


@pytest.mark.parametrize(
    "files",
    [
        ["checkpoint-500/model.safetensors", "checkpoint-1000/model.safetensors"],
        ["snapshots/checkpoint-1000/pytorch_model.bin"],
        ["checkpoint-1000/bert_model.ckpt.index"],
    ],
)
def test_folder_of_models_names_one(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    wanted = rf"has no model, but .*; pass the folder of one, such as {tmp_path}.*checkpoint-1000$"
    with pytest.raises(InputError, match=wanted):
        found(tmp_path)


UNREADABLE = {
    "tf_model.h5": "a model of transformers for TensorFlow, .*from_tf=True",
    "tf_model-00001-of-00002.h5": "a model of transformers for TensorFlow, ",
    "flax_model.msgpack": "a model of transformers for Flax, .*from_flax=True",
    "adapter_model.safetensors": f"a PEFT adapter without its base model, .*; {MERGE}",
    "adapter_model.bin": "a PEFT adapter without its base model, ",
    "adapter_config.json": f"the configuration of a PEFT adapter .*; {MERGE}",
    "saved_model.pb": "a SavedModel, .*; use the same model in Hugging Face's format",
    "model.weights.h5": "weights of Keras or KerasHub, ",
    "my.keras": "a Keras model, ",
    "bert.h5": "a Keras model, ",
    "model.onnx": "an ONNX model, ",
    "bert.gguf": "a GGUF model, ",
    "bert-tensorflow2.tar.gz": "a tar archive, .*; unpack it and pass the folder",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_other_formats_are_named_with_their_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK")
    told = UNREADABLE[name]
    with pytest.raises(InputError, match=f": has {name}, {told}"):
        found(tmp_path)
    with pytest.raises(InputError, match=f": (is|has {name},) {told}"):
        found(tmp_path / name)
    (tmp_path / "config.json").write_text("{}")  # As transformers, KerasHub and trainers do.
    with pytest.raises(InputError, match=f": has {name}, {told}"):
        found(tmp_path)


@pytest.mark.parametrize("name", ["saved_model.pb", "model.onnx", "old.tar.gz"])
def test_other_formats_beside_a_checkpoint_are_ignored(tmp_path: Path, name: str) -> None:
    write_google_checkpoint(build_encoder(TINY), google_folder(tmp_path) / "model.ckpt-9")
    (tmp_path / name).touch()
    assert found(tmp_path) == tmp_path / "model.ckpt-9"


def test_files_named_by_the_user_do_not_select_another_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    for name in ("bert.h5", "mine.safetensors", "mine.bin"):
        (tmp_path / name).touch()
        with pytest.raises(InputError, match=f"{name}: is a"):
            found(tmp_path / name)


@pytest.mark.parametrize("dimensions", [True, False])
@pytest.mark.parametrize("prefix", ["bert_model.ckpt", "ckpt-7"])
def test_object_based_checkpoints_are_called_so(
    tmp_path: Path, prefix: str, dimensions: bool
) -> None:
    names = [f"layer_{number}" for number in range(40)]
    weights = {name: tf.Variable(tf.ones([2]), name=name) for name in ["A", *names]}
    tf.train.Checkpoint(**weights).write(str(tmp_path / prefix))
    if dimensions:
        google_folder(tmp_path)
    told = f"{prefix}: is a checkpoint of tf.train.Checkpoint or Keras, .*; use the same model in H"
    for path in (tmp_path, tmp_path / prefix, tmp_path / f"{prefix}.index"):
        with pytest.raises(InputError, match=told):
            found(path)


def test_adapter_under_the_name_of_a_model_is_called_so(tmp_path: Path) -> None:
    name = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"
    save_file({name: np.ones([2, 3], np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=f"has the weights of a PEFT adapter; {MERGE}"):
        HUGGINGFACE.tensors(tmp_path / "model.safetensors")
