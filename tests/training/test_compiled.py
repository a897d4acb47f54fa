"""Compiled steps give the same updates, whatever shapes micro-batches are padded to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from small import CLASSIFICATION, ONE_LAYER, TINY

from bertaccum.accumulation.offload.host_memory import HostTensor
from bertaccum.bert.encoder import build_encoder, freeze, set_recompute
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.packed_tokens import example_shapes
from bertaccum.bert.tokenization import NEXT_PASSAGE
from bertaccum.data.token_store import TokenStore
from bertaccum.data.windows import Window, empty_window, make_window, window_rows
from bertaccum.options.commands import TrainConfig
from bertaccum.tasks.head import build_classifier
from bertaccum.training.noise_scale import gradient_products
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.step import make_update

CONFIG = TrainConfig(learning_rate=5e-4, target_batch=32, clip_norm=0.2, weight_decay=0.01)
UPDATES = 4
# The longest example has 20 tokens. XLA compiles each shape.
PADDED = [[(12, 20)] * 3, [(14, 24)] * 3]


@dataclasses.dataclass(frozen=True)
class Case:
    """A way to train.

    Args:
      pool: How passages are combined; None for texts of one passage.
      recompute: Whether layers are recomputed.
      options: Options of `train`.
      observed: Whether the noise scale is estimated.
      stream: How dropout masks are seeded.
      dimensions: Those of the encoder.
    """

    pool: str | None = None
    recompute: bool = False
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    observed: bool = False
    stream: str = "example"
    dimensions: EncoderConfig = ONE_LAYER


CASES = {
    "maximum of passages, noise scale": Case(pool="max", observed=True),
    "recomputed, frozen layer": Case(recompute=True, options={"train_layers": 1}, dimensions=TINY),
    "mean of passages, masks of micro-batches, bert-adamw, moments in host memory": Case(
        pool="mean", options={"optimizer": "bert-adamw", "offload": "moments"}, stream="micro-batch"
    ),
}
FAST = "maximum of passages, noise scale"


def passages_of(store: TokenStore) -> TokenStore:
    """Return the store with texts of one passage to three, and with weights, some of them 0."""
    tokens = store.token_ids.copy()
    for number, (start, end) in enumerate(zip(store.offsets[:-1], store.offsets[1:], strict=True)):
        for part in range(1, min(1 + number % 3, (end - start) // 3)):
            tokens[start + 3 * part] += NEXT_PASSAGE
    weights = (np.arange(len(store)) % 4 / 2).astype(np.float32)
    shapes = example_shapes(tokens, store.offsets)
    return dataclasses.replace(store, token_ids=tokens, weights=weights, shapes=shapes)


def window_of(store: TokenStore, number: int, padded: Sequence[tuple[int, int]] | None) -> Window:
    _, rows = window_rows(number, len(store), CONFIG.target_batch, CONFIG.seed)
    window = make_window(store, rows, 12)
    if padded is None:
        return window
    shapes = np.array(padded[: window.micro_steps], np.int32)
    if store.largest[0] > 1:
        shapes[:, 0] *= 3  # Rows are passages.
    return dataclasses.replace(window, padded=shapes)


def trained(store: TokenStore, case: Case, compile: bool) -> list[np.ndarray]:
    """Return the weights, and what the optimizer and the noise scale keep, after some updates."""
    tf_keras.utils.set_random_seed(1)
    encoder = build_encoder(case.dimensions, 0.1)
    config = dataclasses.replace(CONFIG, **case.options)
    freeze(encoder, config.train_layers, False)
    set_recompute(encoder, case.recompute)
    model = build_classifier(encoder, TINY, 2, 0.1, case.pool)
    optimizer = make_optimizer(config, UPDATES, 3)
    optimizer.build(model.trainable_variables)
    kept: list[Any] = []
    if case.observed:
        optimizer.observer, _ = gradient_products(model.trainable_variables, False)
        kept = optimizer.observer.kept
    made_of = CLASSIFICATION, model, optimizer, 0, True
    update = make_update(*made_of, dropout_stream=case.stream, compile=compile)
    if compile:
        check_empty_window(store, update, model, optimizer)
    losses = []
    for number in range(UPDATES):
        results = update(window_of(store, number, PADDED[0] if compile else None))
        assert results["applied"]
        losses.append(results["loss"])
    return [np.array(losses), *(v.numpy() for v in [*model.trainable_variables, *kept])]


def check_empty_window(store: TokenStore, update: Any, model: Any, optimizer: Any) -> None:
    """Check that an empty window changes nothing; a run compiles its steps with such windows."""
    own = [optimizer.step, optimizer.skipped_windows, *optimizer.accumulators]
    kept = [*model.variables, *optimizer.inner.variables, *own]
    kept = [v.on("") if isinstance(v, HostTensor) else v for v in kept]
    before = [v.numpy().copy() for v in kept]
    rows, length = PADDED[0][0]
    shape = rows * (3 if store.largest[0] > 1 else 1), length
    assert not update(empty_window(shape, store.labels[:0]))["applied"]
    optimizer.drop()
    for variable, value in zip(kept, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == FAST else pytest.mark.slow) for n in CASES]
)
def test_updates_equal_those_of_uncompiled_steps(store: TokenStore, name: str) -> None:
    case = CASES[name]
    data = passages_of(store) if case.pool else store
    plain, compiled = (trained(data, case, compile) for compile in (False, True))
    for one, other in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def small(precision: str) -> tuple[Any, Any, Any]:
    """Return a model, its optimizer and a compiled update."""
    tf_keras.utils.set_random_seed(1)
    tf_keras.mixed_precision.set_global_policy(precision)
    try:
        model = build_classifier(build_encoder(ONE_LAYER, 0.1), TINY, 2, 0.1)
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    optimizer = make_optimizer(dataclasses.replace(CONFIG, precision=precision), UPDATES, 3)
    update = make_update(CLASSIFICATION, model, optimizer, 0, True, compile=True)
    return model, optimizer, update


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_repeatable_and_close(store: TokenStore, precision: str) -> None:
    """XLA keeps more digits within a kernel, so updates equal only those of the same shapes."""
    found = []
    model, optimizer, update = small(precision)
    optimizer.build(model.trainable_variables)
    start = [(v, v.numpy()) for v in [*model.variables, *optimizer.inner.variables]]
    for padded in (PADDED[0], PADDED[0], PADDED[1]):
        for variable, value in start:
            variable.assign(value)
        losses = [update(window_of(store, n, padded))["loss"] for n in range(UPDATES)]
        found.append([np.array(losses), *(v.numpy() for v in model.trainable_variables)])
    for one, again, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, again)
        np.testing.assert_allclose(other, one, rtol=0, atol=0.05)


def test_masks_do_not_depend_on_compiling() -> None:
    """XLA has another default algorithm for random numbers."""
    from bertaccum.bert.dropout import draw_masks

    model = build_encoder(TINY, 0.1)

    def draw(seed: tf.Tensor) -> Any:
        masks = draw_masks(model, seed, tf.constant(8))
        return masks.pools, masks.of_sites, masks.offsets

    compiled = tf.function(draw, jit_compile=True)
    for seed in ([0, 3], [-5, 2**40]):
        numbers = tf.constant(seed, tf.int64)
        tf.nest.map_structure(np.testing.assert_array_equal, compiled(numbers), draw(numbers))
