"""The version: one place, valid, the newest in the changelog, and shown by `--version`."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

from bertaccum.version import __version__

ROOT = Path(__file__).resolve().parents[1]


def changelog_problem(text: str, version: str) -> str | None:
    """Return what is wrong with the sections of a changelog, given the version of the source.

    After a release, the source may already have a later version, which is then a development
    release (`0.2.0.dev0`).
    """
    first, *released = re.findall(r"^## (.*)$", text, re.MULTILINE)
    if first != "Unreleased":
        return "the first section is not Unreleased"
    found = [re.fullmatch(r"(\S+) - \d{4}-\d\d-\d\d", heading) for heading in released]
    if not all(found):
        return "a section is not headed `version - date`"
    versions = [Version(match[1]) for match in found if match]
    if versions != sorted(set(versions), reverse=True):
        return "the versions are not in descending order"
    ours = Version(version)
    if versions and ours != versions[0] and not (ours.is_devrelease and ours > versions[0]):
        return f"the newest section is {versions[0]}, but the source has version {ours}"
    return None


def test_version_is_valid_and_is_written_once() -> None:
    assert str(Version(__version__)) == __version__  # InvalidVersion, or another spelling of it.
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in text
    assert __version__ not in text


def test_changelog_agrees_with_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changelog_problem(text, __version__) is None


@pytest.mark.parametrize(
    ("sections", "version", "problem"),
    [
        ("## Unreleased\n", "0.1.0", None),
        ("## Unreleased\n## 0.1.0 - 2026-01-02\n", "0.1.0", None),
        ("## Unreleased\n## 0.1.0 - 2026-01-02\n", "0.2.0.dev0", None),
        ("## Unreleased\n## 0.2.0 - 2026-01-02\n", "0.1.0", "newest section is 0.2.0"),
        ("## Unreleased\n## 0.1.0 - 2026-01-02\n", "0.2.0", "newest section is 0.1.0"),
        ("## 0.1.0 - 2026-01-02\n", "0.1.0", "not Unreleased"),
        ("## Unreleased\n## 0.1.0\n", "0.1.0", "version - date"),
        ("## Unreleased\n## 0.1.0 - 2026-01-02\n## 0.2.0 - 2026-01-01\n", "0.1.0", "descending"),
    ],
)
def test_disagreement_of_changelog_and_version_is_found(
    sections: str, version: str, problem: str | None
) -> None:
    found = changelog_problem(sections, version)
    assert found is None if problem is None else problem in (found or "")


def test_program_shows_versions_without_importing_tensorflow() -> None:
    code = (
        "import sys\nfrom bertaccum.cli.program import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "print({'tensorflow', 'pandas', 'numpy'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    python = ".".join(map(str, sys.version_info[:3]))
    tensorflow = metadata.version("tensorflow")
    shown = f"bertaccum {__version__} (tensorflow {tensorflow}, Python {python})"
    assert done.stdout.splitlines() == [shown, "set()"]
