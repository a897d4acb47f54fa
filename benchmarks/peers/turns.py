"""Lets a peer take turns: it trains a number of updates on request, and reports their time.

Imports the standard library only, because every peer's environment imports this file.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from pathlib import Path
from typing import Any


class Turns:
    """The peer's end of the protocol.

    A line `{"updates": n}` on standard input starts a turn, and a line with its seconds answers it.
    The process exits at the end of the input. The peer's training loop must call `updated` after
    each update.
    """

    def __init__(self) -> None:
        # Libraries that print to stdout must not mix with the answers.
        self.answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self.left = 0
        self.start = 0.0

    def wait(self) -> None:
        """Wait for the next turn. The peer calls this once, when it is ready to train."""
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        self.left = json.loads(line)["updates"]
        self.start = time.perf_counter()

    def updated(self) -> None:
        """Count an update, and answer when the turn is finished."""
        self.left -= 1
        if self.left == 0:
            seconds = time.perf_counter() - self.start
            self.answers.write(json.dumps({"seconds": seconds}) + "\n")
            self.wait()


def job() -> dict[str, Any]:
    """Return the task, which is the only argument of a peer's script.

    Its entries are `train` (a TSV), `vocab`, `encoder` (dimensions), `length`, `precision` (float32
    or bfloat16), `micro_batch`, `accumulation_steps`, `rows` (number of reviews to read) and
    `dropout`.
    """
    return json.loads(sys.argv[1])


def reviews(job: dict[str, Any]) -> tuple[list[str], list[int]]:
    """Return the texts and labels of the first rows of the TSV."""
    csv.field_size_limit(2**30)
    with Path(job["train"]).open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        rows = [row for row, _ in zip(lines, range(job["rows"]), strict=False)]
    return [row["text"] for row in rows], [int(row["label"]) for row in rows]
