"""Compares the speed of bertaccum with that of other training programs on one machine.

    make bench-peers       # creates the environments and runs all parts; 60 minutes on 2 cores

`training` trains BERT-Small on real Yelp reviews with target batch 32 as 4 x 8 (as 1 x 32 in
tf-models-official), dropout 0.1 and gradients clipped to norm 1. Each peer runs in its recommended
configuration and in its own environment; tf-models-official runs in ours, which includes it. After
some untimed updates the peers take turns of a few updates each, and ratios are medians over the
rounds. `tokenizing` lets them take turns at tokenizing reviews. `prediction` lets them take turns
at predicting reviews, from texts to probabilities, in batches of 32 of similar length; all run the
same models, with random weights. `tagging` lets them take turns at training BERT-Tiny and
BERT-Small on sentences with a tag for each word, with the same target batch. `pretraining` lets
them take turns at training both on reviews with masked tokens. Each part writes peers-<part>.json
and prints a Markdown table.

If other programs use the cores as well, set OMP_WAIT_POLICY=PASSIVE. Otherwise, PyTorch's threads
spin while they wait for each other, and some peers become many times slower.

With 512 tokens, all peers together need more than 24 GB of memory; `--peers` chooses some of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from task_data import NCBI, WNUT
from tools import (
    prepared_yelp,
    random_run,
    say,
    table,
    vocabulary_file,
    write_sequences,
    write_tags,
    write_tokens,
    yelp_stores,
)

from bertaccum import api
from bertaccum.bert.presets import PRESET_CONFIGS

sys.path.append(str(Path(__file__).parent / "peers"))

from peer_process import PeerError, PeerProcess

SCRIPTS = Path(__file__).parent / "peers"
MICRO_BATCH = 8
ROWS = 4000
# Models of the parts `prediction`, `tagging` and `pretraining`.
MODELS = ("bert-tiny", "bert-small")


@dataclass(frozen=True)
class Peer:
    """A program that takes part in the comparison.

    Args:
      name: Name in the table.
      script: File name in the folder `peers`.
      environment: Name of its environment, or None for ours.
      told: Entries to add to the task.
      warm: Number of untimed updates before the first turn.
      timed: Number of updates in a turn.
    """

    name: str
    script: str
    environment: str | None = None
    told: dict[str, Any] = field(default_factory=dict)
    warm: int = 3
    timed: int = 4


LOOP, ONNX = "torch_loop.py", "onnx_predict.py"
# The rows were shuffled for all programs, so that those which do not group them train on the same
# batches.
HF, RANDOM, GROUPED = "hf_trainer.py", {"sampling": "sequential"}, {"sampling": "group_by_length"}
REBALANCED, COMPILED = {"sampling": "batch_rebalance"}, GROUPED | {"compiled": True}
PEERS = {
    "training": [
        Peer("bertaccum", "ours.py"),
        Peer("Hugging Face", HF, "huggingface", RANDOM),
        # With 4,000 rows, the sampler sorts groups of 31 windows from long to short reviews. Only a
        # whole group has an average speed.
        Peer("Hugging Face, grouped", HF, "huggingface", GROUPED, warm=31, timed=31),
        # It cuts random batches into micro-batches of similar length, as bertaccum does.
        Peer("Hugging Face, rebalanced", HF, "huggingface", REBALANCED, timed=16),
        Peer("PyTorch loop", LOOP, "huggingface", RANDOM),
        # Its windows are shuffled, so that a quarter of the epoch represents all lengths.
        Peer("PyTorch loop, grouped", LOOP, "huggingface", GROUPED, timed=31),
        Peer("PyTorch loop, grouped, compiled", LOOP, "huggingface", COMPILED, warm=8, timed=31),
        Peer("Keras 3", "keras3.py", "keras3", {"backend": "tensorflow"}),
        Peer("tf-models-official", "tf_models.py"),
    ],
    "tagging": [
        Peer("bertaccum", "ours.py", warm=8, timed=16),
        Peer("Hugging Face", HF, "huggingface", RANDOM, warm=8, timed=16),
    ],
    "pretraining": [Peer("bertaccum", "ours.py"), Peer("Hugging Face", HF, "huggingface", RANDOM)],
    "tokenizing": [
        Peer("bertaccum", "our_tokenizer.py", warm=1, timed=1),
        Peer("Hugging Face tokenizers", "hf_tokenizer.py", "huggingface", warm=1, timed=1),
    ],
    "prediction": [
        Peer("bertaccum", "our_predict.py", warm=1, timed=1),
        Peer("SavedModel", "our_savedmodel.py", warm=1, timed=1),
        Peer("transformers pipeline", "hf_pipeline.py", "huggingface", warm=1, timed=1),
        Peer("ONNX Runtime", ONNX, "huggingface", {"quantize": "none"}, warm=1, timed=1),
        Peer("ONNX Runtime, int8", ONNX, "huggingface", {"quantize": "int8"}, warm=1, timed=1),
    ],
}


def compared(
    peers: list[Peer], task: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Let peers take turns at a task, and return their rates and the speed-up of the first peer."""
    seconds: dict[str, list[float]] = {peer.name: [] for peer in peers}
    with ExitStack() as stack:
        taking_part = []
        for peer in peers:
            python = sys.executable
            if peer.environment is not None:
                python = str(arguments.environments.resolve() / peer.environment / "bin/python")
            command = [python, str(SCRIPTS / peer.script), json.dumps(task | peer.told)]
            process = PeerProcess(command, arguments.out / f"{peer.name}.log")
            stack.callback(process.close)
            taking_part.append((peer, process))
        for peer, process in taking_part:
            say(f"{task['case']}: {peer.name}")
            process.turn(peer.warm)
        for _ in range(arguments.rounds):
            for peer, process in taking_part:
                turn = process.turn(peer.timed)
                seconds[peer.name].append(turn["seconds"] / peer.timed)
    ours = seconds[peers[0].name]
    return {
        "case": task["case"],
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
        rows.append([r["case"], *cells])
    return table(["", *names], rows)


def cases(arguments: argparse.Namespace, shared: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries in which the tasks of a part differ."""
    if arguments.part == "prediction":
        for preset in MODELS:
            folders = exports(preset, shared, arguments.out)
            yield folders | {"case": preset, "length": 128, "batch": 32, "examples": ROWS}
        return
    if arguments.part == "tokenizing":
        for length in arguments.lengths:
            yield {"case": f"{length}, -", "length": length, "examples": ROWS}
        return
    if arguments.part == "tagging":
        for data, preset in itertools.product((WNUT, NCBI), MODELS):
            train = data.prepared(shared, arguments.out) / "train.tsv"
            path = arguments.out / f"tokens-{data.name}.npz"
            model: dict[str, Any] = {"model": preset}
            model["encoder"] = dataclasses.asdict(PRESET_CONFIGS[preset])
            model |= {"train": str(train), "length": data.length}
            model["outputs"] = write_tags(train, vocabulary_file(shared), data.length, path)
            for precision in arguments.precisions:
                own = {"case": f"{data.name}, {preset}, {precision}", "precision": precision}
                yield model | own | {"tokens": str(path)}
        return
    if arguments.part == "pretraining":
        data = prepared_yelp(shared, arguments.out)
        tokens = write_sequences(data, vocabulary_file(shared), arguments.out / "sequences.npz")
        for preset, precision in itertools.product(MODELS, arguments.precisions):
            model = {"model": preset, "encoder": dataclasses.asdict(PRESET_CONFIGS[preset])}
            own = {"case": f"{preset}, {precision}", "precision": precision, "length": 128}
            yield model | own | {"text": str(data), "tokens": str(tokens)}
        return
    for length, store in yelp_stores(shared, arguments.out, arguments.lengths):
        tokens = write_tokens(store, ROWS, arguments.out / f"tokens-{length}.npz")
        for precision in arguments.precisions:
            own = {"case": f"{length}, {precision}", "length": length, "precision": precision}
            yield own | {"tokens": str(tokens)}


def exports(preset: str, shared: Path, out: Path) -> dict[str, str]:
    """Return the folders of a run of a preset with random weights, and of its exports."""
    run = random_run(shared, out, preset)
    folders = {name: run / f"export-{name}" for name in ("savedmodel", "huggingface")}
    for name, folder in folders.items():
        if not folder.exists():
            api.export(run=str(run), format=name)
    named = folders | {"run": run, "onnx": run / "onnx"}
    return {name: str(folder) for name, folder in named.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PEERS)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("build/peers"))
    parser.add_argument("--environments", type=Path, default=Path("build/peers/environments"))
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="micro-batches in an update")
    parser.add_argument("--peers", nargs="+", help="names of the peers beside bertaccum")
    arguments = parser.parse_args()
    arguments.out, shared = arguments.out.resolve(), arguments.shared.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ["BERTACCUM_CACHE"] = str(arguments.out / "cache")
    task = {
        "train": str(prepared_yelp(shared, arguments.out) / "train.tsv"),
        "vocab": str(vocabulary_file(shared)),
        "model": "bert-small",
        "encoder": dataclasses.asdict(PRESET_CONFIGS["bert-small"]),
        "micro_batch": MICRO_BATCH,
        "accumulation_steps": arguments.steps,
        "examples": MICRO_BATCH * arguments.steps,
        "rows": ROWS,
        "dropout": 0.1,
    }
    ours, *others = PEERS[arguments.part]
    peers = [ours, *(peer for peer in others if peer.name in (arguments.peers or [peer.name]))]
    results = []
    for own in cases(arguments, shared):
        try:
            results.append(compared(peers, task | own, arguments))
        except PeerError as error:
            raise SystemExit(f"{error}; the logs are in {arguments.out}") from None
        out = arguments.out / f"peers-{arguments.part}.json"
        out.write_text(json.dumps(results, indent=2) + "\n")
    print("Examples per second; in parentheses, the speed-up of bertaccum over this peer.\n")
    print(shown(results))


if __name__ == "__main__":
    main()
