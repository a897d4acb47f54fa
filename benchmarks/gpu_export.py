"""Files for a machine with a GPU that has neither bertaccum nor TensorFlow.

`on_gpu.py` of the folder `peers` reads them. XLA's programs are written as StableHLO, so that JAX
can time them there.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tools import TASK, vocabulary_file, write_tokens, yelp_stores

from bertaccum.bert.dropout import draw_masks, dropout_masks
from bertaccum.bert.model_inputs import encoder_inputs
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.config import TrainConfig
from bertaccum.training.initial_model import build_model
from bertaccum.training.recipe import make_optimizer

ROWS, TARGET = 4000, 32
MODELS, LENGTHS = ("bert-small", "bert-base"), (128, 512)
PRECISIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
SHAPES = ((8, 128), (32, 128), (8, 512))
# A compiled function and the arguments that it is compiled for.
Step = tuple[Callable[..., Any], tuple[Any, ...]]


def write_all(shared: Path, folder: Path) -> list[Path]:
    """Write reviews, dimensions and compiled steps, and return the paths of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for length, store in yelp_stores(shared, folder, LENGTHS):
        write_tokens(store, ROWS, folder / f"tokens-{length}.npz")
    encoders = {model: dataclasses.asdict(PRESET_CONFIGS[model]) for model in MODELS}
    (folder / "encoders.json").write_text(json.dumps(encoders, indent=2) + "\n")
    shutil.copyfile(vocabulary_file(shared), folder / "vocab.txt")
    for name, (run, arguments) in steps():
        text = run.experimental_get_compiler_ir(*arguments)(stage="stablehlo")
        (folder / f"{name}.stablehlo").write_text(text)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def steps() -> Iterator[tuple[str, Step]]:
    """Yield a name and a step for each model, precision and shape."""
    for model in MODELS:
        for short, precision in PRECISIONS.items():
            config = TrainConfig(precision=precision, recompute="none")
            source = ModelSource(model, PRESET_CONFIGS[model], None, None)
            built = build_model(config, source, outputs=2)
            optimizer = make_optimizer(config, 1000, 4)
            optimizer.build(built.trainable_variables)
            for rows, length in SHAPES:
                yield (
                    f"{model}-{short}-micro-step-{rows}x{length}",
                    micro_step(built, optimizer, rows, length),
                )
            yield f"{model}-{short}-optimizer-step", optimizer_step(optimizer)


def micro_step(model: Any, optimizer: Any, rows: int, length: int) -> Step:
    """Return forward and backward passes and the accumulation of gradients, for one shape."""
    seed = tf.constant([0, 0], tf.int64)
    masks = draw_masks(model, seed, tf.constant(rows))
    words = PRESET_CONFIGS["bert-small"].vocab_size
    # Programs that time this one pass the same number for each token. Different tokens are needed,
    # because the gradients of equal tokens are added to one row of the embeddings.
    spread = np.random.default_rng(0).integers(1, words - 1, (rows, length)).astype(np.int32)

    @tf.function(jit_compile=True, autograph=False)
    def run(token_ids: Any, padding_mask: Any, labels: Any, weights: Any, pools: Any) -> tf.Tensor:
        own = dataclasses.replace(masks, pools=pools)
        token_ids = tf.math.floormod(token_ids + spread, words)
        with tf.GradientTape() as tape, dropout_masks(own):
            logits = model(encoder_inputs(token_ids, padding_mask), training=True)
            losses = TASK.losses(tf.cast(logits, tf.float32), labels)
            loss = tf.reduce_sum(losses * weights) / TARGET
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.accumulate(zip(gradients, variables, strict=True), weight=rows / TARGET)
        return loss

    ones = tf.ones([rows, length], tf.int32)
    return run, (ones, ones, tf.ones([rows], tf.int32), tf.ones([rows]), masks.pools)


def optimizer_step(optimizer: Any) -> Step:
    """Return the optimizer step: clipping, AdamW, and zeroing of the accumulators."""
    return tf.function(lambda: optimizer.apply(), jit_compile=True, autograph=False), ()
