"""Options of adapters that contradict each other, or have no effect, are refused."""

from __future__ import annotations

from typing import Any

import pytest

from bertaccum.errors import ConfigError
from bertaccum.options.adapting import OPTIONS, target_names, unused_options
from bertaccum.options.commands import TrainConfig
from bertaccum.options.pretraining import PretrainConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapt": "lora", "lora_rank": 0}, "`lora_rank` 0 is below 1"),
        ({"adapt": "lora", "lora_alpha": 0}, "`lora_alpha` 0 is not above 0"),
        ({"adapt": "lora", "lora_dropout": 1.0}, "`lora_dropout` 1.0 is above 0.99"),
        ({"adapt": "lora", "lora_targets": "query,values"}, "'values' is not a layer; use all, or"),
        ({"adapt": "lora", "lora_targets": ""}, "'' is not a layer"),
        ({"lora_rank": 4}, "`lora_rank` 4 has no effect without `adapt` lora; set `adapt` lora"),
        ({"lora_alpha": 4}, "`lora_alpha` 4 has no effect"),
        ({"adapt": "bias", "lora_targets": "key"}, "`lora_targets` key has no effect"),
        ({"adapt": "bias", "lora_dropout": 0.1}, "`lora_dropout` 0.1 has no effect"),
        ({"adapt": "lora", "train_layers": 0}, "`train_layers` 0 leave nothing to adapt"),
        ({"adapt": "bias", "freeze": "embeddings"}, "`freeze` embeddings has no effect with"),
        ({"frozen_dtype": "bfloat16"}, "`frozen_dtype` bfloat16 has no effect: all weights are"),
        ({"adapt": "prefix"}, "`adapt` prefix is not one of full, lora, bias"),
    ],
)
def test_useless_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"adapt": "lora", "lora_alpha": 0.5, "train_layers": 1, "frozen_dtype": "float16"},
        {"frozen_dtype": "bfloat16", "train_layers": 0},
        {"frozen_dtype": "bfloat16", "freeze": "embeddings"},
    ],
)
def test_useful_options_are_accepted(options: dict[str, Any]) -> None:
    TrainConfig(**options)


@pytest.mark.parametrize("options", [{"adapt": "lora"}, {"frozen_dtype": "float16"}])
def test_pretraining_adapts_nothing(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="has no effect"):
        PretrainConfig(text="a.txt", **options)


def test_targets_have_an_order_of_their_own() -> None:
    assert target_names("value, query") == target_names("query,value") == ("query", "value")
    assert len(target_names("all")) == 6
    assert target_names("attention-output") == ("attention_output",)


def test_plans_of_full_training_do_not_depend_on_options_that_are_not_set() -> None:
    assert unused_options(TrainConfig()) == {*OPTIONS}
    adapted = TrainConfig(adapt="lora", lora_rank=4, train_layers=1)
    assert {*OPTIONS} - unused_options(adapted) == {"adapt", "lora_rank"}
