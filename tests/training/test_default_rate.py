"""The default learning rate depends on the size of the model and on its initial weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from small import write_small_task

from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.training.recipe import default_learning_rate


@pytest.mark.parametrize("weights", [None, Path("bert_model.ckpt")])
def test_smaller_models_get_higher_rates(weights: Path | None) -> None:
    presets = ("bert-large", "bert-base", "bert-small", "bert-mini", "bert-tiny")
    sources = [ModelSource(name, PRESET_CONFIGS[name], None, weights) for name in presets]
    rates = [default_learning_rate(source) for source in sources]
    assert rates == sorted(rates) and rates[-1] > 4 * rates[0]
    untrained = [dataclasses.replace(source, checkpoint=None) for source in sources]
    assert all(map(lambda own, new: own <= default_learning_rate(new), rates, untrained))
    if weights:
        assert rates[1] == 2e-5  # As Devlin et al. 2019 recommend.


def test_run_says_and_records_its_rate_and_keeps_it_when_resumed(
    tmp_path: Path, program: Callable[..., tuple[int, str, str]]
) -> None:
    bert_config = write_small_task(tmp_path / "reviews", train=16, dev=4)
    options = ("--data", tmp_path / "reviews", "--bert-config", bert_config, "--cut", "count")
    small = ("--init-checkpoint", "none", "--target-batch", 8, "--micro-batch", 8)
    out, rest = tmp_path / "run", (*options, *small, "--max-seq-length", 16)
    code, _, err = program("train", *rest, "--max-updates", 0, "--out", out)
    assert code == 0, err
    assert "learning rate 0.0005, the default for this model\n" in err
    assert yaml.safe_load((out / "config.yaml").read_text())["learning_rate"] == 5e-4
    code, _, err = program("train", "--resume", out, "--learning-rate", 2e-5)
    assert code == 2 and "--learning-rate to 2e-05 (was 0.0005)" in err
    code, _, err = program("train", "--resume", out, "--max-updates", 1)
    assert code == 0, err
    assert yaml.safe_load((out / "config.yaml").read_text())["learning_rate"] == 5e-4
    other = tmp_path / "other"
    err = program("train", *rest, "--max-updates", 0, "--learning-rate", 2e-5, "--out", other)[2]
    assert "the default" not in err
    assert yaml.safe_load((other / "config.yaml").read_text())["learning_rate"] == 2e-5
