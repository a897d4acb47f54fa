"""Speeds of bertaccum and of other training programs on one card, and their tables.

`peers/on_gpu.py` measures them, because it also runs on a machine without bertaccum.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools import Results, table

ON_GPU = Path(__file__).parent / "peers/on_gpu.py"
# Programs of each part, as `on_gpu.py` names them.
PROGRAMS = {
    "peers": (
        *("PyTorch loop", "PyTorch loop, grouped", "Trainer, grouped"),
        *("PyTorch loop, grouped, compiled", "Keras 3 on JAX"),
    ),
    "ours": ("bertaccum", "bertaccum, compiled", "bertaccum, planned"),
}


def measured(arguments: argparse.Namespace, part: str) -> tuple[Results, str]:
    """Time the programs of a part, and return their results and all tables of the folder."""
    file = arguments.out / f"{part}.json"
    command = [sys.executable, ON_GPU, "--data", arguments.out / "data", "--out", file]
    command += ["--python", arguments.peers_python, "--our-python", sys.executable]
    command += ["--minutes", arguments.minutes, "--updates", arguments.updates]
    command += ["--half", arguments.half, "--only", *arguments.only]
    command += ["--programs", *PROGRAMS[part]]
    if part == "peers" and arguments.stablehlo:
        command += ["--stablehlo", arguments.stablehlo]
    if code := subprocess.run(list(map(str, command)), stdout=sys.stderr).returncode:
        sys.exit(code)  # It has said why.
    return json.loads(file.read_text())["training"], shown(arguments.out)


def shown(folder: Path) -> str:
    """Return tables of the files that `on_gpu.py` wrote to a folder, those of one card in one."""
    cards: dict[str, dict[str, Results]] = {}
    for file in sorted(folder.glob("*.json")):
        results = json.loads(file.read_text())
        if isinstance(results, dict) and "training" in results:
            of_card = cards.setdefault(results["card"], {"training": [], "compiled_steps": []})
            for kind, own in of_card.items():
                own += results[kind]
    if not cards:
        return "No program was timed on a GPU yet."
    return "\n\n".join(f"{card}:\n\n{_of_card(**results)}" for card, results in cards.items())


def _of_card(training: Results, compiled_steps: Results) -> str:
    tables = [
        f"{title}:\n\n{_of_programs(training, show)}" for title, show in _SHOWN.items() if training
    ]
    if compiled_steps:
        rows = [[r["step"], r.get("failed") or f"{r['median_ms']:.3f}"] for r in compiled_steps]
        tables.append(table(["compiled step, timed by JAX", "median, ms"], rows))
    reasons = sorted({f"{r['program']}: {r['failed']}" for r in training if "failed" in r})
    if reasons:
        tables.append("Not measured:\n\n" + "\n".join(f"- {reason}" for reason in reasons))
    return "\n\n".join(tables)


def _of_programs(training: Results, show: Callable[[dict[str, Any]], str]) -> str:
    """Return a table with a row for each case and a column for each program."""
    names = [n for own in reversed(PROGRAMS.values()) for n in own]
    names = [name for name in names if any(r["program"] == name for r in training)]
    cells = {(r["case"], r["program"]): "-" if "failed" in r else show(r) for r in training}
    rows = [
        [case, *(cells.get((case, name), "") for name in names)]
        for case in dict.fromkeys(r["case"] for r in training)
        if any(cells.get((case, name), "-") != "-" for name in names)
    ]
    return table(["", *names], rows)


def _gib(result: dict[str, Any]) -> str:
    return f"{result['peak_bytes'] / 2**30:.2f}" if result["peak_bytes"] else "unknown"


_SHOWN: dict[str, Callable[[dict[str, Any]], str]] = {
    "Examples per second": lambda r: f"{r['examples_per_second']:.0f}",
    "Seconds from the start of the process to the end of the first update": lambda r: (
        f"{r['seconds_to_first_update']:.1f}"
    ),
    "Peak memory, GiB": _gib,
}
