"""A fixture that runs the command line in a temporary folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Any) -> Any:
    """Return a function that runs a command in the test's own folder."""
    monkeypatch.chdir(tmp_path)
    return program
