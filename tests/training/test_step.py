"""The same target batch gives the same weights for any micro-batch size."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from small import CLASSIFICATION, ONE_LAYER

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.packed_tokens import encoder_inputs
from bertaccum.data.token_store import TokenStore
from bertaccum.data.windows import make_window, window_rows
from bertaccum.distribution.topology import Topology
from bertaccum.inference.predictor import Predictor, make_predict
from bertaccum.options.commands import TrainConfig
from bertaccum.planning.plan import make_plan
from bertaccum.system.progress import silent
from bertaccum.tasks import forward
from bertaccum.tasks.head import build_classifier
from bertaccum.training.recipe import build_model, make_optimizer, make_schedule
from bertaccum.training.step import make_update

# This is 25 times the default learning rate. A higher one would amplify rounding errors: the
# gradient of a key's bias is only rounding noise, which Adam scales to a full step.
CONFIG = TrainConfig(
    learning_rate=5e-4, target_batch=32, dropout=0.0, clip_norm=0.2, adam_beta2=0.99
)
# 100 examples are three windows of 32 and one of 4, so the tenth update is in the third epoch.
UPDATES = 10


def build(dropout: float = 0.0) -> tf_keras.Model:
    tf_keras.utils.set_random_seed(1)
    return build_classifier(build_encoder(ONE_LAYER, dropout), ONE_LAYER, 2, dropout)


def train(store: TokenStore, micro_batch: int) -> tuple[np.ndarray, list[dict[str, float]]]:
    """Return the weights after ten updates, and the results of each update."""
    plan = make_plan(CONFIG.target_batch, micro_batch)
    model, optimizer = build(), make_optimizer(CONFIG, UPDATES, plan.accumulation_steps)
    update, results = (
        make_update(CLASSIFICATION, model, optimizer, 0, plan.accumulation_steps > 1),
        [],
    )
    for number in range(UPDATES):
        _, rows = window_rows(number, len(store), CONFIG.target_batch, CONFIG.seed)
        results.append(update(make_window(store, rows, plan.micro_batch)))
    # A single micro-step needs no accumulators.
    assert bool(optimizer.accumulators) == (plan.accumulation_steps > 1)
    return np.concatenate([w.numpy().ravel() for w in model.trainable_variables]), results


@pytest.fixture(scope="module")
def large_batch(store: TokenStore) -> tuple[np.ndarray, list[dict[str, float]]]:
    """Train without `make_update`: plain tf_keras, full padding and no accumulation."""
    model = build()
    optimizer = tf_keras.optimizers.AdamW(
        0.0, weight_decay=CONFIG.weight_decay, beta_2=CONFIG.adam_beta2, epsilon=1e-8
    )
    optimizer.exclude_from_weight_decay(
        [v for v in model.trainable_variables if re.search("bias|gamma|beta", v.name)]
    )
    results = []
    for number in range(UPDATES):
        _, rows = window_rows(number, len(store), CONFIG.target_batch, CONFIG.seed)
        tokens = tf.ragged.constant(
            [store.token_ids[store.offsets[r] : store.offsets[r + 1]] for r in rows], tf.int32
        ).to_tensor(shape=[None, 32])
        inputs = encoder_inputs(tokens, tf.cast(tokens != 0, tf.int32))
        with tf.GradientTape() as tape:
            loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)(
                store.labels[rows], model(inputs, training=True)
            )
        gradients = [
            tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_variables)
        ]
        gradients, norm = tf.clip_by_global_norm(gradients, CONFIG.clip_norm)
        # The learning rate warms up from 0 in the first of ten updates, then decays linearly to 0.
        rate = CONFIG.learning_rate * (0 if number == 0 else (UPDATES - number) / (UPDATES - 1))
        optimizer.learning_rate = rate
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        results.append({"loss": float(loss), "grad_norm": float(norm), "learning_rate": rate})
    return np.concatenate([w.numpy().ravel() for w in model.trainable_variables]), results


@pytest.mark.parametrize("micro_batch", [32, 12, 1])
def test_same_weights_for_any_micro_batch(
    store: TokenStore, micro_batch: int, large_batch: tuple[np.ndarray, list[dict[str, float]]]
) -> None:
    weights, results = train(store, micro_batch)
    expected_weights, expected = large_batch
    np.testing.assert_allclose(weights, expected_weights, rtol=0, atol=1e-6)
    for key in ("loss", "grad_norm", "learning_rate"):
        np.testing.assert_allclose([r[key] for r in results], [r[key] for r in expected], rtol=1e-5)
    assert max(r["grad_norm"] for r in results) > CONFIG.clip_norm  # Clipping was active.
    assert all(r["applied"] for r in results)


def test_all_windows_share_one_trace_and_nonfinite_ones_are_skipped(store: TokenStore) -> None:
    model = build()
    traces = []
    call = model.call

    def counted(*arguments: object, **options: object) -> object:
        traces.append(1)
        return call(*arguments, **options)

    model.call = counted
    update = make_update(
        CLASSIFICATION, model, make_optimizer(CONFIG, UPDATES, accumulation_steps=4), 0, True
    )
    assert update(make_window(store, np.arange(32), 8))["applied"] == 1
    traced = len(traces)
    for start, size in ((32, 32), (64, 4), (10, 20)):
        update(make_window(store, np.arange(start, start + size), 8))
    weights = model.trainable_variables[-1]
    weights.assign(weights * np.nan)
    before = model.trainable_variables[0].numpy()
    assert update(make_window(store, np.arange(32), 8))["applied"] == 0
    np.testing.assert_array_equal(model.trainable_variables[0].numpy(), before)
    assert len(traces) == traced > 0


def test_dropout_is_active_in_training_only(store: TokenStore) -> None:
    model, window = build(dropout=0.5), make_window(store, np.arange(8), 8)
    predict = make_predict(model, Topology())
    np.testing.assert_array_equal(predict(window), predict(window))
    config = dataclasses.replace(CONFIG, learning_rate=1e-30, weight_decay=0.0)
    update = make_update(CLASSIFICATION, model, make_optimizer(config, UPDATES, 1), 0, False)
    assert update(window)["loss"] != update(window)["loss"]


def test_padding_does_not_change_predictions(store: TokenStore) -> None:
    model = build()
    alone, together = (Predictor(model, batch)(store, silent) for batch in (1, 32))
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
    predict = make_predict(model, Topology())
    for row in (0, len(store) - 1):
        (logits,) = predict(make_window(store, np.array([row]), 1))
        np.testing.assert_allclose(alone[row], logits[0, 0], rtol=0, atol=1e-6)


def test_biases_and_layer_norm_have_no_weight_decay() -> None:
    model = build()
    config = dataclasses.replace(CONFIG, weight_decay=0.5, warmup_fraction=0.0)
    optimizer = make_optimizer(config, 10, 1)
    optimizer.build(model.trainable_variables)
    before = [v.numpy() for v in model.trainable_variables]
    zeros = [tf.zeros_like(v) for v in model.trainable_variables]
    optimizer.apply_sums(zip(zeros, model.trainable_variables, strict=True), weight=1)
    for variable, old in zip(model.trainable_variables, before, strict=True):
        kept = re.search("bias|gamma|beta", variable.name)
        factor = 1.0 if kept else 1 - 0.5 * CONFIG.learning_rate
        np.testing.assert_allclose(variable.numpy(), old * factor, rtol=1e-6, err_msg=variable.name)


def test_schedule_warms_up_and_decays() -> None:
    schedule = make_schedule(TrainConfig(learning_rate=1.0, warmup_fraction=0.1), 100)
    expected = {0: 0.0, 5: 0.5, 10: 1.0, 55: 0.5, 100: 0.0}
    for update, rate in expected.items():
        np.testing.assert_allclose(float(schedule(update)), rate, atol=1e-6)


@pytest.fixture(scope="module")
def trained_in(store: TokenStore) -> Any:
    """Return a function that trains in a precision: model, optimizer, results of six updates."""

    @functools.cache
    def train_in(precision: str) -> tuple[tf_keras.Model, Any, list[dict[str, Any]]]:
        config = dataclasses.replace(CONFIG, precision=precision, warmup_fraction=0.0)
        model = build_model(config, ModelSource("tiny", ONE_LAYER, None, None), outputs=2)
        optimizer = make_optimizer(config, UPDATES, 4)
        update = make_update(CLASSIFICATION, model, optimizer, 0, True)
        # In float16 the first windows overflow until the loss scale is low enough.
        return model, optimizer, [update(make_window(store, np.arange(32), 8)) for _ in range(6)]

    return train_in


def test_loss_scale_does_not_change_the_gradient_norm(trained_in: Any) -> None:
    """The first windows in float16 may overflow, which changes only the loss scale."""
    precisions = ("float32", "mixed_float16")
    plain, scaled = (next(r for r in trained_in(p)[2] if r["applied"]) for p in precisions)
    assert scaled["grad_norm"] == pytest.approx(plain["grad_norm"], rel=0.05)


@pytest.mark.parametrize("precision", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_each_precision_trains_in_its_compute_dtype(
    store: TokenStore, trained_in: Any, precision: str
) -> None:
    model, optimizer, results = trained_in(precision)
    compute = {"float32": "float32", "mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
    assert model.layers[-1].compute_dtype == compute[precision]
    scaled = isinstance(optimizer.inner, tf_keras.mixed_precision.LossScaleOptimizer)
    assert scaled == (precision == "mixed_float16")
    assert results[1]["learning_rate"] == pytest.approx(CONFIG.learning_rate * 0.9)
    assert results[-1]["loss"] < results[0]["loss"]
    (logits,) = make_predict(model, Topology())(make_window(store, np.arange(32), 8))
    assert logits.dtype == np.float32
    padded = forward._padded(model, tf.ragged.constant([[5] * 9], dtype=tf.int32))
    assert padded["input_mask"].shape[1] == (9 if precision == "float32" else 16)
    assert tf_keras.mixed_precision.global_policy().name == "float32"
