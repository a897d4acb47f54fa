"""Files for a machine with a GPU that has neither bertaccum nor TensorFlow.

`on_gpu.py` of the folder `peers` reads them. The programs of an update that XLA compiles are
written as StableHLO, so that JAX can time them there. A micro-step runs `gradients` and
`accumulation`. An update also runs `masks`, `norm`, `adamw` and `zeroing` once.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from speed import full_window
from tools import TASK, vocabulary_file, write_tokens, yelp_stores

from bertaccum.accumulation import adamw, sums, window_update
from bertaccum.bert.dropout import draw_masks
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.packed_tokens import PaddedTexts
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.options.commands import TrainConfig
from bertaccum.training.recipe import build_model, make_optimizer
from bertaccum.training.step import Trainee

ROWS, TARGET = 4000, 32
MODELS, LENGTHS = ("bert-small", "bert-base"), (128, 512)
PRECISIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
SHAPES = ((8, 128), (32, 128), (8, 512))
# Programs that time a compiled function pass 1 for each integer. Its integers are therefore
# constants times an argument: the gradients of equal tokens, for example, would all be added to
# one row of the embeddings.
# A function, and the arguments for which XLA compiles it.
Step = tuple[Callable[..., Any], tuple[Any, ...]]


def write_all(shared: Path, folder: Path) -> list[Path]:
    """Write reviews, dimensions and compiled steps, and return the paths of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for length, store in yelp_stores(shared, folder, LENGTHS):
        write_tokens(store, ROWS, folder / f"tokens-{length}.npz")
    encoders = {model: dataclasses.asdict(PRESET_CONFIGS[model]) for model in MODELS}
    (folder / "encoders.json").write_text(json.dumps(encoders, indent=2) + "\n")
    shutil.copyfile(vocabulary_file(shared), folder / "vocab.txt")
    for old in folder.glob("*.stablehlo"):
        old.unlink()
    for model in MODELS:
        for name, text in programs(model, SHAPES):
            (folder / f"{name}.stablehlo").write_text(text)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def programs(model: str, shapes: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, str]]:
    """Yield the name and the StableHLO of each program for a model, precisions and shapes."""
    for short, precision in PRECISIONS.items():
        trainee = make_trainee(model, precision)
        for rows, length in shapes:
            step = gradients(trainee, rows, length)
            yield f"{model}-{short}-gradients-{rows}x{length}", stablehlo(*step)
            # Weights and gradients are float32 in all precisions, and so are all other programs.
            if precision == "float32":
                step = accumulation(trainee, *step)
                yield f"{model}-accumulation-{rows}x{length}", stablehlo(*step)
    yield f"{model}-masks", stablehlo(*masks(trainee))
    for name, text in optimizer_step(trainee).items():
        yield f"{model}-{name}", text


def stablehlo(function: Callable[..., Any], arguments: tuple[Any, ...] = ()) -> str:
    compiled: Any = tf.function(function, jit_compile=True, autograph=False)
    return compiled.experimental_get_compiler_ir(*arguments)(stage="stablehlo")


def make_trainee(model: str, precision: str) -> Trainee:
    config = TrainConfig(precision=precision, recompute="none")
    built = build_model(config, ModelSource(model, PRESET_CONFIGS[model], None, None), outputs=2)
    optimizer = make_optimizer(config, 1000, 4)
    optimizer.compile_steps(True)
    optimizer.build(built.trainable_variables)
    return Trainee(TASK, built, optimizer, seed=0)


def gradients(trainee: Trainee, rows: int, length: int) -> Step:
    """Return forward and backward passes for one shape, as `Trainee` compiles them."""
    window = full_window(length, rows, rows)
    batch = trainee.open_share(window.tensors).micro_batch(0)
    fields = [getattr(batch.texts, field.name) for field in dataclasses.fields(PaddedTexts)]
    texts = [field.numpy() for field in fields if field is not None]
    labels, of_sites, offsets = (
        tensor.numpy() for tensor in (batch.labels, batch.masks.of_sites, batch.masks.offsets)
    )

    def run(one: Any, pools: Any, weights: Any, window_weight: Any) -> Any:
        own = dataclasses.replace(
            batch,
            texts=PaddedTexts(*(one * integers for integers in texts)),
            labels=one * labels,
            weights=weights,
            masks=dataclasses.replace(
                batch.masks, pools=pools, of_sites=one * of_sites, offsets=one * offsets
            ),
            window_weight=window_weight,
        )
        return trainee.micro_step(own)

    return run, (tf.constant(1), batch.masks.pools, batch.weights, batch.window_weight)


def accumulation(trainee: Trainee, gradients: Callable[..., Any], arguments: Any) -> Step:
    """Return the accumulation of what `gradients` returns for these arguments."""
    traced = tf.function(gradients, autograph=False).get_concrete_function(*arguments)
    _, found = traced.structured_outputs
    variables, rng = trainee.model.trainable_variables, np.random.default_rng(0)
    rows = {
        number: rng.integers(1, v.shape[0], g.values.shape[0])
        for number, (g, v) in enumerate(zip(found, variables, strict=True))
        if isinstance(g, tf.IndexedSlices)
    }

    def run(one: Any, values: Any, share: Any) -> None:
        own = list(values)
        for number, indices in rows.items():
            own[number] = tf.IndexedSlices(own[number], one * indices.astype(np.int32))
        trainee.optimizer.accumulate(zip(own, variables, strict=True), weight=share)

    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in found]
    zeros = [tf.zeros(value.shape, value.dtype) for value in values]
    return run, (tf.constant(1), zeros, tf.ones([], tf.float64))


def masks(trainee: Trainee) -> Step:
    """Return the drawing of an update's dropout masks."""

    def run(seed: Any) -> Any:
        drawn = draw_masks(trainee.model, seed, tf.constant(TARGET))
        return drawn.pools, drawn.of_sites

    return run, (tf.zeros([2], tf.int64),)


def optimizer_step(trainee: Trainee) -> dict[str, str]:
    """Return the programs of an optimizer step, each of which is written instead of being run."""
    found: dict[str, str] = {}

    def record(name: str) -> Callable[[Callable[[], Any], bool], tf.Tensor]:
        def write(function: Callable[[], Any], compile: bool) -> tf.Tensor:
            if compile:
                found[name] = stablehlo(function)
            return tf.ones([], tf.float64)  # The norm; others do not use the result.

        return write

    with ExitStack() as stack:
        for name, module in {"norm": window_update, "adamw": adamw, "zeroing": sums}.items():
            stack.enter_context(mock.patch.object(module, "maybe_compiled", record(name)))
        variables = trainee.model.trainable_variables
        trainee.optimizer.accumulate((tf.zeros(v.shape), v) for v in variables)
        trainee.optimizer.apply()
    return found
