"""Measures how far compiling moves updates, because XLA rounds in other places.

    python benchmarks/compiled.py rounding    # 4 minutes on 2 cores

`rounding` compares BERT-Mini with compiled steps, without, and with windows that are cut in another
way. It compares the gradients of one window, relative to their norm, and the weights after ten
updates, relative to the distance that they moved. It writes compiled-rounding.json and prints a
Markdown table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tf_keras
from speed import MICRO_BATCH, full_window
from tools import TASK, Results, run_part, table

from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.options.commands import TrainConfig
from bertaccum.training.recipe import build_model, make_optimizer
from bertaccum.training.step import make_update

UPDATES, LENGTH, MODEL = 10, 64, "bert-mini"
BFLOAT16 = "mixed_bfloat16"


def made(precision: str, compile: bool) -> tuple[Any, Any, Any]:
    """Return a model, its optimizer and a function that runs an update."""
    tf_keras.utils.set_random_seed(0)
    options = {"dropout": 0.1, "learning_rate": 2e-5, "warmup_fraction": 0.0}
    config = TrainConfig(precision=precision, recompute="none", **options)
    model = build_model(config, ModelSource(MODEL, PRESET_CONFIGS[MODEL], None, None), outputs=2)
    optimizer = make_optimizer(config, 1000, 4)
    return model, optimizer, make_update(TASK, model, optimizer, 0, True, compile=compile)


def flat(variables: Any) -> np.ndarray:
    return np.concatenate([v.numpy().ravel() for v in variables])


def trained(precision: str, compile: bool, micro_batch: int = MICRO_BATCH) -> Iterator[np.ndarray]:
    """Yield the gradient of the first window, and how far ten updates moved the weights."""
    model, optimizer, update = made(precision, compile)
    start = flat(model.trainable_variables)
    for number in range(UPDATES):
        window = full_window(LENGTH, micro_batch=micro_batch)
        tokens = np.random.default_rng(number).permutation(window.token_ids)
        update(dataclasses.replace(window, token_ids=tokens))
        if number == 0:  # AdamW's first moments are now a multiple of the gradient.
            yield flat(v for v in optimizer.inner.variables if v.name.startswith("m/"))
    yield flat(model.trainable_variables) - start


def rounding(*_: Path) -> tuple[Results, str]:
    """Compare gradients and weights of compiled and uncompiled updates."""
    runs = {
        "float32": ("float32", False),
        "float32, compiled": ("float32", True),
        "bfloat16": (BFLOAT16, False),
        "bfloat16, compiled": (BFLOAT16, True),
        "bfloat16, again": (BFLOAT16, True),
        "bfloat16, 2 x 16": (BFLOAT16, False, 16),
        "bfloat16, compiled, 2 x 16": (BFLOAT16, True, 16),
    }
    found = {name: list(trained(*arguments)) for name, arguments in runs.items()}
    pairs = [
        ("float32, compiled", "float32"),
        ("bfloat16", "float32"),
        ("bfloat16, compiled", "float32"),
        ("bfloat16, compiled", "bfloat16"),
        ("bfloat16, compiled", "bfloat16, again"),
        ("bfloat16, 2 x 16", "bfloat16"),
        ("bfloat16, compiled, 2 x 16", "bfloat16, compiled"),
    ]
    results = []
    for one, other in pairs:
        differences = [
            float(np.linalg.norm(a - b) / np.linalg.norm(b))
            for a, b in zip(found[one], found[other], strict=True)
        ]
        results.append({"one": one, "other": other, "differences": differences})
    rows = [[r["one"], r["other"], *(f"{d:.1e}" for d in r["differences"])] for r in results]
    return results, table(["updates", "compared with", "gradient", "ten updates"], rows)


if __name__ == "__main__":
    parts = {"rounding": rounding}
    run_part(__doc__.splitlines()[0], "compiled", parts)
