"""What shows only on a GPU: memory and speed with the optimizer's moments on the host.

    python benchmarks/gpu.py --out build/gpu      # some minutes

For each model and precision, one update of 4 micro-batches of 8 at length 128, with and
without `--offload-optimizer`: bytes always in use, peak, seconds (median of the repeats).
Writes gpu.json and prints a Markdown table. `--on-cpu` runs it where there is no GPU, to see
that it works: there, host and device are the same memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tools import preset_job, table

from bertaccum.config import TrainConfig
from bertaccum.memory import device
from bertaccum.memory.search import Trial
from bertaccum.progress import silent
from bertaccum.sizes import format_size, parse_size
from bertaccum.training.worker import Worker

MODELS = ("bert-small", "bert-base", "bert-large")
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
WINDOW = [[128] * 8] * 4
REPEATS = 5


def measure(model: str, precision: str, offload: bool, limit: int | None) -> dict[str, Any]:
    config = TrainConfig(precision=precision, offload_optimizer=offload, recompute="none")
    job = preset_job(model, config, limit, len(WINDOW))
    result = {"model": model, "precision": precision, "offload": offload}
    with Worker(silent, {}) as worker:
        built = worker.build(job)
        ran = [worker.run(Trial(WINDOW, "none")) for _ in range(REPEATS + 1)] if built else []
    if built is None or None in ran:
        return result | {"out_of_memory": True}
    timed = [one for one in ran[1:] if one is not None]  # The first time it is traced.
    return result | {
        "device": built["device"],
        "resting_bytes": built["resting_bytes"],
        "peak_bytes": max(one.peak_bytes for one in timed),
        "seconds": statistics.median(one.seconds for one in timed),
    }


def row(r: dict[str, Any]) -> list[str]:
    figures = ["out of memory", "", ""]
    if "seconds" in r:
        sizes = [format_size(r["resting_bytes"]), format_size(r["peak_bytes"])]
        figures = [*sizes, f"{r['seconds']:.3f}"]
    return [r["model"], r["precision"], "host" if r["offload"] else "device", *figures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--on-cpu", action="store_true")
    arguments = parser.parse_args()
    here = device.device_name()
    if here == "CPU" and not arguments.on_cpu:
        sys.exit("there is no GPU here; --on-cpu runs it all the same")
    limit = parse_size("8GiB") if here == "CPU" else None
    results = []
    for model in arguments.models:
        for precision in arguments.precisions:
            for offload in (False, True):
                results.append(measure(model, precision, offload, limit))
                print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "gpu.json").write_text(json.dumps(results, indent=2) + "\n")
    heads = ["model", "precision", "moments", "in use", "peak", "s an update"]
    print(table(heads, [row(r) for r in results]))


if __name__ == "__main__":
    main()
