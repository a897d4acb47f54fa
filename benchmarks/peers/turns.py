"""Taking turns: a peer trains so many updates when it is told to, and says how long they took.

Standard library only: this is imported in every peer's environment.
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
    """The training side. `updated` is called after each update, wherever the peer's loop allows.

    A line `{"updates": n}` on standard input starts a turn; its answer is a line with the
    seconds. At the end of the input the process ends.
    """

    def __init__(self) -> None:
        # What libraries print must not get among the answers.
        self.answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self.left = 0
        self.start = 0.0

    def wait(self) -> None:
        """Waits for the first turn; called when all is loaded."""
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        self.left = json.loads(line)["updates"]
        self.start = time.perf_counter()

    def updated(self) -> None:
        """An update is finished."""
        self.left -= 1
        if self.left == 0:
            seconds = time.perf_counter() - self.start
            self.answers.write(json.dumps({"seconds": seconds}) + "\n")
            self.wait()


def job() -> dict[str, Any]:
    """What is to be trained: the one argument of a peer's script.

    `train` (TSV), `vocab`, `encoder` (dimensions), `length`, `precision` (float32 or
    bfloat16), `micro_batch`, `accumulation_steps`, `rows` (reviews that are read).
    """
    return json.loads(sys.argv[1])


def reviews(job: dict[str, Any]) -> tuple[list[str], list[int]]:
    """The first rows of the TSV."""
    csv.field_size_limit(2**30)
    with Path(job["train"]).open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        rows = [row for row, _ in zip(lines, range(job["rows"]), strict=False)]
    return [row["text"] for row in rows], [int(row["label"]) for row in rows]
