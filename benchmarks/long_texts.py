"""Compares the ways to read texts that are longer than the model: truncation and windows.

    make build/peers/environments/huggingface
    python benchmarks/long_texts.py readings   # 45 minutes on 2 cores

Trains BERT-Tiny from a pretrained checkpoint on 4,500 IMDB reviews (median 230 tokens) with target
batch 32 and micro-batches of 8 reviews, three seeds each, and reports the accuracy on 5,000 other
reviews. Hugging Face Trainer, which keeps the beginning of texts, trains from the same weights on
the same rows in the same order. The time is that of the updates of an epoch; the peak memory is
that of TensorFlow's allocator. Finished trainings are kept and not repeated.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

from task_data import LONG_IMDB
from task_trainings import Case, Place, our_result, peer_result
from tools import Results, run_part, spread, table

from bertaccum.system.sizes import format_size

EPOCHS = 3
# With a limit, tensors come from the allocator that counts their memory.
LIMIT = ("--memory-limit", "8GiB")
CASES = {
    length: Case(f"{length} tokens", data, ("accuracy",), EPOCHS, options=LIMIT)
    for length, data in LONG_IMDB.items()
}
WINDOWS = ("--windows", "4")
READINGS = [
    *((length, ("--truncate", part)) for length in CASES for part in ("head", "tail", "head-tail")),
    (128, WINDOWS),
    (128, (*WINDOWS, "--pool", "max")),
]


def readings(shared: Path, out: Path) -> tuple[Results, str]:
    results, rows = [], []
    for length, options in READINGS:
        place = Place(shared, out, replace(CASES[length], options=LIMIT + options))
        accuracies, seconds, peaks = [], [], []
        for seed in range(place.case.seeds):
            accuracies.append(our_result(place, seed)["accuracy"])
            summary = json.loads((place.run(f"bertaccum-{seed}") / "summary.json").read_text())
            seconds.append(summary["training_seconds"] / EPOCHS)
            peaks.append(summary["peak_memory_bytes"])
        found = {"accuracy": accuracies, "epoch_seconds": seconds, "peak_bytes": peaks}
        name = " ".join(options).replace("--", "")
        if options[-1] == "head":
            found["trainer"] = [peer_result(place, seed)["accuracy"] for seed in range(3)]
        results.append({"length": length, "reading": name, **found})
        cells = [f"{statistics.median(seconds):.0f} s", format_size(max(peaks))]
        trainer = spread(found["trainer"]) if "trainer" in found else ""
        rows.append([length, name, spread(accuracies), *cells, trainer])
    heads = ["max. length", "reading", "accuracy", "epoch", "peak memory", "Trainer"]
    return results, table(heads, rows)


if __name__ == "__main__":
    run_part(__doc__.splitlines()[0], "long-texts", {"readings": readings})
