"""A new format of checkpoints needs one file, such as this one, and one entry in `FORMATS`."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from small import TINY, scatter

from bertaccum.bert import model_finder
from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import EncoderConfig, checked_config
from bertaccum.bert.model_source import CheckpointFormat, FineTunedHead, HeadMapping, LazyTensor
from bertaccum.bert.pretrained_weights import original_shape, weight_name
from bertaccum.bert.vocabulary import SPECIAL_TOKENS
from bertaccum.errors import InputError
from bertaccum.options.commands import TrainConfig
from bertaccum.system.files import read_object
from bertaccum.system.progress import silent
from bertaccum.training.recipe import build_model

WORDS = [*SPECIAL_TOKENS, *(f"word{number}" for number in range(TINY.vocab_size - 5))]


def encoder(folder: Path) -> EncoderConfig:
    """Read the dimensions, one of which has another name."""
    values = read_object(folder / "size.json")
    return checked_config(values | {"num_hidden_layers": values.pop("depth")}, folder)


def head(folder: Path) -> FineTunedHead:
    return FineTunedHead(2, read_object(folder / "size.json")["classes"])


def tensors(path: Path) -> dict[str, LazyTensor]:
    arrays = np.load(path)
    return {
        name: LazyTensor(list(arrays[name].shape), "F32", partial(arrays.__getitem__, name))
        for name in arrays.files
    }


NPZ = CheckpointFormat(
    is_in=lambda folder, _: (folder / "weights.npz").is_file(),
    check=lambda folder, *_: None,
    weights=lambda folder, _: folder / "weights.npz",
    encoder=encoder,
    head=head,
    tensors=tensors,
    tensor_key=lambda name: f"model.{name.replace('/', '.')}",
    head_keys=(("model.out.kernel", "model.out.bias"),),
    remedy="use the size.json of the same model",
    transposed=True,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in the new format, which is registered."""
    monkeypatch.setattr(model_finder, "FORMATS", (*model_finder.FORMATS, NPZ))
    size = dataclasses.asdict(TINY)
    size |= {"depth": size.pop("num_hidden_layers"), "classes": ["bad", "good"]}
    (tmp_path / "size.json").write_text(json.dumps(size))
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    arrays = {"model.out.kernel": np.ones([2, TINY.hidden_size]), "model.out.bias": np.arange(2.0)}
    for weight in scatter(build_encoder(TINY)).weights:
        array = weight.numpy().reshape(original_shape(weight))
        turned = array.T if weight.name.endswith("kernel:0") else array
        arrays[NPZ.tensor_key(weight_name(weight))] = turned
    np.savez(tmp_path / "weights.npz", **arrays)
    return tmp_path


def config(folder: Path) -> TrainConfig:
    return TrainConfig(init_checkpoint=str(folder), max_seq_length=8, keep_head=True)


def test_weights_of_a_registered_format_are_loaded(folder: Path) -> None:
    source = model_finder.find_model(config(folder), silent)
    assert (source.encoder, source.identity_file) == (TINY, folder / "weights.npz")
    assert source.head == FineTunedHead(2, ["bad", "good"])
    *weights, kernel, bias = build_model(config(folder), source, 2, HeadMapping([1, 0])).weights
    for found, expected in zip(weights, scatter(build_encoder(TINY)).weights, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert np.all(kernel.numpy() == 1) and bias.numpy().tolist() == [1, 0]


def test_misfit_of_a_registered_format_is_reported(folder: Path) -> None:
    values = json.loads((folder / "size.json").read_text())
    (folder / "size.json").write_text(json.dumps(values | {"depth": 3}))
    source = model_finder.find_model(config(folder), silent)
    with pytest.raises(InputError, match=r"model.transformer.layer_2.* is missing.*use the size"):
        build_model(config(folder), source, 2)
