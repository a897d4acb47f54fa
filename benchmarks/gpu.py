"""Measures memory and speed of a GPU in one run, and writes one JSON file.

    python benchmarks/gpu.py --shared ../shared      # 8 minutes

`prediction` compares the memory model of `bertaccum plan` with the GPU's allocator. `accumulation`,
`matmul` and `padding` are those of benchmarks/speed.py; `padding` is skipped without the shared
data. Writes gpu.json and prints Markdown tables. `--on-cpu` tests the benchmark itself on a machine
without a GPU. benchmarks/offload.py measures offloading, on a GPU as well.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from memory import errors_table, predicted
from tools import Results

from bertaccum.config import PRECISIONS
from bertaccum.planning import device_memory
from bertaccum.sizes import parse_size

MODELS = ("bert-small", "bert-base", "bert-large")
LENGTHS = (128, 512)


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
