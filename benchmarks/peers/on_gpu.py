"""Times training programs on one GPU, each in a process of its own. Needs only a Python.

    python benchmarks/peers/on_gpu.py --data build/gpu/data --out build/gpu/peers.json --minutes 4

The folder `--data` is written by `python benchmarks/gpu.py --parts export` on any machine, so the
machine with the GPU needs neither bertaccum nor TensorFlow. `--python` must have PyTorch and
transformers, or Keras 3, keras-hub and JAX. A program that fails is recorded with its reason, and
the others go on. All programs train on the same reviews with windows of 32, in mixed precision or
in float32 with TF32. The most important cases come first; cases that do not fit into `--minutes`
are recorded as such.

The processes of a case start at the same time. Once all are ready, they train one after the other:
one update, some untimed updates, and turns of which the median counts. `--stablehlo TOOL` first
times the compiled steps in `--data` with that program, which takes a file and a number of runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer_process import PeerError, PeerProcess

HERE = Path(__file__).parent
WINDOW = 32
# Time for which each program is timed; at least three turns and at most five are timed.
TIMED_SECONDS = 5.0
# Longest wait for an answer; compiling BERT-Base takes the longest.
ANSWER_SECONDS = 120.0
SETUP_PACKAGES = ("torch", "transformers", "accelerate", "keras", "keras-hub", "jax", "jaxlib")


@dataclass(frozen=True)
class Program:
    """A training program.

    Args:
      script: File name in this folder.
      told: Entries to add to the task.
      ours: Whether it runs in the environment of bertaccum.
    """

    script: str
    told: dict[str, Any] = field(default_factory=dict)
    ours: bool = False


GROUPED = {"sampling": "group_by_length"}
PROGRAMS = {
    "bertaccum": Program("ours.py", {"options": {"compile": "off"}}, ours=True),
    "bertaccum, compiled": Program("ours.py", {"options": {"compile": "on"}}, ours=True),
    "bertaccum, planned": Program(
        "ours.py", {"options": {"compile": "auto", "micro_batch": "auto"}}, ours=True
    ),
    "PyTorch loop": Program("torch_loop.py", {"sampling": "sequential"}),
    "PyTorch loop, grouped": Program("torch_loop.py", GROUPED),
    "Trainer, grouped": Program("hf_trainer.py", GROUPED),
    "PyTorch loop, grouped, compiled": Program("torch_loop.py", GROUPED | {"compiled": True}),
    "Keras 3 on JAX": Program("keras3.py", {"backend": "jax"}),
}


def cases(half: str) -> Iterator[dict[str, Any]]:
    """Yield the cases, the most important first, as entries of the task."""
    small, base, full = "bert-small", "bert-base", "float32"
    order = [(small, 8, half), (small, 8, full), (base, WINDOW, half), (base, 8, half)]
    order += [(small, WINDOW, half), (base, 8, full), (small, WINDOW, full), (base, WINDOW, full)]
    for length in (128, 512):
        for model, micro_batch, precision in order:
            steps = WINDOW // micro_batch
            yield {
                "case": f"{model}, {length}, {steps} x {micro_batch}, {precision}",
                "model": model,
                "length": length,
                "precision": precision,
                "micro_batch": micro_batch,
                "accumulation_steps": steps,
                "dropout": 0.1,
            }


class Comparison:
    """Measurements of one card, which are written to a file as soon as they exist.

    Args:
      arguments: Arguments of the command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.data = arguments, arguments.data.resolve()
        self.end = time.monotonic() + 60 * arguments.minutes
        self.encoders = json.loads((self.data / "encoders.json").read_text())
        self.logs = arguments.out.resolve().with_suffix("")
        self.logs.mkdir(parents=True, exist_ok=True)
        self.results: dict[str, Any] = {"card": card(), "versions": versions(arguments.python)}
        self.results |= {"compiled_steps": [], "training": []}

    def record(self, kind: str, result: dict[str, Any]) -> None:
        """Add a result to the file, and print it."""
        self.results[kind].append(result)
        self.arguments.out.write_text(json.dumps(self.results, indent=2) + "\n")
        print(json.dumps(result), flush=True)

    def left(self, most: float = ANSWER_SECONDS) -> float:
        """Return the seconds to wait for an answer, at most `most`."""
        return max(0.0, min(most, self.end - time.monotonic()))

    def compiled_steps(self) -> None:
        """Time the StableHLO files of the data folder."""
        for file in sorted(self.data.glob("*.stablehlo"), key=importance):
            timing = self.compiled_step(file) if self.left() else out_of_time()
            self.record("compiled_steps", {"step": file.stem} | timing)

    def compiled_step(self, file: Path) -> dict[str, Any]:
        command = [self.arguments.python, str(self.arguments.stablehlo), str(file), "50"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=self.left())
        except subprocess.TimeoutExpired:
            return {"failed": "no answer in time"}
        found = re.search(r"compiled in ([\d.]+) s.*median ([\d.]+) ms", done.stdout, re.DOTALL)
        if not found:
            return {"failed": (done.stderr.strip() or "no output").splitlines()[-1][:300]}
        return {"compile_seconds": float(found[1]), "median_ms": float(found[2])}

    def training(self) -> None:
        """Time the programs case by case."""
        for case in cases(self.arguments.half):
            if any(text in case["case"] for text in self.arguments.only):
                self.case(case)

    def case(self, case: dict[str, Any]) -> None:
        names = self.arguments.programs
        if not self.left():
            for name in names:
                self.record("training", case | {"program": name} | out_of_time())
            return
        with ExitStack() as stack:
            cache = stack.enter_context(tempfile.TemporaryDirectory())
            started = {}
            for name in names:
                started[name] = self.started(PROGRAMS[name], case, name, cache)
                stack.callback(started[name].close, 0)
            ready = {name: attempted(p.turn, 0, self.left()) for name, p in started.items()}
            for name, process in started.items():
                result = ready[name] if self.left() else out_of_time()
                if "failed" not in result:
                    result = attempted(self.measured, process, result["at"] - process.started)
                process.close(5)
                self.record("training", case | {"program": name} | result)

    def started(self, program: Program, case: dict[str, Any], name: str, cache: str) -> PeerProcess:
        task = case | program.told | {"encoder": self.encoders[case["model"]]}
        task |= {"tokens": str(self.data / f"tokens-{case['length']}.npz")}
        task |= {"train": str(self.data / "yelp/train.tsv"), "vocab": str(self.data / "vocab.txt")}
        python = self.arguments.our_python if program.ours else self.arguments.python
        command = [python, str(HERE / program.script), json.dumps(task)]
        # Others' compiled code or plan would shorten the time before the first update.
        own = f"{cache}/{self.arguments.programs.index(name)}"  # inductor allows no spaces
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": own, "BERTACCUM_CACHE": own}
        return PeerProcess(command, self.logs / f"{case['case']}, {name}.log", environment)

    def measured(self, process: PeerProcess, ready_seconds: float) -> dict[str, Any]:
        """Return the speed of a peer that is ready to train."""
        updates, per_update = self.arguments.updates, []
        first = process.turn(1, self.left())["seconds"]
        warm = process.turn(updates, self.left())
        start = time.monotonic()
        while len(per_update) < 3 or (
            len(per_update) < 5 and time.monotonic() - start < TIMED_SECONDS
        ):
            try:
                turn = process.turn(updates, self.left())
            except PeerError:
                if not per_update:
                    raise
                break  # The turns before the time ended count.
            per_update.append(turn["seconds"] / updates)
        return {
            "examples_per_second": WINDOW / statistics.median(per_update),
            "seconds_to_first_update": ready_seconds + first,
            "warm_up_seconds": warm["seconds"],
            "peak_bytes": turn["peak_bytes"],
            "seconds_per_update": per_update,
        }


