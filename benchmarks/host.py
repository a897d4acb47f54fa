"""Measures the work of the host: between updates, at the start, and as runs grow.

    python benchmarks/host.py windows --shared ../shared   # 3 minutes on 2 cores
    python benchmarks/host.py idle --shared ../shared      # 3 minutes
    python benchmarks/host.py start --shared ../shared     # 5 minutes
    python benchmarks/host.py growth                       # 8 minutes

`windows` measures how long it takes to read and cut the window of an update. `idle` measures how
long the device waits between two updates of a run that is shown as on a terminal, and how long it
would wait if each update started only after the last one was logged and shown. `start` measures
whole commands with BERT-Small, beside the import of TensorFlow: the prediction of one text, the
evaluation of 100 texts, and training up to its first update with tokens and plan in the cache.
`growth` measures the time per example and the host's memory for different target batches and
numbers of rows and updates, with BERT-Tiny. Each part writes host-<part>.json and prints a Markdown
table.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import psutil
from rich.console import Console
from speed import MICRO_BATCH, TARGET, WINDOWS, build
from tools import (
    prepared_yelp,
    random_run,
    random_store,
    run_part,
    table,
    train_command,
    vocabulary_file,
    yelp_stores,
)

import bertaccum
from bertaccum.cli.display.terminal_view import Live
from bertaccum.data.window_cuts import make_cut
from bertaccum.data.windows import Window, make_window, window_rows
from bertaccum.training.loop import Run
from bertaccum.training.seed_sweep import free_models
from bertaccum.training.updater import Updater

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


IDLE_UPDATES = 200


def idle(shared: Path, out: Path) -> tuple[list[dict[str, Any]], str]:
    """Measure the time from the end of each update to the start of the next one, in BERT-Tiny."""
    options: dict[str, Any] = {"data": prepared_yelp(shared, out), "vocab": vocabulary_file(shared)}
    options |= {"model": "bert-tiny", "init_checkpoint": "none", "target_batch": TARGET}
    options |= {"micro_batch": MICRO_BATCH, "max_updates": IDLE_UPDATES}
    ways: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for early in (False, True) * 2:
        spans = spans_of(options | {"out": Path(tempfile.mkdtemp(dir=out)) / "run"}, early)
        # The first update includes tracing.
        for (start, end), (after, _) in itertools.pairwise(spans[1:]):
            ways[early].append((end - start, after - end))
    results, rows = [], []
    for early, found in ways.items():
        update, wait = (statistics.median(seconds) for seconds in zip(*found, strict=True))
        results.append({"early": early, "update_and_wait": found})
        share = wait / (update + wait)
        cells = [f"{1e3 * update:.0f} ms", f"{1e3 * wait:.2f} ms", f"{share:.2%}"]
        rows.append(["while it is logged" if early else "after it was logged", *cells])
    return results, table(["the update after it starts", "update", "wait", "share"], rows)


def spans_of(options: dict[str, Any], early: bool) -> list[tuple[float, float]]:
    """Train, and return the start and the end of each update, in seconds.

    Args:
      options: Options of the run.
      early: Whether updates may start before the update before is logged, as usual.
    """
    make, may_start, spans = Updater._make_update, Run._next_may_start, list[tuple[float, float]]()

    def making(updater: Updater) -> Callable[[list[Window]], dict[str, Any]]:
        update = make(updater)

        def timed(windows: list[Window]) -> dict[str, Any]:
            start = time.perf_counter()
            results = update(windows)
            spans.append((start, time.perf_counter()))
            return results

        return timed

    def deciding(run: Run) -> bool:
        return may_start(run) and early

    patches = {Updater: ("_make_update", making), Run: ("_next_may_start", deciding)}
    with contextlib.ExitStack() as stack:
        terminal = stack.enter_context(Path(os.devnull).open("w"))
        for owner, (name, value) in patches.items():
            stack.enter_context(mock.patch.object(owner, name, value))
        view = stack.enter_context(Live(Console(file=terminal, force_terminal=True)))
        texts = {k: v if isinstance(v, int) else str(v) for k, v in options.items()}
        for event in bertaccum.training_events(progress=view, **texts):
            view.event(event)
    free_models()
    return spans


# --- Starting ---------------------------------------------------------------------------

STARTS = 5
TEXTS = 100


def start(shared: Path, out: Path) -> tuple[list[dict[str, Any]], str]:
    """Measure whole commands; the first start fills the caches and is not counted."""
    data = prepared_yelp(shared, out)
    run = Path(tempfile.mkdtemp(dir=out)) / "run"
    first = first_update(shared, data, run)
    rows = (data / "test.tsv").read_text().splitlines(keepends=True)[: 1 + TEXTS]
    (out / "some.tsv").write_text("".join(rows))
    tool = [sys.executable, "-m", "bertaccum"]
    of_run = ["--run", str(random_run(shared, out, "bert-small"))]
    ways: dict[str, Callable[[], float]] = {
        "import tensorflow": lambda: command([sys.executable, "-c", "import tensorflow"]),
        "predict, 1 text": lambda: command([*tool, "predict", *of_run, "The food was great."]),
        f"eval, {TEXTS} texts": lambda: command(
            [*tool, "eval", *of_run, "--file", str(out / "some.tsv")]
        ),
        "train, to the first update": lambda: first_update(
            shared, data, Path(tempfile.mkdtemp(dir=out)) / "run"
        ),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(STARTS):
        for name, way in ways.items():
            seconds[name].append(way())
    base = statistics.median(seconds["import tensorflow"])
    results = [{"what": name, "seconds": found} for name, found in seconds.items()]
    table_rows = [
        [name, f"{statistics.median(found):.1f} s", f"{statistics.median(found) / base:.2f}"]
        for name, found in seconds.items()
    ]
    table_rows.append(["train, with empty caches", f"{first:.1f} s", f"{first / base:.2f}"])
    return results, table(["", "median", "ratio to the import"], table_rows)


def command(arguments: list[str]) -> float:
    """Run a command and return its seconds."""
    begin = time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def first_update(shared: Path, data: Path, run: Path) -> float:
    """Start a training run and return the seconds until its first update is written."""
    arguments = [*train_command(shared, data, run, "bert-small"), "--max-updates", "1000"]
    begin, metrics = time.perf_counter(), run / "metrics.jsonl"
    with subprocess.Popen(arguments, stderr=subprocess.DEVNULL) as process:
        while not (metrics.exists() and metrics.stat().st_size):
            if process.poll() is not None:
                sys.exit(f"exited early with status {process.returncode}: {' '.join(arguments)}")
            time.sleep(0.05)
        seconds = time.perf_counter() - begin
        process.kill()
    return seconds


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
    parts = {"windows": windows, "idle": idle, "start": start, "growth": growth}
    run_part(__doc__.splitlines()[0], "host", parts)
