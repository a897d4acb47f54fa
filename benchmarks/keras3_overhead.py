"""Measures what accumulation with `bertaccum.keras3` costs, on each backend of Keras 3.

    make build/peers/environments/jax build/peers/environments/huggingface
    python benchmarks/keras3_overhead.py        # about 5 minutes on 2 cores

Trains a transformer of 4 layers with micro-batches of 8 texts of 64 tokens, in three ways: with an
update by SGD after each micro-batch (bare), with bertaccum's accumulation over 8 micro-batches, and
with that of Keras. Each round times an epoch of each in turn. Prints the medians over the rounds,
relative to bare micro-batches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "build/peers/environments"
PYTHONS = {
    "tensorflow": Path(sys.executable),
    "jax": ENVIRONMENTS / "jax/bin/python",
    "torch": ENVIRONMENTS / "huggingface/bin/python",
}
WAYS = ("bare", "bertaccum", "Keras")
HIDDEN, LAYERS, TOKENS, WORDS, MICRO_BATCH, STEPS = 256, 4, 64, 8000, 8, 8
MICRO_STEPS = 48


def network():
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    inputs = keras.Input((TOKENS,), dtype="int32")
    hidden = layers.Embedding(WORDS, HIDDEN)(inputs)
    for _ in range(LAYERS):
        attention = layers.MultiHeadAttention(4, HIDDEN // 4)(hidden, hidden)
        hidden = layers.LayerNormalization()(hidden + attention)
        wide = layers.Dense(4 * HIDDEN, "gelu")(hidden)
        hidden = layers.LayerNormalization()(hidden + layers.Dense(HIDDEN)(wide))
    return keras.Model(inputs, layers.Dense(2)(hidden[:, 0]))


def seconds_per_micro_step(rounds: int) -> dict[str, list[float]]:
    """Time epochs in this process, with the backend that KERAS_BACKEND selects."""
    import keras
    import numpy as np

    from bertaccum.keras3 import accumulate_gradients

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, WORDS, (MICRO_BATCH * MICRO_STEPS, TOKENS))
    labels = rng.integers(0, 2, len(tokens))
    models = {}
    for way in WAYS:
        model = network()
        if way == "bertaccum":
            accumulate_gradients(model, STEPS)
        steps = STEPS if way == "Keras" else None
        optimizer = keras.optimizers.SGD(1e-3, gradient_accumulation_steps=steps)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss)
        models[way] = model
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):  # The first round compiles.
        for way, model in models.items():
            begin = time.perf_counter()
            model.fit(tokens, labels, batch_size=MICRO_BATCH, shuffle=False, verbose=0)
            if number:
                found[way].append((time.perf_counter() - begin) / MICRO_STEPS)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--backends", nargs="*", default=list(PYTHONS), choices=list(PYTHONS))
    parser.add_argument("--here", action="store_true", help="measure in this process; print JSON")
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(seconds_per_micro_step(arguments.rounds)))
        return
    print("| backend | bare, ms per micro-batch | bertaccum | Keras |\n|---|---|---|---|")
    for backend in arguments.backends:
        command = [PYTHONS[backend], __file__, "--here", "--rounds", str(arguments.rounds)]
        environment = os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
        done = subprocess.run(
            list(map(str, command)), env=environment, check=True, stdout=subprocess.PIPE
        )
        times = json.loads(done.stdout.splitlines()[-1])
        ratios = [
            statistics.median(a / b for a, b in zip(times[way], times["bare"], strict=True))
            for way in WAYS[1:]
        ]
        bare = 1000 * statistics.median(times["bare"])
        print(f"| {backend} | {bare:.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