def attempted(run: Any, *arguments: Any) -> dict[str, Any]:
    """Return what `run` returns, or the reason why the peer failed."""
    try:
        return run(*arguments)
    except PeerError as error:
        return {"failed": str(error)}


def out_of_time() -> dict[str, Any]:
    return {"failed": "no time left"}


def importance(file: Path) -> tuple[bool, ...]:
    """Return a key that sorts the compiled steps: BERT-Small, bfloat16 and 128 tokens first."""
    name = file.stem
    return "small" not in name, "x512" in name, "float32" in name, "32x" in name


def card() -> str:
    """Return the name of the GPU, or CPU if there is no driver."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "CPU"
    return done.stdout.strip().splitlines()[0]


def versions(python: str) -> dict[str, str]:
    """Return the versions of the packages of an environment that matter here."""
    code = (
        "import importlib.metadata as m, json, platform, sys\n"
        "have = {d.metadata['Name']: d.version for d in m.distributions()}\n"
        "found = {name: have[name] for name in sys.argv[1:] if name in have}\n"
        "print(json.dumps({'python': platform.python_version()} | found))"
    )
    done = subprocess.run([python, "-c", code, *SETUP_PACKAGES], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--minutes", type=float, default=4.0, help="when no measurement starts")
    parser.add_argument("--python", default=sys.executable, help="Python of the peers")
    parser.add_argument("--our-python", help="Python of bertaccum")
    parser.add_argument(
        "--programs", nargs="*", choices=PROGRAMS, help="default: all that have one"
    )
    parser.add_argument("--only", nargs="+", default=[""], help="texts in the names of the cases")
    parser.add_argument("--half", choices=("bfloat16", "float16"), default="bfloat16")
    # Trainer sorts the reviews of groups of 31 windows; only whole groups have an average speed.
    parser.add_argument("--updates", type=int, default=31, help="updates of a turn")
    parser.add_argument("--stablehlo", type=Path, metavar="TOOL", help="times compiled steps first")
    arguments = parser.parse_args()
    if arguments.programs is None:
        arguments.programs = [n for n, p in PROGRAMS.items() if arguments.our_python or not p.ours]
    elif not arguments.our_python and any(PROGRAMS[name].ours for name in arguments.programs):
        parser.error("bertaccum needs --our-python")
    if not (arguments.data / "encoders.json").is_file():
        parser.error(f"{arguments.data} was not written by benchmarks/gpu.py --parts export")
    for python in (arguments.python, arguments.our_python):
        if python and not shutil.which(python):
            parser.error(f"{python} is no Python; pass the path of one")
    comparison = Comparison(arguments)
    if arguments.stablehlo:
        comparison.compiled_steps()
    comparison.training()


if __name__ == "__main__":
    main()
