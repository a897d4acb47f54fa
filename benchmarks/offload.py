"""Measures training with moments and accumulators in host memory.

    python benchmarks/offload.py table                         # 60 minutes on 2 cores
    python benchmarks/offload.py price                         # 10 minutes
    python benchmarks/offload.py runs --shared ../shared       # 15 minutes

`table` measures the peak memory and the time of an update with recomputation, one example at a
time, for presets, lengths, precisions and what is offloaded, and the error of the planner's
prediction for three examples at a time. Each value is the median of three updates. `price`
compares the time of an update of BERT-Base (4 x 8, 128 tokens); the ways to offload take turns.
`runs` trains on real reviews under a memory limit and without one, and compares the checkpoints.
`table` and `price` use the GPU if there is one; on a CPU, the allocator that TensorFlow uses on
GPUs simulates its memory.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from tools import (
    Results,
    difference,
    prepared_yelp,
    preset_job,
    run_part,
    say,
    table,
    train_command,
)

from bertaccum.options.commands import TrainConfig
from bertaccum.options.offload_rungs import OFFLOAD
from bertaccum.planning.measurement import MeasurementProcess, MeasurementRequest
from bertaccum.planning.plan import Saving, SearchSpace
from bertaccum.planning.search import search
from bertaccum.system.progress import silent
from bertaccum.system.sizes import format_size, parse_size

PRESETS = ("bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base", "bert-large")
LENGTHS = (128, 512)
MEASURED_PRECISIONS = ("float32", "mixed_bfloat16")
MEMORY = "14GiB"
PREDICTED = 3
ROUNDS = 7


def measured(_: Path, out: Path) -> tuple[Results, str]:
    results = []
    for preset in PRESETS:
        for precision in MEASURED_PRECISIONS:
            for length in LENGTHS:
                results += of_preset(preset, precision, length)
                (out / "partial.json").write_text(json.dumps(results))
    rows = [
        [
            f"{r['preset']}, {r['length']}",
            r["precision"],
            *(format_size(r[what]["peak_bytes"]) for what in OFFLOAD),
            *(f"{r[what]['seconds']:.2f}" for what in OFFLOAD),
            f"{max(abs(r[what]['error']) for what in OFFLOAD):.1%}",
        ]
        for r in results
    ]
    peaks, times = ([f"{kind}, {what}" for what in OFFLOAD] for kind in ("peak", "s"))
    return results, table(["model, length", "precision", *peaks, *times, "largest error"], rows)


def of_preset(preset: str, precision: str, length: int) -> Results:
    """Return peak, seconds of an update of two micro-steps, and error of the predicted peak."""
    config = TrainConfig(precision=precision, max_seq_length=length, offload="none")
    result: dict[str, Any] = {"preset": preset, "precision": precision, "length": length}
    with MeasurementProcess(silent, {}) as worker:
        built = worker.build(preset_job(preset, config, parse_size(MEMORY), steps=2))
        assert built is not None
        for what in OFFLOAD:
            saving = Saving("layer", what)
            space = SearchSpace(
                target_batch=32,
                sizes=[1],
                savings=[saving],
                largest=(1, length),
                windows=[[(1, length)] * 32],
                limit_bytes=1e18,
                accumulator_bytes=built["static_bytes"]["accumulators"],
                speed_seconds=0.0,
            )
            cost = search(worker, space).costs[saving]
            two = MeasurementRequest([[(1, length)]] * 2, *saving)
            several = [worker.run(two) for _ in range(3)]
            larger = MeasurementRequest([[(1, length)] * PREDICTED], *saving)
            more = [worker.run(larger) for _ in range(3)]
            measured = statistics.median(one.peak_bytes for one in more if one)
            error = cost.peak_bytes(PREDICTED, length) / measured - 1
            result[what] = {
                "peak_bytes": statistics.median(one.peak_bytes for one in several if one),
                "seconds": statistics.median(one.seconds for one in several if one),
                "error": error,
            }
            say(f"{preset} {precision} {length} {what}: {result[what]}")
    return [result]


def price(_: Path, __: Path) -> tuple[Results, str]:
    window = [[(1, 128)] * 8] * 4
    config = TrainConfig(precision="float32", max_seq_length=128)
    workers = {what: MeasurementProcess(silent, {}) for what in OFFLOAD}
    seconds: dict[str, list[float]] = {what: [] for what in OFFLOAD}
    peaks: dict[str, float] = {}
    try:
        for what, worker in workers.items():
            chosen = dataclasses.replace(config, offload=what)
            assert worker.build(preset_job("bert-base", chosen, parse_size("6GiB"), steps=2))
            worker.run(MeasurementRequest(window, "layer", what))  # This traces the update.
        for _ in range(ROUNDS):
            for what, worker in workers.items():
                one = worker.run(MeasurementRequest(window, "layer", what))
                assert one is not None
                seconds[what].append(one.seconds)
                peaks[what] = one.peak_bytes
    finally:
        for worker in workers.values():
            worker.end()
    ratios = {
        what: statistics.median(np.array(seconds[what]) / np.array(seconds["none"]))
        for what in OFFLOAD
    }
    results = [
        {"offload": what, "seconds": seconds[what], "ratio": ratios[what], "peak": peaks[what]}
        for what in OFFLOAD
    ]
    rows = [
        [
            r["offload"],
            format_size(r["peak"]),
            f"{statistics.median(r['seconds']):.2f}",
            f"{r['ratio']:.3f}",
        ]
        for r in results
    ]
    return results, table(["offload", "peak", "s per update", "ratio"], rows)


# Preset, updates, limit; the length is 512.
RUNS = [("bert-base", 10, "560MiB"), ("bert-large", 2, "1536MiB")]


def runs(shared: Path, out: Path) -> tuple[Results, str]:
    data, results = prepared_yelp(shared, out), []
    for preset, updates, limit in RUNS:
        found: dict[str, Any] = {"preset": preset, "updates": updates, "limit": limit}
        folders = []
        for name, how in (
            ("limited", ["--memory-limit", limit]),
            ("unlimited", ["--memory-limit", MEMORY, "--recompute", "layer", "--micro-batch", "1"]),
        ):
            run = Path(tempfile.mkdtemp(dir=out)) / "run"
            options = ["--max-seq-length", "512", "--target-batch", "32", "--max-updates", updates]
            options += ["--eval-every", 1000, *how, "--json"]
            command = train_command(shared, data, run, preset) + list(map(str, options))
            done = subprocess.run(command, capture_output=True, text=True)
            say(f"{preset} {name}: {done.stdout or done.stderr}")
            summary = json.loads(done.stdout)
            keys = ("micro_batch", "recompute", "offload", "peak_memory_bytes", "training_seconds")
            found[name] = {key: summary[key] for key in (*keys, "final_loss")}
            folders.append(run)
        found["difference"] = difference(*folders)
        results.append(found)
    rows = [
        [
            f"{r['preset']}, {r['updates']} updates",
            r["limit"],
            format_size(r["limited"]["peak_memory_bytes"]),
            format_size(r["unlimited"]["peak_memory_bytes"]),
            f"{r['limited']['training_seconds']:.0f} s",
            f"{r['unlimited']['training_seconds']:.0f} s",
            f"{r['difference']:.1e}",
        ]
        for r in results
    ]
    heads = ["run", "limit", "peak", "peak without limit", "time", "time without limit"]
    return results, table([*heads, "largest difference"], rows)


if __name__ == "__main__":
    parts = {"table": measured, "price": price, "runs": runs}
    run_part(__doc__.splitlines()[0], "offload", parts)
