"""A fixture that runs the command line in a temporary folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from bertaccum.cli.program import main


@dataclasses.dataclass
class Outcome:
    """The exit code, stdout and stderr of a command."""

    code: object
    out: str
    err: str


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Return a function that runs a command in the test's own folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        return Outcome(end.value.code or 0, *capsys.readouterr())

    return call
