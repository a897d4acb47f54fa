"""Lets a peer take turns: it trains a number of updates on request, and reports their time.

Imports only the standard library and NumPy, because every peer's environment imports this file.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Turns:
    """The peer's end of the protocol.

    A line `{"updates": n}` on standard input starts a turn, and a line with its seconds answers it.
    A turn of no updates is answered as soon as the peer is ready to train. The process exits at the
    end of the input. The peer's training loop must call `updated` after each update.

    Args:
      settle: A function that waits until the device has finished its work, and returns the peak
        memory of the device in bytes, or None if it is unknown.
    """

    def __init__(self, settle: Callable[[], int | None] = lambda: None) -> None:
        # Libraries that print to stdout must not mix with the answers.
        self.answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self.settle = settle
        self.left = 0
        self.start = 0.0

    def wait(self) -> None:
        """Wait for the next turn. The peer calls this once, when it is ready to train."""
        while not self.left:
            line = sys.stdin.readline()
            if not line:
                os._exit(0)
            self.left = json.loads(line)["updates"]
            self.start = time.perf_counter()
            if not self.left:
                self._answer(None)  # Reading the peak could start a library that is not set up yet.

    def updated(self) -> None:
        """Count an update, and answer when the turn is finished."""
        self.left -= 1
        if self.left == 0:
            self._answer(self.settle())
            self.wait()

    def _answer(self, peak_bytes: int | None) -> None:
        answer = {"seconds": time.perf_counter() - self.start, "at": time.time()}
        self.answers.write(json.dumps(answer | {"peak_bytes": peak_bytes}) + "\n")


def job() -> dict[str, Any]:
    """Return the task, which is the only argument of a peer's script.

    Its entries are `train` (a TSV), `vocab`, `tokens` (the reviews as token IDs, an .npz file),
    `encoder` (dimensions), `length`, `precision` (float32, bfloat16 or float16), `micro_batch`,
    `accumulation_steps`, `rows` (number of reviews to read) and `dropout`.
    """
    return json.loads(sys.argv[1])


def reviews(job: dict[str, Any]) -> tuple[list[str], list[int]]:
    """Return the texts and labels of the first rows of the TSV."""
    csv.field_size_limit(2**30)
    with Path(job["train"]).open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        rows = [row for row, _ in zip(lines, range(job["rows"]), strict=False)]
    return [row["text"] for row in rows], [int(row["label"]) for row in rows]


def tokens(job: dict[str, Any]) -> tuple[list[Any], Any]:
    """Return the token IDs of each review, an array [length] int64 each, and the labels, [rows]."""
    import numpy as np

    with np.load(job["tokens"]) as file:
        ids, ends, labels = file["token_ids"].astype(np.int64), file["offsets"], file["labels"]
    return np.split(ids, ends[1:-1]), labels.astype(np.int64)


def padded(rows: list[Any], length: int) -> Any:
    """Return token IDs [rows, length] int32, padded with zeros."""
    import numpy as np

    return np.stack([np.pad(row, (0, length - len(row))) for row in rows]).astype(np.int32)
