"""Examples per second of bertaccum and of what users would pick, in turns on one machine.

    make bench-peers       # makes the environments, then runs both parts; 40 minutes on 2 cores

BERT-Small on real Yelp reviews, target batch 32 as 4 x 8, dropout 0.1, clipped to norm 1. Each
peer runs in its recommended configuration, in an environment of its own (tf-models-official
in ours, which has it), and is warm before it is timed. All take turns, some updates at a time;
ratios are medians over the rounds. `tokenizing` has them tokenize reviews in turns. Each
writes peers-<part>.json and prints a Markdown table.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tools import prepared_yelp, table

from bertaccum.bert.presets import PRESET_CONFIGS

SCRIPTS = Path(__file__).parent / "peers"
MICRO_BATCH, STEPS = 8, 4
# Name, script, environment (None: ours), what else it is told.
Peer = tuple[str, str, str | None, dict[str, Any]]
# Grouping by length goes from long to short reviews through groups of so many windows (31 of 32
# reviews, for 4,000 reviews): less than all of a group would be no average.
GROUP, ROWS = 31, 4000
TRAINING: list[Peer] = [
    ("bertaccum", "ours.py", None, {}),
    ("Hugging Face", "hf_trainer.py", "huggingface", {"sampling": "random"}),
    ("Hugging Face, grouped", "hf_trainer.py", "huggingface", {"sampling": "group_by_length"}),
    ("Keras 3", "keras3.py", "keras3", {}),
    ("tf-models-official", "tf_models.py", None, {}),
]
TOKENIZING: list[Peer] = [
    ("bertaccum", "our_tokenizer.py", None, {}),
    ("Hugging Face tokenizers", "hf_tokenizer.py", "huggingface", {}),
]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def started(command: list[str], log: Path) -> Iterator[Any]:
    """A peer's process, which ends with its input."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def turn(process: Any, updates: int) -> float:
    """Seconds an update."""
    process.stdin.write(json.dumps({"updates": updates}) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit("a peer has ended; see its log in the output folder")
    return json.loads(answer)["seconds"] / updates


def compared(
    peers: list[Peer], task: dict[str, Any], arguments: argparse.Namespace, warm: int, timed: int
) -> dict[str, Any]:
    """Lets peers take turns: rates, and how many times as fast the first is.

    Args:
      peers: who takes part.
      task: what they are told.
      arguments: of the command line.
      warm: updates before any is timed.
      timed: updates in a turn.
    """
    seconds: dict[str, list[float]] = {name: [] for name, *_ in peers}
    with ExitStack() as stack:
        processes = {}
        for name, script, environment, more in peers:
            python = sys.executable
            if environment is not None:
                python = str(arguments.environments.resolve() / environment / "bin/python")
            command = [python, str(SCRIPTS / script), json.dumps(task | more)]
            log = arguments.out / f"{name}.log"
            processes[name] = stack.enter_context(started(command, log))
        for name, process in processes.items():
            say(f"{task['length']} {task['precision']}: {name}")
            turn(process, GROUP if "grouped" in name else warm)
        for _ in range(arguments.rounds):
            for name, process in processes.items():
                seconds[name].append(turn(process, GROUP if "grouped" in name else timed))
    ours = seconds[peers[0][0]]
    return {
        "length": task["length"],
        "precision": task["precision"],
        "per_second": {n: task["examples"] / statistics.median(s) for n, s in seconds.items()},
        "faster_than": {
            name: statistics.median(theirs / mine for theirs, mine in zip(own, ours, strict=True))
            for name, own in seconds.items()
        },
        "seconds": seconds,
    }


def shown(results: list[dict[str, Any]]) -> str:
    names = list(results[0]["per_second"])
    rows = []
    for r in results:
        cells = [
            f"{rate:.1f}" + (f" ({r['faster_than'][name]:.2f})" if name != names[0] else "")
            for name, rate in r["per_second"].items()
        ]
        rows.append([r["length"], r["precision"], *cells])
    return table(["length", "precision", *names], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["training", "tokenizing"])
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("build/peers"))
    parser.add_argument("--environments", type=Path, default=Path("build/peers/environments"))
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    arguments.out = arguments.out.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ["BERTACCUM_CACHE"] = str(arguments.out / "cache")
    task = {
        "train": str(prepared_yelp(arguments.shared.resolve(), arguments.out) / "train.tsv"),
        "vocab": str(arguments.shared.resolve() / "data/vocab/vocab.txt"),
        "encoder": dataclasses.asdict(PRESET_CONFIGS["bert-small"]),
        "micro_batch": MICRO_BATCH,
        "accumulation_steps": STEPS,
        "rows": ROWS,
        "dropout": 0.1,
    }
    training = arguments.part == "training"
    if training:
        peers, warm, timed = TRAINING, 3, 4
        task["examples"] = MICRO_BATCH * STEPS
    else:
        peers, warm, timed = TOKENIZING, 1, 1
        arguments.precisions = ["-"]
        task["examples"] = ROWS
    results = []
    for length in arguments.lengths:
        for precision in arguments.precisions:
            own = task | {"length": length, "precision": precision}
            results.append(compared(peers, own, arguments, warm, timed))
            out = arguments.out / f"peers-{arguments.part}.json"
            out.write_text(json.dumps(results, indent=2) + "\n")
    print("Examples per second; in brackets how many times as fast bertaccum is.\n")
    print(shown(results))


if __name__ == "__main__":
    main()
