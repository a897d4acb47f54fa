"""The workflow of GitHub Actions: the versions of Python, and targets of make that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
TARGETS = set(
    re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)


@pytest.fixture
def jobs() -> dict[str, Any]:
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    whole = yaml.safe_load(text)
    assert whole[True].keys() == {"push", "pull_request"}  # YAML 1.1 reads `on` as true.
    return dict(whole["jobs"])


def test_matrix_has_every_supported_version_of_python(jobs: dict[str, Any]) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (supported,) = re.findall(r'^requires-python = "(.*)"$', text, re.MULTILINE)
    minors = [f"3.{minor}" for minor in range(30) if f"3.{minor}" in SpecifierSet(supported)]
    assert jobs["pytest"]["strategy"]["matrix"]["python"] == minors
    assert len(minors) == 4


def test_every_make_target_exists(jobs: dict[str, Any]) -> None:
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = {command.split()[1] for command in commands if command.startswith("make ")}
    assert called == {"check", "pytest", "test-slow", "test-install"}
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    run = set(re.findall(r"^make ([\w-]+)\b", ci, re.MULTILINE))
    assert run == {"install", "test", "test-slow", "test-install"}
    assert run <= TARGETS


def test_every_job_has_steps_and_a_time_limit(jobs: dict[str, Any]) -> None:
    for name, job in jobs.items():
        assert job["timeout-minutes"] and job["runs-on"], name
        assert all(("uses" in step) != ("run" in step) for step in job["steps"]), name
        assert all("@v" in step["uses"] for step in job["steps"] if "uses" in step), name
