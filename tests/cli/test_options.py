"""Every option of every command: the error for an invalid value names the valid values."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml

from bertaccum.cli.program import cli
from bertaccum.errors import ConfigError
from bertaccum.options.commands import (
    CompareConfig,
    EvalConfig,
    ExportConfig,
    PlanConfig,
    PredictConfig,
    ReportConfig,
    TrainConfig,
)
from bertaccum.options.prepare import PrepareConfig
from bertaccum.options.pretraining import PretrainConfig
from bertaccum.runs.folder import RunFolder
from bertaccum.runs.record import read_run_config

CONFIGS = {
    "prepare": PrepareConfig,
    "train": TrainConfig,
    "plan": PlanConfig,
    "eval": EvalConfig,
    "predict": PredictConfig,
    "export": ExportConfig,
    "compare": CompareConfig,
    "report": ReportConfig,
}


@pytest.mark.parametrize("command", CONFIGS)
def test_addresses_are_no_paths(command: str) -> None:
    config = CONFIGS[command]
    paths = [field.name for field in dataclasses.fields(config) if field.metadata["path"]]
    for name in {*paths} - {"init_checkpoint"}:
        for address in ("https://a.example//b.csv", "gs://bucket/b"):
            with pytest.raises(ConfigError, match=f"^`{name}` {address} is an address; use a path"):
                config(**{name: address})


@pytest.mark.parametrize("command", CONFIGS)
def test_empty_paths_are_errors(command: str) -> None:
    """They often come from a variable of the shell that is not set."""
    for field in dataclasses.fields(CONFIGS[command]):
        for value in ("", " ") if field.metadata["path"] else ():
            with pytest.raises(ConfigError, match=f"^`{field.name}` is empty; pass a path, or om"):
                CONFIGS[command](**{field.name: value})


def test_empty_values_are_no_defaults(tmp_path: Path, program: Any) -> None:
    config = tmp_path / "r.yaml"
    config.write_text('init_checkpoint: ""\n')
    for arguments, message in (
        (("train", "--config", config), "error: --init-checkpoint is empty"),
        (("pretrain", "--text", ""), "error: --text is empty"),
        (("pretrain", "--text", "a", "--add-words", ""), "error: --add-words is empty"),
        (("show", ""), "error: .: there is no run here"),
    ):
        code, _, error = program(*arguments)
        assert code == 2 and error.splitlines()[-1].startswith(message), error


def test_pretraining_can_be_repeated_with_its_own_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = PretrainConfig(text="a.txt", epochs=2.0, whole_words=True)
    RunFolder(Path("run")).create(own, {})
    assert read_run_config(Path("run")) == own
    new = Path("run/config.yaml").read_text()
    assert "truncate" not in new and "data" not in new
    # Earlier versions also wrote the options that only `train` has.
    whole = {k: v for k, v in dataclasses.asdict(own).items() if v is not None}
    for text in (new, yaml.safe_dump(whole)):
        Path("r.yaml").write_text(text)
        context = cli.commands["pretrain"].make_context("pretrain", ["--config", "r.yaml"])
        found = {name: context.params[name] for name in ("text", "epochs", "whole_words")}
        assert found == {"text": "a.txt", "epochs": 2.0, "whole_words": True}
    for line in ("class_weight: balanced", "data: reviews", "task: regression", "windows: 2"):
        Path("r.yaml").write_text(f"text: a.txt\n{line}\n")
        with pytest.raises(ConfigError, match="row 2: unknown key"):
            cli.commands["pretrain"].make_context("pretrain", ["--config", "r.yaml"])


def wrong_values() -> Iterator[Any]:
    """Yield a command, a flag, an invalid value and a regular expression for the error message."""
    for command, config in CONFIGS.items():
        for field in dataclasses.fields(config):
            flag, known = f"--{field.name.replace('_', '-')}", field.metadata
            wrong: list[tuple[str, str]] = []
            if known["choices"]:
                wrong = [("none-such", re.escape(known["choices"][-1]))]
            elif known["numbers"] is not None:
                low = known["numbers"].low
                wrong = [
                    ("some", "'some' is not (a|auto or a) (whole )?number"),
                    (str(low - 1), f"is (not above|below) {low}"),
                ]
                wrong += [
                    ("1e400", "not a finite|not (auto or )?a whole"),
                    ("nan", "not a finite|not (auto or )?a whole"),
                ]
            if known["numbers"] is not None and known["numbers"].fraction:
                wrong = [(value, "is not a number of updates") for value in ("1e3", "nan", "some")]
            if known["numbers"] is not None and known["numbers"].high is not None:
                high = known["numbers"].high
                wrong.append((str(high + 1), f"is (not below|above) {high}"))
            for value, message in wrong:
                yield pytest.param(command, flag, value, message, id=f"{command} {flag} {value}")


@pytest.mark.parametrize(("command", "flag", "value", "message"), wrong_values())
def test_error_for_invalid_value_names_valid_values(
    command: str, flag: str, value: str, message: str
) -> None:
    with pytest.raises(click.UsageError) as error:
        cli.commands[command].make_context(command, [flag, value])
    text = getattr(error.value, "message", "")
    assert flag in getattr(error.value, "format_message", str)()
    assert re.search(message, text), text
    assert error.value.exit_code == 2


def single_options() -> Iterator[Any]:
    """Yield the command and flag of every option that takes one value."""
    for name, command in cli.commands.items():
        for option in command.params:
            if isinstance(option, click.Option) and not option.is_flag:
                yield pytest.param(name, max(option.opts, key=len), id=f"{name} {option.name}")


@pytest.mark.parametrize(("command", "flag"), single_options())
def test_option_with_one_value_cannot_be_repeated(command: str, flag: str) -> None:
    with pytest.raises(click.UsageError, match=f"{flag} is given more than once") as error:
        cli.commands[command].make_context(command, [flag, "1", f"{flag}=2"])
    assert error.value.exit_code == 2


def test_flags_can_be_repeated_and_override_the_config_file(tmp_path: Path) -> None:
    context = cli.commands["prepare"].make_context("prepare", ["--json", "--json", "-q", "-q"])
    assert context.params["as_json"]
    (tmp_path / "r.yaml").write_text("seed: 1\n")
    arguments = ["--config", str(tmp_path / "r.yaml"), "--seed", "2"]
    assert cli.commands["train"].make_context("train", arguments).params["seed"] == 2


@pytest.mark.parametrize(
    ("command", "name", "again"),
    [
        ("train --seed 1", "config.yaml", ""),
        ("train --epochs 9", "config.yaml", "compile"),
        ("train --target-batch 4", "config.yaml", "micro_batch compile"),
        ("train --cut count", "config.yaml", "micro_batch compile"),
        ("train --truncate tail", "config.yaml", "micro_batch compile"),
        ("train --task regression", "config.yaml", "micro_batch compile best_by task"),
        ("train --data other", "config.yaml", "micro_batch compile best_by task"),
        ("train --init-checkpoint none", "config.yaml", "all"),
        ("train --model bert-tiny", "config.yaml", "all"),
        ("train --model bert-tiny", "recipe.yaml", ""),
        ("pretrain --text other", "config.yaml", "micro_batch compile"),
        ("plan", "config.yaml", "all"),
        ("plan", "recipe.yaml", ""),
        ("sweep", "config.yaml", "all"),
    ],
)
def test_options_that_depend_on_a_changed_one_are_chosen_again(
    tmp_path: Path, command: str, name: str, again: str
) -> None:
    command, *flags = command.split()
    chosen = {"init_checkpoint": "bert-base", "micro_batch": 8, "compile": "on"}
    if command != "pretrain":
        chosen["task"] = "classification"
    if command in ("train", "sweep"):
        chosen |= {"best_by": "accuracy", "learning_rate": 2e-5}
    named = {"recompute": "layer", "memory_limit": "4GiB"}
    (tmp_path / name).write_text(yaml.safe_dump({"dropout": 0.5} | chosen | named))
    (tmp_path / "inputs.json").write_text(json.dumps({"named": [*named]}))
    arguments = ["--config", str(tmp_path / name), *flags]
    found = cli.commands[command].make_context(command, arguments).params
    assert {"dropout": 0.5, **named}.items() <= found.items()
    changed = {key for key, value in chosen.items() if found[key] != value}
    assert changed == {*(chosen if again == "all" else again.split())}


def test_config_file_keeps_text_that_yaml_would_convert(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("data: 010\nout: 1.10\ninit_checkpoint: yes\ncalibrate: yes\nseed: ~\n")
    found = cli.commands["train"].make_context("train", ["--config", str(path)]).params
    names = ("data", "out", "init_checkpoint", "calibrate", "seed")
    assert [found[name] for name in names] == ["010", "1.10", "yes", True, 0]


def test_numpy_numbers_and_paths_become_plain_values() -> None:
    options: Any = {"learning_rate": np.float32(0.5), "seed": np.int64(3), "data": Path("x")}
    found = TrainConfig(**options)
    values = (found.learning_rate, found.seed, found.data)
    assert values == (0.5, 3, "x")
    assert [type(value) for value in values] == [float, int, str]


@pytest.mark.parametrize(
    ("config", "option", "value", "text"),
    [
        (EvalConfig, "thresholds", 0.5, "0.5"),
        (partial(EvalConfig, file="a.csv"), "label_columns", 3, "3"),
        (partial(PredictConfig, file="a.csv"), "text_column", np.int64(1), "1"),
        (PretrainConfig, "add_words", 500, "500"),
        (TrainConfig, "save_every", 200, "200"),
        (TrainConfig, "memory_limit", 2**32, "4294967296"),
    ],
)
def test_number_for_an_option_of_text_is_text(
    config: Callable[..., Any], option: str, value: Any, text: str
) -> None:
    assert getattr(config(**{option: value}), option) == text


@pytest.mark.parametrize(
    ("config", "option", "value", "message"),
    [
        (EvalConfig, "thresholds", 0.7, "0.7 is not one of 0.5, dev"),
        (PrepareConfig, "text_column", True, "True is not text"),
        (PrepareConfig, "text_column", math.nan, "nan is not text"),
        (PrepareConfig, "text_column", [1], "is not text"),
        (TrainConfig, "save_every", 0.5, "0.5 is neither a number of updates nor a time"),
        (TrainConfig, "collective_timeout", 90, "90 is not a time; write it as 90s"),
        (TrainConfig, "memory_limit", 4, "4 means 4 bytes; add a unit"),
    ],
)
def test_number_without_a_meaning_is_an_error(
    config: type, option: str, value: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**{option: value})


@pytest.mark.parametrize("option", ["seed", "data", "epochs"])
def test_none_for_an_option_with_a_default_is_an_error(option: str) -> None:
    with pytest.raises(ConfigError, match=f"`{option}` is None; omit it to use the default"):
        TrainConfig(**{option: None})


@pytest.mark.parametrize("config", [PrepareConfig, EvalConfig, PredictConfig])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("delimiter", "commas"),
        ("delimiter", '"'),
        ("delimiter", ""),
        ("encoding", "latin-99"),
        ("encoding", "base64"),
    ],
)
def test_error_names_an_invalid_delimiter_or_encoding(
    config: type, option: str, value: str
) -> None:
    with pytest.raises(ConfigError, match=f"`{option}` .*{value}"):
        config(**{option: value})


@pytest.mark.parametrize(
    ("config", "values", "both"),
    [
        (TrainConfig, {"target_batch": 4, "micro_batch": 8}, ["`micro_batch` 8", "batch` 4"]),
        (
            TrainConfig,
            {"model": "bert-tiny", "bert_config": "x"},
            ["`model` bert-tiny", "config` x"],
        ),
        (PlanConfig, {"device_memory": "4GiB", "memory_limit": "2GiB"}, ["4GiB", "2GiB"]),
        (PrepareConfig, {"archive": "a.tgz", "source": "csv", "train_file": "b"}, ["`archive`"]),
        (PrepareConfig, {"source": "csv"}, ["`source` csv", "`train_file`"]),
        (PrepareConfig, {"train_file": "b"}, ["`train_file`", "`source` yelp"]),
        (EvalConfig, {"text_column": "body"}, ["`text_column`", "`file`"]),
        (PrepareConfig, {"delimiter": "tab"}, ["`delimiter`", "`source` yelp"]),
        (EvalConfig, {"encoding": "utf-16"}, ["`encoding`", "`file`"]),
        (EvalConfig, {"split": "dev", "file": "a.csv"}, ["`split` dev", "`file` a.csv"]),
        (PredictConfig, {"text_column": "body"}, ["`text_column`", "`file`"]),
        (PredictConfig, {"text_column": "text"}, ["`text_column`", "`file`"]),
        (
            EvalConfig,
            {"file": "a.csv", "label_columns": "a,b", "label_column": "y"},
            ["`label_column` y and `label_columns`"],
        ),
        (PredictConfig, {"delimiter": "tab", "file": "-"}, ["`delimiter` has no effect on stdin"]),
        (PrepareConfig, {"allow_unverified_archive": True}, ["without `archive`"]),
        (
            TrainConfig,
            {"teacher": "runs/t", "teacher_weight": 1.0, "label_smoothing": 0.1},
            ["`label_smoothing` 0.1", "`teacher_weight` 1"],
        ),
        (TrainConfig, {"head_fraction": 0.5}, ["`head_fraction` 0.5", "`truncate` head-tail"]),
    ],
    ids=str,
)
def test_error_names_both_contradicting_options(
    config: type, values: dict[str, Any], both: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        config(**values)
    for part in both:
        assert part in str(error.value)
