"""The README says what the program does: its tables come from the program."""

from __future__ import annotations

import re
from pathlib import Path

from readme import written

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_what_the_program_says_of_itself_is_up_to_date() -> None:
    assert written(README) == README, "make readme"


def test_every_file_the_readme_names_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_layout_names_every_package() -> None:
    packages = [path.parent for path in ROOT.glob("bertaccum/*/__init__.py")]
    assert len(packages) == 10
    for package in [*packages, ROOT / "data_prep"]:
        assert f"`{package.relative_to(ROOT)}/`" in README, package
