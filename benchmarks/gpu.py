"""Measures memory and speed of a GPU in one run, and writes one JSON file.

    python benchmarks/gpu.py --shared ../shared
    python benchmarks/gpu.py --parts export                      # files for `peers` and `ours`
    python benchmarks/gpu.py --parts peers ours --minutes 4
    python benchmarks/gpu.py --parts table calculated errors     # tables, without a GPU

`prediction` compares the memory model of `bertaccum plan` with the GPU's allocator; tracing makes
it slow for BERT-Large. `updates` trains on real reviews in several ways that must give the same
updates, and compares the checkpoints. `accumulation`, `matmul` and `padding` are those of
benchmarks/speed.py and take two minutes on an H200. `updates` and `padding` are skipped without the
shared data. Writes gpu.json and prints Markdown tables. `--on-cpu` tests the benchmark itself on a
machine without a GPU. benchmarks/offload.py measures offloading, on a GPU as well.

Further parts run only if they are named. `peers` times other training programs and `ours` times
bertaccum, each for at most `--minutes`; benchmarks/peers/on_gpu.py says how. Both need the files of
`export`: reviews as tokens, and compiled steps as StableHLO, which `--stablehlo` times. `table`
prints the tables of all results in `--out`, with those that were copied from another machine.
`calculated` prints what bounds a micro-step on several cards, from their published rates, and
`errors` compares such calculations with measurements.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gpu_programs
from memory import MOST_BYTES, errors_table, predicted
from tools import Results, difference, prepared_yelp, say, table, train_command

from bertaccum.distribution import device_memory
from bertaccum.options.commands import PRECISIONS
from bertaccum.system.sizes import format_size, parse_size

MODELS = ("bert-small", "bert-base", "bert-large")
LENGTHS = (128, 512)


def prediction(arguments: argparse.Namespace, limit: int | None) -> tuple[Results, str]:
    results: Results = []
    most = MOST_BYTES if limit else parse_size("60GiB")
    for model in arguments.models:
        for precision in arguments.precisions:
            for length in LENGTHS:
                results += predicted(model, precision, length, limit, most)
    return results, errors_table(results)


UPDATES, STOPPED = 30, 12
_BY_8 = ["--micro-batch", "8"]
# Options of each run; for those named "without TF32", TF32 is disabled, which only GPUs notice.
TRAINED = {
    "4 x 8": _BY_8,
    "4 x 8, again": _BY_8,
    "4 x 8, stopped and resumed": _BY_8,
    "4 x 8, recomputed": [*_BY_8, "--recompute", "layer"],
    "4 x 8, recomputed and offloaded": [*_BY_8, "--recompute", "layer", "--offload", "all"],
    "1 x 32": ["--micro-batch", "32"],
    "1 x 32, out of memory": ["--micro-batch", "32", "--memory-limit", "700MiB"],
    "4 x 8 without TF32": _BY_8,
    "1 x 32 without TF32": ["--micro-batch", "32"],
}
COMPARED = [
    *(("4 x 8", other) for other in list(TRAINED)[1:6]),
    ("1 x 32", "1 x 32, out of memory"),
    ("4 x 8 without TF32", "1 x 32 without TF32"),
]


def updates(arguments: argparse.Namespace, _: int | None) -> tuple[Results, str]:
    shared, out = arguments.shared.resolve(), arguments.out.resolve()
    data, runs = prepared_yelp(shared, out), {}
    for number, (name, options) in enumerate(TRAINED.items()):
        say(f"updates: {name}")
        runs[name] = out / f"updates-{number}"
        shutil.rmtree(runs[name], ignore_errors=True)
        command = train_command(shared, data, runs[name], "bert-small")
        command += ["--precision", "float32", "--deterministic", "--eval-every", "1000", *options]
        environment = os.environ | ({"NVIDIA_TF32_OVERRIDE": "0"} if "without" in name else {})
        for at in (STOPPED, UPDATES) if "resumed" in name else (UPDATES,):
            begun = [*command[:4], "--resume", str(runs[name])] if runs[name].exists() else command
            last = ["--max-updates", str(at)]
            subprocess.run(begun + last, check=True, env=environment, stdout=subprocess.DEVNULL)
    results = [
        {"one": one, "other": other, "difference": difference(runs[one], runs[other])}
        for one, other in COMPARED
    ]
    rows = [[r["one"], r["other"], f"{r['difference']:.0e}"] for r in results]
    return results, table(["run", "compared with", "largest difference"], rows)


def of_programs(part: str) -> Callable[..., tuple[Results, str]]:
    return lambda arguments, _: gpu_programs.measured(arguments, part)


def export(arguments: argparse.Namespace, _: int | None) -> tuple[Results, str]:
    import gpu_export

    folder = arguments.out / "data"
    files = gpu_export.write_all(arguments.shared.resolve(), folder)
    sizes = {str(file.relative_to(folder)): file.stat().st_size for file in files}
    rows = [[name, format_size(size)] for name, size in sizes.items()]
    rows.append(["all", format_size(sum(sizes.values()))])
    return [{"file": name, "bytes": size} for name, size in sizes.items()], table(
        ["file", "size"], rows
    )


def calculated(*_: Any) -> tuple[Results, str]:
    import gpu_arithmetic

    return gpu_arithmetic.calculated()


def errors(*_: Any) -> tuple[Results, str]:
    import gpu_arithmetic

    return gpu_arithmetic.errors()


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
    "updates": updates,
    "accumulation": of_speed("accumulation"),
    "matmul": of_speed("matmul"),
    "padding": of_speed("padding"),
}
# Parts that run only if they are named, and those of them that need no GPU.
FURTHER: dict[str, Callable[..., tuple[Results, str]]] = {
    "export": export,
    "peers": of_programs("peers"),
    "ours": of_programs("ours"),
    "table": lambda arguments, _: ([], gpu_programs.shown(arguments.out)),
    "calculated": calculated,
    "errors": errors,
}
ANYWHERE = {"export", "table", "calculated", "errors"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--parts", nargs="+", choices=PARTS | FURTHER, default=list(PARTS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--on-cpu", action="store_true")
    parser.add_argument("--peers-python", default="build/peers/environments/huggingface/bin/python")
    parser.add_argument("--minutes", type=float, default=4.0, help="limit of peers, and of ours")
    parser.add_argument("--updates", type=int, default=31, help="updates of a turn of a program")
    parser.add_argument("--half", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--only", nargs="+", default=[""], help="texts in the names of the cases")
    parser.add_argument("--stablehlo", type=Path, metavar="TOOL", help="times compiled steps")
    arguments = parser.parse_args()
    here = device_memory.device_name()
    if here == "CPU" and not arguments.on_cpu and not ANYWHERE.issuperset(arguments.parts):
        sys.exit("no GPU was found; pass --on-cpu to run on the CPU")
    limit = parse_size("8GiB") if here == "CPU" else None
    if not arguments.shared.is_dir():
        arguments.parts = [part for part in arguments.parts if part not in ("padding", "updates")]
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ["BERTACCUM_CACHE"] = str(arguments.out.resolve() / "cache")
    results: dict[str, Any] = {"device": here}
    for name in arguments.parts:
        print(name, file=sys.stderr, flush=True)
        results[name], text = (PARTS | FURTHER)[name](arguments, limit)
        (arguments.out / "gpu.json").write_text(json.dumps(results, indent=2) + "\n")
        print(f"## {name}\n\n{text}\n", flush=True)


if __name__ == "__main__":
    main()
