"""Measures the work of the host: between updates, at the start, and as runs grow.

    python benchmarks/host.py windows --shared ../shared   # 3 minutes on 2 cores
    python benchmarks/host.py start --shared ../shared     # 4 minutes
    python benchmarks/host.py growth                       # 8 minutes

`windows` measures how long an update waits while its window is read and cut. `start` measures the
seconds from the command to the first update of BERT-Small, with tokens and plan in the cache.
`growth` measures the time per example and the host's memory for different target batches and
numbers of rows and updates, with BERT-Tiny. Each part writes host-<part>.json and prints a Markdown
table.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import psutil
from speed import MICRO_BATCH, TARGET, WINDOWS, build
from tools import prepared_yelp, random_store, run_part, table, train_command, yelp_stores

from bertaccum.data.window_cuts import make_cut
from bertaccum.data.windows import make_window, window_rows

# --- Between updates --------------------------------------------------------------------


def windows(shared: Path, out: Path) -> tuple[list[dict[str, Any]], str]:
    """Compare the time to read and cut a window with the time of its update."""
    _, _, update = build("float32")
    results = []
    for length, store in yelp_stores(shared, out, (128, 512)):
        cut, spent = make_cut("cost", store.largest), []
        for number in range(WINDOWS + 1):
            start = time.perf_counter()
            rows = window_rows(number, len(store), TARGET, 0)[1]
            window = make_window(store, rows, MICRO_BATCH, cut)
            made = time.perf_counter()
            update(window)
            spent.append((made - start, time.perf_counter() - made))
        making, running = (statistics.median(t[1:]) for t in zip(*spent, strict=True))
        results.append({"length": length, "window": making, "update": running})
    rows = [
        [
            r["length"],
            f"{1e3 * r['window']:.1f} ms",
            f"{r['update']:.2f} s",
            f"{r['window'] / r['update']:.2%}",
        ]
        for r in results
    ]
    return results, table(["length", "making a window", "update", "share of waiting"], rows)


# --- Starting ---------------------------------------------------------------------------

STARTS = 5


def start(shared: Path, out: Path) -> tuple[list[dict[str, Any]], str]:
    """Measure starts of the command line; the first start fills the cache and is not counted."""
    data, seconds = prepared_yelp(shared, out), []
    for _ in range(STARTS + 1):
        run = Path(tempfile.mkdtemp(dir=out)) / "run"
        command = [*train_command(shared, data, run, "bert-small"), "--max-updates", "1000"]
        begin = time.perf_counter()
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            metrics = run / "metrics.jsonl"
            while not (metrics.exists() and metrics.stat().st_size):
                if process.poll() is not None:
                    sys.exit(f"exited early with status {process.returncode}: {' '.join(command)}")
                time.sleep(0.05)
            seconds.append(time.perf_counter() - begin)
            process.kill()
    counted = seconds[1:]
    result = {"first": seconds[0], "later": counted, "median": statistics.median(counted)}
    rows = [[f"{seconds[0]:.0f} s", f"{result['median']:.1f} s", f"{max(counted):.1f} s"]]
    heads = ["with an empty cache", "later, median", f"slowest of {STARTS}"]
    return [result], table(heads, rows)


# --- Growth -----------------------------------------------------------------------------

TARGETS = (32, 128, 512, 4096)
ROWS = (1_000, 30_000, 560_000)
LONG_RUN = 10_000


def growth(*_: Path) -> tuple[list[dict[str, Any]], str]:
    """Measure time and memory on random tokens, with BERT-Tiny so that the host's share shows."""
    results, rows = [], []
    for target in TARGETS:
        result = run_of(max(2048 // target, 3), target, rows=30_000)
        results.append({"target_batch": target} | result)
        rows.append([f"target batch {target}", *cells(result)])
    for size in ROWS:
        result = run_of(100, TARGET, rows=size)
        results.append({"rows": size} | result)
        rows.append([f"{size:,} rows", *cells(result)])
    result = run_of(LONG_RUN, 4, rows=1_000, length=8)
    results.append({"updates": LONG_RUN} | result)
    rows.append([f"{LONG_RUN:,} updates of 4 short examples", *cells(result)])
    heads = ["", "per example, first half", "second half", "host memory, first half", "growth"]
    return results, table(heads, rows)


def cells(result: dict[str, float]) -> list[str]:
    return [
        f"{1e3 * result['early_seconds']:.2f} ms",
        f"{1e3 * result['late_seconds']:.2f} ms",
        f"{result['early_mib']:.0f} MiB",
        f"{result['late_mib'] - result['early_mib']:+.0f} MiB",
    ]


def run_of(updates: int, target: int, rows: int, length: int = 32) -> dict[str, float]:
    """Return median seconds per example and resident MiB for both halves of a run."""
    store = random_store(rows, length)
    _, _, update = build("float32", "bert-tiny", max(target // MICRO_BATCH, 2))
    cut = make_cut("cost", (1, length))
    seconds, memory = [], []
    for number in range(-2, updates):
        begin = time.perf_counter()
        chosen = window_rows(max(number, 0), rows, target, 0)[1]
        update(make_window(store, chosen, MICRO_BATCH, cut))
        if number >= 0:  # The two updates before these include tracing.
            seconds.append((time.perf_counter() - begin) / len(chosen))
            memory.append(psutil.Process().memory_info().rss / 2**20)
    half = updates // 2
    return {
        "early_seconds": statistics.median(seconds[:half]),
        "late_seconds": statistics.median(seconds[half:]),
        "early_mib": memory[half],
        "late_mib": memory[-1],
    }


if __name__ == "__main__":
    parts = {"windows": windows, "start": start, "growth": growth}
    run_part(__doc__.splitlines()[0], "host", parts)
