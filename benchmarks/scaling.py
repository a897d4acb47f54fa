"""Measures the bytes sent and the time per update of several workers.

    python benchmarks/scaling.py bytes       # 3 minutes on 2 cores; preferably as root
    python benchmarks/scaling.py workers     # 8 minutes
    python benchmarks/scaling.py model       # less than a second

`bytes` trains BERT-Tiny on two workers with 1, 4 and 16 micro-steps per update, and reads from the
counters of the loopback interface how much the workers send per update. As root, the workers run in
their own network namespace, where no other process sends.

`workers` measures the seconds per update of one, two and three workers of BERT-Mini, each bound to
one core (workers share cores if there are fewer), and compares them with the model
t = a + b n + 2 (R - 1) / R r. Here n is the number of examples per worker, R the number of workers,
and r the time in which one worker sends and receives all gradients once. Workers on the same core
compute one after another. a and b are measured with two independent runs at the same time, because
cores share memory bandwidth.

`model` evaluates this model for many GPUs, with r computed from their bandwidth.

Each part writes scaling-<part>.json and prints a Markdown table.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import run_part, table

PROGRAM = [sys.executable, "-m", "bertaccum"]
OWN_NETWORK = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def prepared(folder: Path) -> Path:
    """Prepare the synthetic sample, and return its folder."""
    data = folder / "data"
    command = [*PROGRAM, "prepare", "--source", "sample", "--dev-fraction", "0.01"]
    command += ["--out", str(data)]
    subprocess.run(command, check=True, capture_output=True)
    return data


def train(data: Path, run: Path, preset: str, **options: object) -> list[str]:
    """Return the arguments of a run that only updates: no evaluations and no saved checkpoints."""
    values = {"data": data, "model": preset, "init_checkpoint": "none", "out": run}
    values |= {"eval_every": 10**6, "epochs": 10**5, "save_every": "9h", "cut": "count"} | options
    flags = ((f"--{key.replace('_', '-')}", str(value)) for key, value in values.items())
    return ["train", *(part for flag in flags for part in flag)]


def updates_of(run: Path) -> list[dict[str, Any]]:
    log = run / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


# --- Bytes ------------------------------------------------------------------------------

FROM, TO = 20, 220


def sent_bytes(process: int) -> int:
    """Return the number of bytes sent so far over the loopback interface of a process."""
    for line in Path(f"/proc/{process}/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise LookupError("no loopback interface was found")


def bytes_of(data: Path, run: Path, micro_batch: int) -> float:
    """Return the bytes that two workers send per update, averaged over about 200 updates."""
    options = {"target_batch": 32, "micro_batch": micro_batch, "max_updates": TO + 10}
    command = [
        *PROGRAM,
        "launch",
        "--workers",
        "2",
        "--",
        *train(data, run, "bert-tiny", **options),
    ]
    if not os.geteuid():
        command = OWN_NETWORK + command
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seen: dict[int, int] = {}
    try:
        while process.poll() is None and TO not in seen:
            done = len(updates_of(run))
            for mark in (FROM, TO):
                if done >= mark and mark not in seen:
                    seen[mark] = sent_bytes(process.pid)
                    seen[-mark] = done
            time.sleep(0.002)
    finally:
        process.terminate()
        process.communicate()
    return (seen[TO] - seen[FROM]) / (seen[-TO] - seen[-FROM])


def bytes_part(*_: Path) -> tuple[list[dict[str, Any]], str]:
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = prepared(folder)
        for steps in (1, 4, 16):
            sent = bytes_of(data, folder / f"run-{steps}", 16 // steps)
            results.append({"micro_steps": steps, "bytes": sent, "gradient_bytes": 4 * 557_698})
    rows = [
        [r["micro_steps"], f"{r['bytes'] / 1e6:.3f} MB", f"{r['bytes'] / r['gradient_bytes']:.3f}"]
        for r in results
    ]
    heads = ["micro-steps per worker", "sent per update by both", "as a multiple of the gradients"]
    return results, table(heads, rows)


# --- Time -------------------------------------------------------------------------------

UPDATES = 14


def seconds_of(
    data: Path, run: Path, workers: int, target_batch: int, side_by_side: bool = False
) -> float:
    """Return the median seconds per update, with each worker bound to one core."""
    options = {"target_batch": target_batch, "micro_batch": min(target_batch, 4)}
    options["max_updates"] = UPDATES
    command = train(data, run, "bert-mini", **options)
    if workers == 1:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        runs = [subprocess.Popen([*on_core(0), *command], **quiet)]
        if side_by_side:
            other = train(data, run.with_name(f"{run.name}-beside"), "bert-mini", **options)
            runs.append(subprocess.Popen([*on_core(1), *other], **quiet))
        if any([process.wait() for process in runs]):
            raise RuntimeError("a run failed")
    else:
        launched(command, workers)
    return statistics.median(update["seconds"] for update in updates_of(run)[3:])


def on_core(number: int) -> list[str]:
    return ["taskset", "--cpu-list", str(number % (os.cpu_count() or 1)), *PROGRAM]


def launched(command: list[str], workers: int) -> None:
    """Start workers like `bertaccum launch`, but bind each to one core."""
    from bertaccum.distribution.launcher import _environment, _free_ports

    addresses = [f"127.0.0.1:{port}" for port in _free_ports(workers)]
    processes = []
    for number in range(workers):
        processes.append(
            subprocess.Popen(
                [*on_core(number), *command],
                env=os.environ | _environment(number, addresses, []),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
    if any([process.wait() for process in processes]):
        raise RuntimeError("a worker failed")


def reduction_seconds(data: Path, folder: Path) -> float:
    """Return the seconds that one all-reduce of BERT-Mini's gradients takes.

    This is the difference between two workers with one example each and one worker with one.
    """
    together = seconds_of(data, folder / "two-1", 2, 2)
    return together - seconds_of(data, folder / "one-1", 1, 1, side_by_side=True)


def workers_part(*_: Path) -> tuple[list[dict[str, Any]], str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = prepared(folder)
        one = {n: seconds_of(data, folder / f"one-{n}", 1, n, True) for n in (8, 64)}
        slope = (one[64] - one[8]) / 56
        start, reduction = one[8] - 8 * slope, reduction_seconds(data, folder)
        card = Card(start, slope)
        results = []
        for workers, target in [*((2, n) for n in (16, 32, 64, 128)), (3, 24), (3, 96)]:
            measured = seconds_of(data, folder / f"{workers}-{target}", workers, target)
            # The number of workers that share a core and compute one after another.
            turns = math.ceil(workers / (os.cpu_count() or 1))
            rounds = 2 * (workers - 1) / workers
            model = turns * card.seconds(target / workers) + rounds * reduction
            alone = seconds_of(data, folder / f"alone-{workers}-{target}", 1, target)
            results.append(
                {"workers": workers, "target_batch": target, "measured": measured, "model": model}
                | {"alone": alone, "start": start, "slope": slope, "reduction": reduction}
            )
    rows = [
        [
            r["workers"],
            r["target_batch"],
            f"{r['alone']:.3f}",
            f"{r['measured']:.3f}",
            f"{r['model']:.3f}",
            f"{r['model'] / r['measured']:.2f}",
            f"{r['alone'] / r['measured']:.2f}",
        ]
        for r in results
    ]
    heads = ["workers", "target batch", "one worker, s", "all workers, s", "model, s"]
    text = table([*heads, "model/measured", "speed-up"], rows)
    return results, text + (
        f"\n\na = {1e3 * start:.0f} ms, b = {1e3 * slope:.1f} ms per example,"
        f" r = {1e3 * reduction:.0f} ms."
    )


# --- Model of many GPUs -----------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """Time that a replica needs for n examples: `start + slope * n` seconds."""

    start: float
    slope: float

    def seconds(self, examples: float) -> float:
        return self.start + self.slope * examples


# BERT-Base in mixed precision has 110 million gradients of 4 bytes. The GPU is assumed to update
# weights at 1 TB/s and to compute 40 TFLOP/s, with 6 FLOP per token and parameter of the layers.
PAPER = Card(start=110e6 * 28 / 1e12, slope=6 * 85e6 * 128 / 40e12)
GRADIENT_BYTES = 4 * 110e6
MICRO_BATCH, MICRO_STEPS = 8, (1, 4, 16)
# Latency of one message between two hosts.
LATENCY_SECONDS = 20e-6


def reduced_seconds(cards: int, gigabits: float) -> float:
    """Return the seconds of a ring all-reduce over R cards.

    It takes 2 (R - 1) messages one after another, each with 1 / R of the gradients.
    """
    messages = 2 * (cards - 1)
    return messages * (LATENCY_SECONDS + GRADIENT_BYTES / cards / (gigabits * 1e9 / 8))


def model_part(*_: Path) -> tuple[list[dict[str, Any]], str]:
    results, rows = [], []
    for cards in (8, 64, 512):
        for gigabits in (10, 100, 400):
            reduced = reduced_seconds(cards, gigabits)
            row = {"cards": cards, "gigabits": gigabits, "reduced": reduced}
            for steps in MICRO_STEPS:
                computed = PAPER.seconds(steps * MICRO_BATCH)
                row[f"examples_per_second_{steps}"] = (
                    cards * steps * MICRO_BATCH / (computed + reduced)
                )
                row[f"efficiency_{steps}"] = computed / (computed + reduced)
            results.append(row)
            rows.append(
                [cards, gigabits, f"{1e3 * reduced:.0f} ms"]
                + [
                    f"{row[f'examples_per_second_{steps}']:,.0f} ({row[f'efficiency_{steps}']:.0%})"
                    for steps in MICRO_STEPS
                ]
            )
    heads = [f"{steps} x {MICRO_BATCH} per card, examples/s" for steps in MICRO_STEPS]
    return results, table(["cards", "Gb/s", "all-reduce", *heads], rows)


if __name__ == "__main__":
    parts = {"bytes": bytes_part, "workers": workers_part, "model": model_part}
    run_part(__doc__.splitlines()[0], "scaling", parts)
