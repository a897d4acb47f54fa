"""The program in a shell: completion, help, short flags and start-up."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class

from bertaccum.cli.program import cli

PROGRAM = Path(sys.executable).with_name("bertaccum")
# The words that a shell asks to complete, and completions that it must get.
WANTED = {
    ("",): {"prepare", "plan", "train", "eval", "predict", "compare", "export", "report", "runs"},
    ("tr",): {"train"},
    ("train", "--prec"): {"--precision"},
    ("train", "--precision", "mixed_b"): {"mixed_bfloat16"},
    ("train", "--strategy", "m"): {"mirrored", "multi-worker"},
}


def request(shell: str, *words: str) -> dict[str, str]:
    """Return the environment variables with which a shell asks for completions."""
    place = words[-1] if shell == "fish" else str(len(words))
    line = " ".join(["bertaccum", *words])
    return {"_BERTACCUM_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": place}


Completed = Callable[..., str]


@pytest.fixture
def completed(monkeypatch: pytest.MonkeyPatch) -> Completed:
    """Return a function that asks for completions as a shell does, and returns the output."""

    def complete(shell: str, *words: str) -> str:
        for name, value in request(shell, *words).items():
            monkeypatch.setenv(name, value)
        completion = get_completion_class(shell)
        assert completion is not None
        return completion(cli, {}, "bertaccum", "_BERTACCUM_COMPLETE").complete()

    return complete


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_options_and_choices(shell: str, completed: Completed) -> None:
    for words, wanted in WANTED.items():
        found = completed(shell, *words)
        assert all(word in found for word in wanted), (words, found)
        others = {"train": "eval", "--precision": "--data", "mixed_bfloat16": "float32,"}
        assert not any(words[-1] and word in wanted and o in found for word, o in others.items())


@pytest.mark.parametrize("option", ["--data", "--config", "--resume", "--out"])
def test_shell_completes_files_and_folders(option: str, completed: Completed) -> None:
    assert completed("bash", "train", option, "co").startswith("file,")


@pytest.mark.skipif(not PROGRAM.exists(), reason="the program is not installed beside Python")
def test_installed_program_completes_commands() -> None:
    environment = os.environ | request("bash", "tr")
    done = subprocess.run([PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("plain,train\n", "")


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_help_of_every_command_has_an_example(command: str) -> None:
    context = cli.commands[command].make_context(command, [], resilient_parsing=True)
    assert f"  bertaccum {command}" in context.get_help()


def test_module_is_the_program_and_has_a_short_flag_for_help() -> None:
    command = [sys.executable, "-m", "bertaccum", "train", "-h"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--target-batch" in done.stdout


STARTING = """
import os, sys
from bertaccum.cli.program import main
try:
    main(["eval", "--run", "none"])
except SystemExit:
    import bertaccum.training.train
print("keras" in sys.modules, os.environ.get("TF_ENABLE_ONEDNN_OPTS"))
"""
# TensorFlow has oneDNN only on x86.
ONEDNN = "1" if platform.machine() == "x86_64" else None


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in names}


def test_program_uses_onednn_and_not_keras_3() -> None:
    environment = without("TF_USE_LEGACY_KERAS", "TF_ENABLE_ONEDNN_OPTS")
    command = [sys.executable, "-c", STARTING]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"False {ONEDNN}\n"


@pytest.mark.parametrize("given", [{}, {"TF_ENABLE_ONEDNN_OPTS": "0"}])
def test_library_uses_onednn_unless_it_is_disabled(given: dict[str, str]) -> None:
    code = "import bertaccum, os; bertaccum.train; print(os.environ.get('TF_ENABLE_ONEDNN_OPTS'))"
    environment = without("TF_ENABLE_ONEDNN_OPTS") | given
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{given.get('TF_ENABLE_ONEDNN_OPTS', ONEDNN)}\n"
