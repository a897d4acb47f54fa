"""Times that are calculated for cards, compared with all measurements on GPUs."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest


def test_errors_are_below_30_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
    results, _ = importlib.import_module("gpu_arithmetic").errors()
    measured = {r["name"]: r["error"] for r in results if "measured" in r}
    assert len(measured) == 20
    assert {name: error for name, error in measured.items() if abs(error) > 0.3} == {}
