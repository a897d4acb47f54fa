"""Parsing and formatting of amounts of memory."""

from __future__ import annotations

import pytest

from bertaccum.errors import ConfigError
from bertaccum.options.commands import EvalConfig, PlanConfig, TrainConfig
from bertaccum.system.sizes import format_size, parse_size

SIZES = {
    "4GiB": 4 * 2**30,
    "3500MB": 3_500_000_000,
    "512m": 512_000_000,
    "1.5 gib": 3 * 2**29,
    "64Ki": 65536,
    "123": 123,
    "7b": 7,
}


@pytest.mark.parametrize("text", SIZES)
def test_sizes_are_parsed(text: str) -> None:
    assert parse_size(text) == SIZES[text]


@pytest.mark.parametrize(
    "text", ["", "GiB", "4XB", "-1GiB", "4 G iB", "1e9", "٤GiB", "4GiBs", "9" * 310]
)
@pytest.mark.parametrize("config", [TrainConfig, EvalConfig])
def test_invalid_size_is_an_error(text: str, config: type) -> None:
    with pytest.raises(ConfigError, match=r"`memory_limit`.* is not a size such as 4GiB"):
        config(memory_limit=text)


@pytest.mark.parametrize(("text", "size"), [("4", "4"), ("3500", "3,500"), ("0.5k", "500")])
def test_small_size_without_unit_is_an_error(text: str, size: str) -> None:
    message = rf"`memory_limit` {text} means {size} bytes; add a unit, as in 4GiB"
    with pytest.raises(ConfigError, match=message):
        TrainConfig(memory_limit=text)
    with pytest.raises(ConfigError, match=message.replace("memory_limit", "device_memory")):
        PlanConfig(device_memory=text)


def test_sizes_are_formatted_in_mib_and_gib() -> None:
    assert format_size(560 * 2**20) == "560 MiB"
    assert format_size(12 * 2**30) == "12.0 GiB"
