"""The Dockerfile: rules of hadolint, and what it copies. test_install.py runs its pip commands."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest
from dockerfile import Instruction, copied, instructions, problems

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
GOOD = (
    'FROM python:3.13-slim\nWORKDIR /a\nRUN pip install --no-cache-dir x==1\nUSER me\nCMD ["a"]\n'
)
BAD = {
    "DL3006": GOOD.replace(":3.13-slim", ""),
    "DL3007": GOOD.replace("3.13-slim", "latest"),
    "DL3002": GOOD.replace("USER me", "USER root"),
    "DL3020": GOOD + "ADD a b\n",
    "DL3000": GOOD.replace("/a", "a"),
    "DL3025": GOOD.replace('["a"]', "a"),
    "DL3042": GOOD.replace("--no-cache-dir", ""),
    "DL3013": GOOD.replace("==1", ""),
    "DL3015": GOOD + "RUN apt-get install x && rm -rf /var/lib/apt/lists\n",
    "DL3009": GOOD + "RUN apt-get install --no-install-recommends x\n",
    "DL3004": GOOD + "RUN sudo true\n",
}


def test_dockerfile_keeps_the_rules() -> None:
    assert not problems(TEXT)
    assert not problems(GOOD)


@pytest.mark.parametrize("code", BAD)
def test_broken_rule_is_found(code: str) -> None:
    (found,) = problems(BAD[code])
    assert code in found


def test_continued_lines_are_one_instruction() -> None:
    assert instructions("# a\nRUN a \\\n  && b\n") == [Instruction("RUN", "a && b")]


def test_program_is_the_entry_point_and_the_cache_is_a_volume() -> None:
    found = instructions(TEXT)
    assert found[-1] == Instruction("ENTRYPOINT", '["bertaccum"]')
    (volume,) = (i.value for i in found if i.name == "VOLUME")
    settings = [pair.split("=") for i in found if i.name == "ENV" for pair in i.value.split()]
    assert {name: Path(value).parts[:2] for name, value in settings} == dict.fromkeys(
        ("BERTACCUM_CACHE", "HF_HOME", "TFDS_DATA_DIR"), Path(volume).parts
    )
    # A volume keeps the owner of its folder in the image, so it must be made before.
    made = next(number for number, i in enumerate(found) if f" {volume} " in i.value)
    assert made < found.index(Instruction("VOLUME", volume))


def test_version_of_python_in_the_image_is_supported() -> None:
    (version,) = re.findall(r"^ARG PYTHON_VERSION=3\.(\d+)$", TEXT, re.MULTILINE)
    assert 10 <= int(version) <= 13


def test_everything_that_is_copied_is_sent_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if not line.startswith("#")]
    assert rules[0] == "*"
    sent = {rule[1:] for rule in rules if rule.startswith("!")}
    used = {name.split("/")[0] for names, _ in copied(instructions(TEXT)) for name in names}
    assert used == sent
    for names, _ in copied(instructions(TEXT)):
        for name in names:
            assert (ROOT / name).exists(), name
            assert not any(fnmatch.fnmatch(name, rule) for rule in rules[1:] if rule[0] != "!")
