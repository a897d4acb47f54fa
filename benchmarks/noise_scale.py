"""Checks the gradient noise scale against single examples, and measures what it costs.

    python benchmarks/noise_scale.py brute --shared ../shared  # 6 minutes on 2 cores
    python benchmarks/noise_scale.py cost                      # 4 minutes

`brute` takes a pretrained BERT-Tiny, before and after 100 updates on real Yelp reviews. With these
weights fixed and without dropout, it computes the noise scale from the gradients of 2,048 single
reviews, and estimates it from 200 windows of 32 that are cut in several ways. `cost` compares the
time of an update (4 x 8, 128 tokens) with and without the estimate; the two take turns.
"""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from speed import TARGET, build, full_window, interleaved
from tools import TASK, Results, prepared_yelp, run_part, say, table

from bertaccum.bert.model_finder import find_model
from bertaccum.bert.tokenization import Tokenization
from bertaccum.data.token_store import TokenStore
from bertaccum.data.tokenizing import open_store
from bertaccum.data.window_cuts import Cut, make_cut
from bertaccum.data.windows import make_window, window_rows
from bertaccum.options.commands import TrainConfig
from bertaccum.reporting.batch_advice import noise_scale
from bertaccum.system.progress import silent
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.prepared_labels import read_labels
from bertaccum.training.noise_scale import NoiseMeter, gradient_products
from bertaccum.training.recipe import build_model, make_optimizer
from bertaccum.training.step import Trainee, make_update

EXAMPLES, UPDATES, LENGTH = 2048, 200, 128
# Micro-batch size and kind of cut.
CUTS = [(8, "cost"), (8, "count"), (16, "count"), (4, "count"), (32, "count")]


def brute(shared: Path, out: Path) -> tuple[Results, str]:
    config = TrainConfig(
        init_checkpoint=str(shared / "pretrained/bert_tiny_reviews"),
        max_seq_length=LENGTH,
        dropout=0.0,
        learning_rate=1e-4,
        target_batch=TARGET,
    )
    source = find_model(config, silent)
    assert source.vocabulary is not None
    tokenization = Tokenization(source.vocabulary, LENGTH)
    data = prepared_yelp(shared, out)
    task = make_task(read_labels(data))
    store = first_rows(open_store(data / "train.tsv", task, tokenization, silent), EXAMPLES)
    model = build_model(config, source, outputs=2)
    results: Results = []
    for updates in (0, 100):
        if updates:
            estimated(model, config, store, 8, make_cut("cost", store.largest), updates)
        noise, signal = of_single_examples(model, config, store)
        result: dict[str, Any] = {"updates": updates, "noise": noise, "signal": signal}
        say(str(result))
        still = dataclasses.replace(config, learning_rate=1e-30, weight_decay=0.0)
        for size, kind in CUTS:
            cut = make_cut(kind, store.largest)
            fields = estimated(model, still, store, size, cut, UPDATES)
            lines = [{"update": number} | one for number, one in enumerate(fields)]
            found = noise_scale(lines, part=1.0)
            assert found is not None
            result[f"{size}, {kind}"] = [found.noise_scale, found.standard_error]
            say(f"{size}, {kind}: {found}")
        results.append(result)
    names = [f"{size}, {kind}" for size, kind in CUTS]
    rows = [
        [
            r["updates"],
            f"{r['noise'] / r['signal']:.2f}",
            *("{:.2f} ± {:.2f}".format(*r[n]) for n in names),
        ]
        for r in results
    ]
    return results, table(["updates", "single examples", *names], rows)


def first_rows(store: TokenStore, count: int) -> TokenStore:
    kept = {name: getattr(store, name)[:count] for name in ("shapes", "labels", "weights")}
    return dataclasses.replace(store, offsets=store.offsets[: count + 1], **kept)


def estimated(
    model: Any, config: TrainConfig, store: TokenStore, size: int, cut: Cut, updates: int
) -> list[dict[str, Any]]:
    """Train for some updates, and return the estimates of those that have any."""
    optimizer = make_optimizer(config, updates, 2)
    optimizer.build(model.trainable_variables)
    optimizer.observer, names = gradient_products(model.trainable_variables, grouped=False)
    update = make_update(TASK, model, optimizer, 0, accumulate=True)
    meter = NoiseMeter(len(store), TARGET)
    meter.names, found = names, []
    for number in range(updates):
        _, rows = window_rows(number, len(store), TARGET, 0)
        results = update(make_window(store, rows, size, cut))
        found.append(meter.add(number, store.weights[rows], results))
    return list(filter(None, found))


def of_single_examples(model: Any, config: TrainConfig, store: TokenStore) -> tuple[float, float]:
    """Return the noise and the signal of the gradients of all examples of a store."""
    trainee = Trainee(TASK, model, make_optimizer(config, 1, 1), seed=0)
    trainee.optimizer.build(model.trainable_variables)

    @tf.function(input_signature=trainee.signature())
    def gradient(*window: Any) -> Any:
        _, gradients = trainee.micro_step(trainee.open_share(window).micro_batch(0))
        return tf.concat([tf.reshape(tf.convert_to_tensor(g), [-1]) for g in gradients], axis=0)

    total, squares = 0.0, 0.0
    for row in range(len(store)):
        window = make_window(store, np.array([row]), 1)
        found = gradient(*window.tensors).numpy().astype(np.float64)
        total, squares = total + found, squares + float(found @ found)
    mean = total / len(store)
    signal = float(mean @ mean)
    return squares / len(store) - signal, signal


def cost(*_: Path) -> tuple[Results, str]:
    results, window = [], full_window(LENGTH)
    for preset in ("bert-tiny", "bert-small"):
        for precision in ("float32", "mixed_bfloat16"):
            runs = {}
            for kind in ("with", "without"):
                model, optimizer, update = build(precision, preset)
                if kind == "with":
                    optimizer.observer, _ = gradient_products(model.trainable_variables, False)
                runs[kind] = partial(update, window)
            timed = interleaved(runs, 31)
            ratio = timed["with"] / timed["without"]
            results.append({"preset": preset, "precision": precision, "ratio": ratio} | timed)
    rows = [
        [
            r["preset"],
            r["precision"],
            f"{r['without']:.4f}",
            f"{r['with']:.4f}",
            f"{r['ratio']:.3f}",
        ]
        for r in results
    ]
    return results, table(["model", "precision", "without, s", "with, s", "ratio"], rows)


if __name__ == "__main__":
    run_part(__doc__.splitlines()[0], "noise_scale", {"brute": brute, "cost": cost})
