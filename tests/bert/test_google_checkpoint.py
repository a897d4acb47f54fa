"""Google's checkpoints give the same outputs as in Google's code, or a clear error."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from small import TINY, write_google_checkpoint

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import read_bert_config
from bertaccum.bert.google_checkpoint import GOOGLE
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.bert.pretrained_weights import load_encoder
from bertaccum.errors import InputError


@pytest.fixture(scope="module")
def checkpoint(shared: Path) -> Path:
    return shared / "pretrained/bert_tiny_reviews/bert_model.ckpt"


def test_outputs_equal_those_of_the_original_code(shared: Path, checkpoint: Path) -> None:
    encoder = build_encoder(read_bert_config(checkpoint.parent / "bert_config.json"))
    load_encoder(encoder, GOOGLE, checkpoint)
    inputs = np.load(shared / "golden/bert_tiny/inputs.npz")
    golden = np.load(shared / "golden/bert_tiny/outputs.npz")
    outputs = encoder(
        {
            "input_word_ids": inputs["input_ids"],
            "input_mask": inputs["input_mask"],
            "input_type_ids": inputs["segment_ids"],
        }
    )
    real = inputs["input_mask"].astype(bool)
    sequence = outputs["sequence_output"].numpy()
    np.testing.assert_allclose(sequence[real], golden["sequence_output"][real], rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        outputs["pooled_output"].numpy(), golden["pooled_output"], rtol=0, atol=1e-5
    )


def test_error_names_variables_missing_in_the_checkpoint(checkpoint: Path) -> None:
    config = dataclasses.replace(PRESET_CONFIGS["bert-tiny"], num_hidden_layers=3)
    with pytest.raises(InputError, match=r"transformer/layer_2/.* is missing.* and 11 more"):
        load_encoder(build_encoder(config), GOOGLE, checkpoint)


def test_error_names_the_variable_with_another_shape(checkpoint: Path) -> None:
    config = dataclasses.replace(PRESET_CONFIGS["bert-tiny"], vocab_size=30000)
    with pytest.raises(
        InputError, match=r"word_embeddings has shape \[30522, 128\].* \[30000, 128\]"
    ):
        load_encoder(build_encoder(config), GOOGLE, checkpoint)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    encoder = build_encoder(TINY)
    encoder.weights[-1].assign(np.where(np.arange(TINY.hidden_size) == 3, value, 0))
    write_google_checkpoint(encoder, tmp_path / "bert_model.ckpt")
    with pytest.raises(
        InputError, match=r"bert_model.ckpt: pooler/dense/bias contains a number that is NaN"
    ):
        load_encoder(build_encoder(TINY), GOOGLE, tmp_path / "bert_model.ckpt")


def test_truncated_checkpoint_raises_input_error(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.parent.glob("bert_model.ckpt.*"):
        shutil.copy(file, tmp_path)
    data = tmp_path / "bert_model.ckpt.data-00000-of-00001"
    data.chmod(0o644)
    data.write_bytes(data.read_bytes()[:100_000])
    with pytest.raises(InputError, match="not a readable BERT checkpoint"):
        load_encoder(
            build_encoder(PRESET_CONFIGS["bert-tiny"]), GOOGLE, tmp_path / "bert_model.ckpt"
        )
