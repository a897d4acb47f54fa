"""A reader of Dockerfiles, and the rules that `test_container.py` checks."""

from __future__ import annotations

import json
import re
from typing import NamedTuple


class Instruction(NamedTuple):
    """One instruction of a Dockerfile, such as ("RUN", "pip install .")."""

    name: str
    value: str


def instructions(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile, with continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = (line.split(maxsplit=1) for line in joined.splitlines())
    return [Instruction(name.upper(), value) for name, value in pairs]


def copied(found: list[Instruction]) -> list[tuple[list[str], str]]:
    """Return the sources and the destination of each COPY."""
    parts = [i.value.split() for i in found if i.name == "COPY"]
    return [(names[:-1], names[-1]) for names in parts]


def problems(text: str) -> set[str]:
    """Return the rules, a subset of hadolint's, that a Dockerfile breaks; hadolint's codes."""
    found = instructions(text)
    values: dict[str, list[str]] = {}
    for name, value in found:
        values.setdefault(name, []).append(value)
    arguments = dict(v.split("=", 1) for v in values.get("ARG", []) if "=" in v)
    base = re.sub(r"\$\{(\w+)\}", lambda m: arguments.get(m[1], ""), values["FROM"][-1])
    broken = set()
    if not re.fullmatch(r"[\w./-]+:\d+\.\d+[\w.-]*", base):
        broken.add("DL3006 DL3007: the tag of the base image is missing or not a version")
    if not values.get("USER") or values["USER"][-1].split(":")[0] in ("root", "0"):
        broken.add("DL3002: the last user is root")
    if "ADD" in values:
        broken.add("DL3020: ADD instead of COPY")
    if not all(v.startswith(("/", "$")) for v in values.get("WORKDIR", [])):
        broken.add("DL3000: WORKDIR is not absolute")
    for name in ("ENTRYPOINT", "CMD"):
        if not all(v.startswith("[") and json.loads(v) for v in values.get(name, [])):
            broken.add("DL3025: ENTRYPOINT or CMD is not JSON")
    for run in values.get("RUN", []):
        broken |= _problems_of_run(run)
    return broken


def _problems_of_run(run: str) -> set[str]:
    broken = set()
    for command in re.split(r"&&|;|\|\|", run):
        if "pip install" in command:
            if "--no-cache-dir" not in command:
                broken.add("DL3042: pip without --no-cache-dir")
            if not re.search(r"--constraint|--no-deps|==", command):
                broken.add("DL3013: pip without pinned versions")
        if "apt-get install" in command:
            if "--no-install-recommends" not in command:
                broken.add("DL3015: apt-get without --no-install-recommends")
            if "rm -rf /var/lib/apt/lists" not in run:
                broken.add("DL3009: lists of apt are kept")
        if re.match(r"\s*(sudo|cd)\b", command):
            broken.add("DL3003 DL3004: sudo or cd")
    return broken
