"""Measures dropout with one mask per example: its exactness and its cost.

    python benchmarks/dropout.py exactness     # 4 minutes on 2 cores
    python benchmarks/dropout.py price         # 2 minutes

`exactness` trains BERT-Tiny for ten updates on random tokens with dropout 0.1, and reports the
largest difference between a weight and the same weight after training without micro-batches. It
compares one mask per example with a fresh mask per micro-batch (`--dropout-stream micro-batch`), as
in other frameworks. `price` alternates updates of BERT-Small (4 x 8, length 128) with our dropout
and with that of Keras, and reports the seconds per update. Each part writes dropout-<part>.json and
prints a Markdown table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tf_keras
from speed import PRECISIONS, TARGET, build, full_window, interleaved
from tools import TASK, random_store, run_part, table

from bertaccum.bert.dropout import ExampleDropout, present_masks
from bertaccum.bert.encoder import set_recompute
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.data.windows import make_window, window_rows
from bertaccum.options.commands import TrainConfig
from bertaccum.training.recipe import build_model, make_optimizer
from bertaccum.training.step import make_update

UPDATES, EXAMPLES, LENGTH = 10, 320, 64
CUTS = {"4 x 8": [8, 8, 8, 8], "12 + 12 + 8": [12, 12, 8], "32 x 1": [1] * 32, "3 + 29": [3, 29]}


def drawn(layer: ExampleDropout, axes: Sequence[Any], width: Any) -> tuple[tf.Tensor, float]:
    """Return a random mask, as Keras draws it, and the scale of the kept values."""
    shape = [tf.size(present_masks().offsets), *axes, width]
    return tf.random.uniform(shape) >= layer.rate, 1 / (1 - layer.rate)


@contextmanager
def drawn_anew() -> Iterator[None]:
    """Replace our dropout with that of Keras in models that are traced inside the `with` block."""
    own = tf_keras.layers.Dropout.call

    def call(layer: Any, inputs: Any, training: Any = None, length: Any = None) -> Any:
        return own(layer, inputs, training)

    with mock.patch.multiple(ExampleDropout, call=call, keep=drawn):
        yield


def trained(sizes: list[int], stream: str = "example", recompute: bool = False) -> list[np.ndarray]:
    """Return the weights after ten updates with micro-batches of these sizes in each window."""
    store = random_store(EXAMPLES, LENGTH)
    config = TrainConfig(precision="float32", learning_rate=5e-4)
    source = ModelSource("bert-tiny", PRESET_CONFIGS["bert-tiny"], None, None)
    model = build_model(config, source, outputs=2)
    if recompute:
        set_recompute(model.checkpoint_items["encoder"], True)
    optimizer = make_optimizer(config, 2 * UPDATES, len(sizes))
    update = make_update(TASK, model, optimizer, 0, len(sizes) > 1, dropout_stream=stream)
    for number in range(UPDATES):
        rows = window_rows(number, EXAMPLES, TARGET, 0)[1]
        update(make_window(store, rows, 8, lambda *_: np.cumsum([0, *sizes])))
    return model.get_weights()


def difference(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


def exactness(*_: Path) -> tuple[list[dict[str, Any]], str]:
    whole = trained([TARGET])
    other_whole = trained([TARGET], "micro-batch")
    results = []
    for name, sizes in CUTS.items():
        ours = difference(trained(sizes), whole)
        theirs = difference(trained(sizes, "micro-batch"), other_whole)
        results.append({"cut": name, "of_examples": ours, "of_micro_batches": theirs})
    recomputed = difference(trained([8] * 4, recompute=True), whole)
    results.append({"cut": "4 x 8, recomputed", "of_examples": recomputed})
    rows = [
        [
            r["cut"],
            f"{r['of_examples']:.0e}",
            f"{r['of_micro_batches']:.0e}" if "of_micro_batches" in r else "",
        ]
        for r in results
    ]
    return results, table(["cut", "masks of examples", "masks of micro-batches"], rows)


def price(*_: Path) -> tuple[list[dict[str, Any]], str]:
    results, window = [], full_window(128)
    for precision in PRECISIONS:
        _, _, ours = build(precision)
        _, _, theirs = build(precision)
        with drawn_anew():
            theirs(window)
        runs = {"of_examples": partial(ours, window), "keras": partial(theirs, window)}
        timed = interleaved(runs, 11)
        ratio = timed["of_examples"] / timed["keras"]
        results.append({"precision": precision, "ratio": ratio} | timed)
    rows = [
        [r["precision"], f"{r['of_examples']:.3f}", f"{r['keras']:.3f}", f"{r['ratio']:.3f}"]
        for r in results
    ]
    heads = ["precision", "masks of examples, s", "masks of Keras, s", "ratio"]
    return results, table(heads, rows)


if __name__ == "__main__":
    parts = {"exactness": exactness, "price": price}
    run_part(__doc__.splitlines()[0], "dropout", parts)
