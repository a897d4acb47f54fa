"""Parsing and formatting of amounts of memory."""

from __future__ import annotations

import pytest

from bertaccum.errors import ConfigError
from bertaccum.options.commands import EvalConfig, PlanConfig, ServeConfig, TrainConfig
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


@pytest.mark.parametrize(
    ("text", "size", "remedy"),
    [
        ("4", "4", "add a unit, as in 4GiB"),
        ("3500", "3,500", "add a unit, as in 4GiB"),
        ("0.5k", "500", "pass at least 1024 KiB"),
        ("512KiB", "524,288", "pass at least 1024 KiB"),
    ],
)
def test_too_small_size_is_an_error(text: str, size: str, remedy: str) -> None:
    message = rf"`memory_limit` {text} means {size} bytes; {remedy}"
    with pytest.raises(ConfigError, match=message):
        TrainConfig(memory_limit=text)
    with pytest.raises(ConfigError, match=message.replace("memory_limit", "device_memory")):
        PlanConfig(device_memory=text)


def test_request_may_be_smaller_than_device_memory() -> None:
    assert ServeConfig(max_body="512KiB").max_body == "512KiB"
    with pytest.raises(ConfigError, match="`max_body` 8 means 8 bytes; add a unit"):
        ServeConfig(max_body="8")
    with pytest.raises(ConfigError, match="`max_body` 900b means 900 bytes; pass at least 1 KiB"):
        ServeConfig(max_body="900b")


def test_sizes_are_formatted_in_mib_and_gib() -> None:
    assert format_size(560 * 2**20) == "560 MiB"
    assert format_size(12 * 2**30) == "12.0 GiB"
