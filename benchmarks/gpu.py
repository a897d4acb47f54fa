"""Measures memory and speed of a GPU in one run, and writes one JSON file.

    python benchmarks/gpu.py --shared ../shared      # 8 minutes

`offload` measures static bytes, peak bytes and seconds of an update (4 x 8, length 128), with the
optimizer's moments on the device and on the host. `prediction` compares the memory model of
`bertaccum plan` with the GPU's allocator. `accumulation`, `matmul` and `padding` are those of
benchmarks/speed.py; `padding` is skipped without the shared data. Writes gpu.json and prints
Markdown tables. `--on-cpu` tests the benchmark itself on a machine without a GPU, where host and
device share one memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from memory import errors_table, predicted
from tools import Results, preset_job, table

from bertaccum.config import PRECISIONS, TrainConfig
from bertaccum.planning import device_memory
from bertaccum.planning.measurement import MeasurementRequest
from bertaccum.planning.measurement_process import MeasurementProcess
from bertaccum.progress import silent
from bertaccum.sizes import format_size, parse_size

MODELS = ("bert-small", "bert-base", "bert-large")
LENGTHS = (128, 512)
WINDOW = [[128] * 8] * 4
REPEATS = 5


def offload(arguments: argparse.Namespace, limit: int | None) -> tuple[Results, str]:
    results = [
        measure(model, precision, offloaded, limit)
        for model in arguments.models
        for precision in arguments.precisions
        for offloaded in (False, True)
    ]
    heads = ["model", "precision", "moments", "in use", "peak", "s per update"]
    return results, table(heads, [row(r) for r in results])


def measure(model: str, precision: str, offloaded: bool, limit: int | None) -> dict[str, Any]:
    config = TrainConfig(precision=precision, offload_optimizer=offloaded, recompute="none")
    job = preset_job(model, config, limit, len(WINDOW))
    result = {"model": model, "precision": precision, "offload": offloaded}
    with MeasurementProcess(silent, {}) as worker:
        built = worker.build(job)
        measurements = (
            [worker.run(MeasurementRequest(WINDOW, "none")) for _ in range(REPEATS + 1)]
            if built
            else []
        )
    if built is None or None in measurements:
        return result | {"out_of_memory": True}
    timed = [one for one in measurements[1:] if one is not None]  # The first run traces the update.
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


def prediction(arguments: argparse.Namespace, limit: int | None) -> tuple[Results, str]:
    results: Results = []
    for model in arguments.models:
        for precision in arguments.precisions:
            for length in LENGTHS:
                results += predicted(model, precision, length, limit)
    return results, errors_table(results)


def of_speed(name: str) -> Callable[..., tuple[Results, str]]:
    """Return a part of speed.py.

    It starts TensorFlow in this process, so it must run after the parts that measure in child
    processes.
    """

    def part(arguments: argparse.Namespace, _: int | None) -> tuple[Results, str]:
        import speed

        return getattr(speed, name)(arguments.shared.resolve(), arguments.out.resolve())

    return part


PARTS: dict[str, Callable[..., tuple[Results, str]]] = {
    "offload": offload,
    "prediction": prediction,
    "accumulation": of_speed("accumulation"),
    "matmul": of_speed("matmul"),
    "padding": of_speed("padding"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--on-cpu", action="store_true")
    arguments = parser.parse_args()
    here = device_memory.device_name()
    if here == "CPU" and not arguments.on_cpu:
        sys.exit("no GPU was found; pass --on-cpu to run on the CPU")
    limit = parse_size("8GiB") if here == "CPU" else None
    if not arguments.shared.is_dir():
        arguments.parts = [part for part in arguments.parts if part != "padding"]
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ["BERTACCUM_CACHE"] = str(arguments.out.resolve() / "cache")
    results: dict[str, Any] = {"device": here}
    for name in arguments.parts:
        print(name, file=sys.stderr, flush=True)
        results[name], text = PARTS[name](arguments, limit)
        (arguments.out / "gpu.json").write_text(json.dumps(results, indent=2) + "\n")
        print(f"## {name}\n\n{text}\n", flush=True)


if __name__ == "__main__":
    main()
