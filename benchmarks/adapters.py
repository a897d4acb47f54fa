"""Compares adapters and biases with training whole layers, and low-rank adapters with peft.

    make build/peers/environments/huggingface
    python benchmarks/adapters.py scores --shared ../shared    # 90 minutes on 2 cores
    python benchmarks/adapters.py memory                       # 40 minutes

`scores` trains BERT-Tiny from a pretrained checkpoint, and a BERT-Mini with random weights, on real
data with three seeds. Each way to train has the rate that `train --find-lr` suggests. peft trains
in Hugging Face Trainer with the same initial weights, rows and rates. Finished trainings are kept
in the output folder and not repeated. `memory` measures the peak memory and the time of an update
of BERT-Base and BERT-Large with 512 tokens, one example at a time; on a CPU, the allocator that
TensorFlow uses on GPUs simulates its memory. Each part writes adapters-<part>.json and prints a
Markdown table.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from task_data import EMOTIONS, SICK, DataSet, some_imdb
from task_trainings import Case, Place, Scores, bertaccum, evaluated, kept, our_options, peer_result
from task_weights import write_weights
from tools import Results, preset_job, run_part, say, table, vocabulary_file

from bertaccum.bert.model_source import NO_CHECKPOINT
from bertaccum.options.commands import TrainConfig
from bertaccum.planning.measurement import MeasurementProcess, MeasurementRequest
from bertaccum.system.progress import silent
from bertaccum.system.sizes import format_size, parse_size

OURS, PEFT = "bertaccum", "peft"
IMDB_5000 = DataSet("IMDB 5000", partial(some_imdb, 5000))
CASES = [
    Case("SICK", SICK, ("accuracy",), 4),
    Case("IMDB, 5,000 rows", IMDB_5000, ("accuracy",), 1),
    Case("GoEmotions", EMOTIONS, ("average_precision",), 8),
]
RANDOM = Case("SICK, random BERT-Mini", replace(SICK, name="SICK, random"), ("accuracy",), 2)
# Ways to train an encoder: options, and the rank of adapters.
WAYS: dict[str, tuple[tuple[str, ...], int | None]] = {
    "all weights": ((), None),
    "last layer": (("--train-layers", "1"), None),
    "biases": (("--adapt", "bias"), None),
    "LoRA 4": ((), 4),
    "LoRA 16": ((), 16),
    "LoRA 64": ((), 64),
}


def scores(shared: Path, out: Path) -> tuple[Results, str]:
    """Train in each way, and the adapters with peft as well, and compare test scores."""
    results, rows = [], []
    for case, checkpoint in [*((case, None) for case in CASES), (RANDOM, random_mini(shared, out))]:
        for way, (options, rank) in WAYS.items():
            if case is RANDOM and way in ("LoRA 4", "LoRA 64"):
                continue
            chosen = replace(case, options=options, lora_rank=rank)
            rate = suggested_rate(Place(shared, out, chosen, checkpoint))
            place = Place(shared, out, replace(chosen, learning_rate=rate), checkpoint)
            (metric,), seeds = case.metrics, range(case.seeds)
            ours = [score(place, seed)[metric] for seed in seeds]
            peers = [] if rank is None else [peer_result(place, seed)[metric] for seed in seeds]
            results.append({"case": case.name, "way": way, "rate": rate, OURS: ours, PEFT: peers})
            both = spread(ours), spread(peers), apart(ours, peers)
            rows.append([f"{case.name}, {metric}", way, f"{rate:.1e}", *both])
            say(" | ".join(rows[-1]))
    heads = ["data, test score", "trained", "learning rate", OURS, PEFT, "standard errors apart"]
    return results, table(heads, rows)


def random_mini(shared: Path, out: Path) -> Path:
    """Return a BERT-Mini with random weights, in the format of transformers."""
    folder, vocabulary = out / "random-mini", str(vocabulary_file(shared))
    if not folder.exists():
        config = TrainConfig(model="bert-mini", init_checkpoint=NO_CHECKPOINT, vocab=vocabulary)
        write_weights(folder, config, 2, 128)
    return folder


def score(place: Place, seed: int) -> Scores:
    """Return the test scores of `bertaccum eval`."""
    run = place.run(f"bertaccum-{seed}")
    told = [*our_options(place, run, seed), "--epochs", str(place.case.epochs)]
    told += ["--micro-batch", "8"]

    def make() -> Scores:
        bertaccum("train", *told)
        return evaluated(run)

    return kept(run, told, make)


def suggested_rate(place: Place) -> float:
    """Return the learning rate that `train --find-lr` suggests, which is kept."""
    run = place.run("rate")
    path = run / "suggested.json"
    if not path.exists():
        command = [sys.executable, "-m", "bertaccum", "train", *our_options(place, run / "run", 0)]
        command += ["--micro-batch", "8", "--find-lr", "--json"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        run.mkdir(parents=True, exist_ok=True)
        path.write_bytes(done.stdout)
    rate = json.loads(path.read_text())["learning_rate"]
    return place.case.learning_rate if rate is None else float(f"{rate:.1e}")


def spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{statistics.mean(values):.3f} ± {standard_error(values):.3f}"


def standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def apart(ours: list[float], peers: list[float]) -> str:
    """Return the difference of two means in standard errors of that difference."""
    if not peers:
        return ""
    difference = statistics.mean(ours) - statistics.mean(peers)
    # All errors are 0 if every model predicts the most frequent class.
    error = math.hypot(standard_error(ours), standard_error(peers))
    return f"{difference / error if difference else 0:+.1f}"


# Ways to train in the table of memory: name, options, and whether to measure them without
# recomputation as well.
FULL: list[tuple[str, dict[str, Any], bool]] = [
    ("all weights", {}, False),
    ("all weights, `--offload moments`", {"offload": "moments"}, False),
    ("all weights, `--offload all`", {"offload": "all"}, False),
    ("last 6 layers", {"train_layers": 6}, False),
    ("last layer", {"train_layers": 1}, False),
]
HALF = {"frozen_dtype": "bfloat16"}
ADAPTED: list[tuple[str, dict[str, Any], bool]] = [
    ("LoRA", {"adapt": "lora"}, True),
    ("LoRA, `--frozen-dtype bfloat16`", {"adapt": "lora", **HALF}, True),
    ("biases", {"adapt": "bias"}, True),
    ("biases, `--frozen-dtype bfloat16`", {"adapt": "bias", **HALF}, True),
]
MODELS = [
    ("bert-base", ("float32", "mixed_bfloat16"), [*FULL, *ADAPTED]),
    ("bert-large", ("float32",), [FULL[0], FULL[2], *ADAPTED[:2]]),
]
KEYS = "preset", "precision", "way", "recompute"
LENGTH, STEPS, REPEATS = 512, 4, 3
MEMORY = parse_size("14GiB")


def memory(_: Path, out: Path) -> tuple[Results, str]:
    """Measure the peak memory and the time of updates of `STEPS` micro-batches of one example."""
    path = out / "measured.json"
    results: Results = json.loads(path.read_text()) if path.exists() else []
    done = [[r[key] for key in KEYS] for r in results]
    for preset, precisions, ways in MODELS:
        for precision in precisions:
            for name, options, both in ways:
                for recompute in ("layer", "none") if both else ("layer",):
                    config = TrainConfig(
                        max_seq_length=LENGTH, precision=precision, recompute=recompute, **options
                    )
                    one = {"preset": preset, "precision": precision, "way": name}
                    one |= {"recompute": recompute}
                    if [*one.values()] not in done:
                        results.append(one | cost(preset, config))
                        say(str(results[-1]))
                        path.write_text(json.dumps(results))
    found = {tuple(r[key] for key in KEYS): r for r in results}
    rows = []
    for preset, precision, way in dict.fromkeys(key[:3] for key in found):
        row = [f"{preset}, {precision}", way]
        offloaded = found[preset, precision, FULL[2][0], "layer"]["seconds"]
        for recompute in ("layer", "none"):
            r = found.get((preset, precision, way, recompute))
            speed = "" if r is None else f"{offloaded / r['seconds']:.2f}"
            row += ["" if r is None else format_size(r["peak_bytes"]), speed]
        rows.append(row)
    heads = ["model, precision", "trained", "peak, recomputed", "speed", "peak", "speed"]
    return results, table(heads, rows)


def cost(preset: str, config: TrainConfig) -> dict[str, float]:
    """Return the peak memory, and the median time of an update, of a preset with random weights."""
    with MeasurementProcess(silent, {}) as worker:
        assert worker.build(preset_job(preset, config, MEMORY, STEPS))
        window = MeasurementRequest([[(1, LENGTH)]] * STEPS, config.recompute, config.offload)
        runs = [worker.run(window) for _ in range(1 + REPEATS)][1:]  # The first one traces.
    seconds = statistics.median(run.seconds for run in runs if run)
    return {"peak_bytes": max(run.peak_bytes for run in runs if run), "seconds": seconds}


if __name__ == "__main__":
    run_part(__doc__ or "", "adapters", {"scores": scores, "memory": memory})
