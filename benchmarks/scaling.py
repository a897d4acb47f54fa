"""Several workers: bytes on the wire, and time, per update.

    python benchmarks/scaling.py bytes       # 3 minutes on 2 cores; best as root
    python benchmarks/scaling.py workers     # 8 minutes
    python benchmarks/scaling.py model       # at once

`bytes`: what two workers of BERT-Tiny send each other per update, by the counters of the loopback
interface (as root in a network namespace of their own, where nobody else sends), cut into 1, 4 and
16 micro-steps. `workers`: seconds
per update of one, two and three workers of BERT-Mini, each on one core (of which there may be
fewer), beside what a model of it says: t = a + b n + 2 (R - 1) / R r, n the examples of a share,
R the workers, r the time in which one worker sends and gets all gradients once; shares on one core
come one after the other. a and b are of two runs side by side that have nothing to do with each
other: the cores share their memory, and perhaps more. `model`: the same for many cards, with r
from their bandwidth. Each writes scaling-<part>.json and prints a Markdown table.
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
    """A sample of reviews in a folder."""
    data = folder / "data"
    command = [*PROGRAM, "prepare", "--source", "sample", "--out", str(data)]
    subprocess.run(command, check=True, capture_output=True)
    return data


def train(data: Path, run: Path, preset: str, **options: object) -> list[str]:
    """The command line of a run that is only about its updates."""
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
    """What has been sent over the loopback interface that a process sees."""
    for line in Path(f"/proc/{process}/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise LookupError("there is no loopback interface")


def bytes_of(data: Path, run: Path, micro_batch: int) -> float:
    """Bytes per update of two workers, between two updates far apart."""
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
    heads = ["micro-steps of a worker", "sent per update, both together", "in gradients"]
    return results, table(heads, rows)


# --- Time -------------------------------------------------------------------------------

UPDATES = 14


def seconds_of(
    data: Path, run: Path, workers: int, target_batch: int, side_by_side: bool = False
) -> float:
    """Median seconds of an update, each worker on a core of its own."""
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
    """As `bertaccum launch`, which does not pin, but each on its core."""
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
    """One reduction of BERT-Mini's gradients: of two workers with one example, less one's."""
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
            # What of the shares one core has to do, one after the other.
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
    heads = ["workers", "target batch", "one worker, s", "so many, s", "model, s"]
    text = table([*heads, "model/measured", "speed-up"], rows)
    return results, text + (
        f"\n\na = {1e3 * start:.0f} ms, b = {1e3 * slope:.1f} ms an example,"
        f" r = {1e3 * reduction:.0f} ms."
    )


# --- On paper ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """What a replica needs for a share of n examples: `start + slope * n` seconds."""

    start: float
    slope: float

    def seconds(self, examples: float) -> float:
        return self.start + self.slope * examples


# BERT-Base in mixed precision: 110 million gradients of 4 bytes; a card that gets 40 TFLOP/s out
# of 6 FLOP a parameter of its layers and token; the weights' update at 1 TB/s.
PAPER = Card(start=110e6 * 28 / 1e12, slope=6 * 85e6 * 128 / 40e12)
GRADIENT_BYTES = 4 * 110e6
MICRO_BATCH, MICRO_STEPS = 8, (1, 4, 16)
# One message between two hosts.
LATENCY_SECONDS = 20e-6


def reduced_seconds(cards: int, gigabits: float) -> float:
    """A ring's all-reduce: 2 (R - 1) messages, each of one R-th of the gradients."""
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
    heads = [f"{steps} x {MICRO_BATCH} a card, examples/s" for steps in MICRO_STEPS]
    return results, table(["cards", "Gb/s", "a reduction", *heads], rows)


if __name__ == "__main__":
    parts = {"bytes": bytes_part, "workers": workers_part, "model": model_part}
    run_part(__doc__.splitlines()[0], "scaling", parts)
