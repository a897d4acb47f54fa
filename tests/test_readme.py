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


def test_the_table_of_contents_names_every_module() -> None:
    for module in (*ROOT.glob("bertaccum/*"), *ROOT.glob("bertaccum/*/*.py"), ROOT / "data_prep"):
        if module.name.startswith("_") or module.suffix not in (".py", ""):
            continue
        assert f"`{module.name}`" in README or f"`{module.name}/`" in README, module
