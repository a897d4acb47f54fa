"""Measures the memory planner: its predictions, its choices, and runs under a memory limit.

    python benchmarks/memory.py limits --shared ../shared      # 55 minutes on 2 cores
    python benchmarks/memory.py choice --shared ../shared      # 5 minutes
    python benchmarks/memory.py prediction                     # 45 minutes

`limits` trains on real reviews with the command line, at target batch 32 and under memory limits.
`choice` compares the chosen plan with all plans that fit. `prediction` compares predicted and
measured peak memory of micro-batches that were not used in the fit. Each part writes
memory-<part>.json and prints a Markdown table. The benchmark runs on a CPU with the allocator that
TensorFlow uses on GPUs.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
from tools import prepared_yelp, preset_job, run_part, say, table, train_command, vocabulary_file

from bertaccum.bert.model_finder import find_model
from bertaccum.data.run_inputs import read_inputs
from bertaccum.data.window_cuts import make_cut
from bertaccum.options.commands import PRECISIONS, TrainConfig
from bertaccum.planning.measurement import MeasurementProcess, MeasurementRequest, PlanRequest
from bertaccum.planning.plan import Saving, SearchSpace, even_micro_batches
from bertaccum.planning.planner import find_fastest_plan
from bertaccum.planning.search import search
from bertaccum.system.progress import silent
from bertaccum.system.sizes import format_size, parse_size
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.prepared_labels import read_labels

MIB = 2**20
TARGET = 32


# --- Runs under a limit ---------------------------------------------------------------

# Preset, length, limit, `--offload`.
RUNS = [
    ("bert-small", 128, "200MiB", "auto"),
    ("bert-small", 128, "560MiB", "auto"),
    ("bert-base", 512, "560MiB", "auto"),
    ("bert-base", 512, "1900MiB", "auto"),
    ("bert-base", 512, "4GiB", "auto"),
    ("bert-large", 512, "1536MiB", "auto"),
    ("bert-large", 512, "3584MiB", "auto"),
    ("bert-large", 512, "3584MiB", "moments"),
    ("bert-large", 512, "7GiB", "auto"),
]


def limits(shared: Path, out: Path) -> tuple[list[dict[str, Any]], str]:
    data, results = prepared_yelp(shared, out), []
    for preset, length, limit, offload in RUNS:
        say(f"{preset}, {length}, {limit}, offload {offload}")
        run = Path(tempfile.mkdtemp(dir=out)) / "run"
        options = ["--max-seq-length", length, "--memory-limit", limit, "--target-batch", TARGET]
        options += ["--offload", offload]
        command = train_command(shared, data, run, preset) + list(map(str, options))
        command += ["--max-updates", "2", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        result = {"preset": preset, "length": length, "limit": limit}
        if done.returncode:
            say(done.stderr.strip().splitlines()[-1])
            results.append(result | {"error": done.stderr.strip().splitlines()[-1]})
            continue
        plan = json.loads((run / "plan.json").read_text())
        floor = sum(v for k, v in plan["static_bytes"].items() if k != "embeddings")
        results.append(result | {"floor": floor, "plan": plan} | json.loads(done.stdout))
    rows = [limit_row(r) for r in results]
    heads = ["model, length", "limit", "floor", "peak", "micro-batch", "examples/s"]
    return results, table(heads, rows)


def limit_row(r: dict[str, Any]) -> list[str]:
    name = f"{r['preset']}, {r['length']}"
    if "error" in r:
        return [name, r["limit"], "", r["error"], "", ""]
    how = f"{r['micro_batch']}" + (", recomputed" if r["recompute"] == "layer" else "")
    how += f", offload {r['offload']}" if r["offload"] != "none" else ""
    sizes = [format_size(r["floor"]), format_size(r["peak_memory_bytes"])]
    return [name, r["limit"], *sizes, how, f"{r['examples_per_second']:.2f}"]


# --- The chosen plan and all plans that fit -------------------------------------------

CHOICES = [("bert-small", 128, "560MiB"), ("bert-small", 128, "1GiB"), ("bert-mini", 256, "300MiB")]
ROUNDS = 3


def choice(shared: Path, out: Path) -> tuple[list[dict[str, Any]], str]:
    data, results = prepared_yelp(shared, out), []
    for preset, length, limit in CHOICES:
        config = TrainConfig(
            data=str(data),
            model=preset,
            init_checkpoint="none",
            vocab=str(vocabulary_file(shared)),
            max_seq_length=length,
            memory_limit=limit,
            target_batch=TARGET,
            offload="none",
        )
        tsvs = [data / "train.tsv", data / "dev.tsv"]
        task, source = make_task(read_labels(data)), find_model(config, silent)
        inputs = read_inputs(source, task, tsvs, config)
        request = PlanRequest(config, inputs)
        values = find_fastest_plan(request, silent, fresh=True).values
        rates = brute_force(request, values)
        mine = rates[values["micro_batch"], values["recompute"]]
        best = max(rates, key=lambda key: rates[key])
        result = {
            "preset": preset,
            "length": length,
            "limit": limit,
            "chosen": [values["micro_batch"], values["recompute"], mine],
            "best": [*best, rates[best]],
            "ratio": mine / rates[best],
            "rates": [[*key, rate] for key, rate in rates.items()],
            "planning_seconds": values["planning_seconds"],
        }
        say(json.dumps({k: v for k, v in result.items() if k != "rates"}))
        results.append(result)
    rows = [
        [
            f"{r['preset']}, {r['length']}",
            r["limit"],
            shown(r["chosen"]),
            shown(r["best"]),
            f"{r['ratio']:.3f}",
            f"{r['planning_seconds']:.0f} s",
        ]
        for r in results
    ]
    heads = ["model, length", "limit", "chosen", "fastest that fits", "ratio", "planning time"]
    return results, table(heads, rows)


def shown(way: list[Any]) -> str:
    return f"{way[0]}{', recomputed' if way[1] == 'layer' else ''}: {way[2]:.1f} examples/s"


def brute_force(request: PlanRequest, values: dict[str, Any]) -> dict[tuple[int, str], float]:
    """Return examples per second of each plan that fits without offloading.

    The plans take turns at whole windows, and the result is the median over windows.
    """
    fitting = [(c["micro_batch"], c["recompute"]) for c in values["candidates"] if c["fits"]]
    # The planner may skip recomputation as too slow; measure some of these plans as well.
    if all(kind == "none" for _, kind in fitting):
        fitting += [(size, "layer") for size, _ in fitting[::3]]
    fitting.sort(key=lambda way: way[1], reverse=True)
    seconds: dict[tuple[int, str], list[float]] = {way: [] for way in fitting}
    with MeasurementProcess(silent, {}) as worker:
        built = worker.build(request.job(request.config.offload, parse_size("9GiB"), 2))
        assert built is not None
        windows = built["windows"]
        for kind in ("none", "layer"):
            worker.run(MeasurementRequest([[(1, 8)]], kind))
        for number in range(ROUNDS):
            window = windows[number % len(windows)]
            for size, kind in fitting:
                cut = make_cut("count" if size == TARGET else "cost", tuple(built["largest"]))
                starts = cut(np.array(window), size)
                micro_batches = [window[a:b] for a, b in itertools.pairwise(starts)]
                measurement = worker.run(MeasurementRequest(micro_batches, kind))
                assert measurement is not None
                seconds[size, kind].append(measurement.seconds)
    return {way: TARGET / statistics.median(times) for way, times in seconds.items()}


# --- Predictions ------------------------------------------------------------------------

PRESETS = ("bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base")
LENGTHS = (64, 128, 256, 512)
# CPUs emulate float16, a hundred times slower than float32.
SLOW = {"mixed_float16": ("bert-tiny",)}
# Micro-batch sizes to predict: the fit does not measure them.
HELD_OUT = (3, 12)
MOST_BYTES, MOST_SECONDS = 6 * 2**30, 15.0


def prediction(_: Path, out: Path) -> tuple[list[dict[str, Any]], str]:
    results = []
    for precision in PRECISIONS:
        for preset in SLOW.get(precision, PRESETS):
            for length in LENGTHS:
                results += predicted(preset, precision, length)
    return results, errors_table(results)


def errors_table(results: list[dict[str, Any]]) -> str:
    """Return a Markdown table with the largest error of each model, precision and length."""
    rows = []
    for precision in PRECISIONS:
        for preset in dict.fromkeys(r["preset"] for r in results):
            own = [r for r in results if (r["preset"], r["precision"]) == (preset, precision)]
            cells = []
            for length in LENGTHS:
                errors = [abs(r["error"]) for r in own if r["length"] == length]
                cells.append(f"{max(errors):.1%}" if errors else "—")
            if own:
                rows.append([preset, precision, *cells, len(own)])
    heads = ["model", "precision", *(f"length {n}" for n in LENGTHS), "peaks compared"]
    return table(heads, rows)


def predicted(
    preset: str,
    precision: str,
    length: int,
    limit: int | None = parse_size("14GiB"),
    most_bytes: int = MOST_BYTES,
) -> list[dict[str, Any]]:
    """Return predicted and measured peaks, measured in a child process as the planner does.

    Args:
      preset: Name of the model's preset.
      precision: Precision of the model.
      length: Tokens of each example.
      limit: Memory limit in bytes, or None for all memory of the GPU.
      most_bytes: Largest peak to measure.
    """
    config = TrainConfig(precision=precision, max_seq_length=length)
    job = preset_job(preset, config, limit, steps=2)
    results = []
    with MeasurementProcess(silent, {}) as worker:
        built = worker.build(job)
        assert built is not None
        task = SearchSpace(
            target_batch=TARGET,
            sizes=even_micro_batches(TARGET),
            savings=[],
            largest=(1, length),
            windows=[[(1, length)] * TARGET],
            limit_bytes=1e18,
            accumulator_bytes=built["static_bytes"]["accumulators"],
            speed_seconds=0.0,
        )
        for kind in ("none", "layer"):
            saving = Saving(kind)
            cost = search(worker, dataclasses.replace(task, savings=[saving])).costs[saving]
            example_seconds = 0.0
            for size in HELD_OUT:
                expected = cost.peak_bytes(size, length)
                if expected > most_bytes or size * example_seconds > MOST_SECONDS:
                    continue
                # Peaks vary by one or two percent with the interleaving of threads.
                times = 3 if size * example_seconds < 5 else 1
                request = MeasurementRequest([[(1, length)] * size], kind)
                measurements = [worker.run(request) for _ in range(times)]
                example_seconds = max(one.seconds for one in measurements) / size
                measured = statistics.median(one.peak_bytes for one in measurements)
                error = expected / measured - 1
                say(f"{preset} {precision} {length} {kind} {size}: {error:+.2%}")
                results.append(
                    {"preset": preset, "precision": precision, "length": length}
                    | {"recompute": kind, "micro_batch": size, "error": error}
                    | {"predicted_bytes": expected, "measured_bytes": measured}
                )
    return results


if __name__ == "__main__":
    parts = {"limits": limits, "choice": choice, "prediction": prediction}
    run_part(__doc__.splitlines()[0], "memory", parts)
