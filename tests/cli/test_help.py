"""Sections in the help of the program and of `bertaccum train`."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from bertaccum.cli.program import cli
from bertaccum.options.commands import (
    GROUPS,
    OUTPUT,
    SOURCE,
    SPLIT,
    TABLES,
    StepConfig,
    TrainConfig,
)
from bertaccum.options.prepare import PrepareConfig

FIRST_COMMANDS = ["prepare", "train", "eval", "predict"]


def sections(command: click.Command) -> dict[str, list[str]]:
    """Return the first word of each row in the sections of a command's help, by heading."""
    context = click.Context(command, info_name="bertaccum")
    context.meta["bertaccum.help_all"] = True
    text = command.get_help(context)
    parts = re.split(r"^(\w[\w ]*):\n", text, flags=re.MULTILINE)[1:]
    bodies = zip(parts[::2], parts[1::2], strict=True)
    return {head: re.findall(r"^  (?! )(?:-\w, )?([\w-]+)", b, re.MULTILINE) for head, b in bodies}


def test_program_help_lists_first_commands_before_others() -> None:
    found = sections(cli)
    assert list(found) == ["Options", "First steps", "Other commands"]
    assert found["First steps"] == FIRST_COMMANDS
    assert sorted(found["Other commands"]) == sorted(cli.commands.keys() - set(FIRST_COMMANDS))


def test_program_help_describes_each_command_in_one_line() -> None:
    text = cli.get_help(click.Context(cli, terminal_width=80))
    assert "..." not in text.split("First steps:")[1]
    assert len(text.split("First steps:")[1].strip().splitlines()) == len(cli.commands) + 2


OF_PREPARE = [SOURCE, TABLES, SPLIT, OUTPUT]
OF_TRAIN = [group for group in GROUPS if group not in OF_PREPARE[:3]]


@pytest.mark.parametrize(
    ("command", "groups", "general"),
    [("train", OF_TRAIN, ["--config", "--help"]), ("prepare", OF_PREPARE, ["--help"])],
)
def test_help_groups_every_option_once(command: str, groups: list[str], general: list[str]) -> None:
    found = sections(cli.commands[command])
    assert list(found) == ["Options", *groups]
    assert found["Options"] == [*general, "--help-all"]
    flags = [flag for names in found.values() for flag in names]
    parameters = cli.commands[command].get_params(click.Context(cli.commands[command]))
    assert sorted(flags) == sorted(max(p.opts, key=len) for p in parameters)


def test_train_help_lists_the_main_option_of_each_group_first() -> None:
    found = sections(cli.commands["train"])
    assert {group: found[group][0] for group in OF_TRAIN} == {
        "Data": "--data",
        "Model": "--model",
        "Batch and memory": "--target-batch",
        "Optimization": "--epochs",
        "Evaluation and checkpoints": "--resume",
        "Devices": "--strategy",
        "Output": "--out",
    }


@pytest.mark.parametrize("config", [PrepareConfig, StepConfig, TrainConfig])
def test_every_option_of_a_long_command_declares_its_group(config: type) -> None:
    for field in dataclasses.fields(config):
        assert field.metadata["group"] in GROUPS, field.name


@pytest.mark.parametrize("command", ["eval", "predict", "export", "runs", "show"])
def test_help_of_a_command_with_few_options_has_one_section(command: str) -> None:
    assert list(sections(cli.commands[command]))[-1] == "Options"


@pytest.mark.parametrize(
    ("command", "main"),
    [("train", "--learning-rate"), ("prepare", "--text-column"), ("plan", "--device-memory")],
)
def test_help_of_a_long_command_shows_its_main_options_on_one_screen(
    program: Callable[..., tuple[int, str, str]], command: str, main: str
) -> None:
    short, every = (program(command, flag)[1] for flag in ("--help", "--help-all"))
    listed = re.split(r"^Main options:\n", short, flags=re.MULTILINE)[1]
    flags = re.findall(r"^  (?:-\w, )?(--[\w-]+)", listed, re.MULTILINE)
    assert main in flags and flags[-2:] == ["--help", "--help-all"] and 10 < len(flags) <= 18
    assert len(listed.splitlines()) < 45 and "Main options" not in every
    names = {max(p.opts, key=len) for p in cli.commands[command].params}
    assert all(name in every for name in names) and {*flags[:-2]} < names


def test_help_imports_neither_tensorflow_nor_pandas_nor_rich() -> None:
    code = (
        "import sys\nfrom bertaccum.cli.program import cli\n"
        "cli.main(['train', '--help'], standalone_mode=False)\n"
        "print(sorted({'tensorflow', 'pandas', 'rich'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
