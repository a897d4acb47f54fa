"""`bertaccum.keras3` with features of TensorFlow: MirroredStrategy, datasets of unknown length."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from bertaccum.keras3 import AccumBatchNormalization, accumulate_gradients

# Windows of 36 in batches of 12. An epoch ends with a partial window, with batches of 12 and 1; in
# the last one, one of two replicas has no example.
EXAMPLES, WINDOW, STEPS = 49, 36, 3


def network() -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(20, 4),
            layers.Flatten(),
            layers.Dense(3, kernel_regularizer="l2"),
        ]
    )


def adamw() -> keras.optimizers.Optimizer:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.7)
    return keras.optimizers.AdamW(schedule, global_clipnorm=0.05, use_ema=True)


def scaled_adamw() -> keras.optimizers.Optimizer:
    return keras.optimizers.LossScaleOptimizer(adamw(), initial_scale=1024.0)


def scaled() -> keras.optimizers.Optimizer:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=1024.0)


def several() -> keras.optimizers.Optimizer:
    optimizers = keras.optimizers
    by_path = optimizers.OptimizerMap(optimizers.Adam(0.01), {".*bias": optimizers.SGD(0.1)})
    return optimizers.MultiOptimizer(by_path)


def trained(
    strategy: tf.distribute.Strategy,
    optimizer: Callable[[], Any],
    steps: int,
    on_partial: str = "apply",
    epochs: int = 3,
) -> keras.Model:
    """Train a model; with one step, on whole windows and eagerly."""
    rng = np.random.default_rng(0)
    tokens, labels = rng.integers(0, 20, (EXAMPLES, 6)), rng.integers(0, 3, EXAMPLES)
    with strategy.scope():
        model = accumulate_gradients(network(), steps, on_partial)
        model.compile(
            optimizer(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            run_eagerly=steps == 1,
            jit_compile=False,
        )
    batch = WINDOW // steps
    model.fit(tokens, labels, batch_size=batch, epochs=epochs, shuffle=False, verbose=0)
    return model


def difference(one: keras.Model, other: keras.Model) -> float:
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return float(max(np.abs(a - b).max() for a, b in pairs))


def statistics(strategy: tf.distribute.Strategy, steps: int) -> np.ndarray:
    """Return the moving statistics of a batch normalization that sees the inputs."""
    # The last batch has 9 examples, which two replicas cannot share equally.
    features = np.random.default_rng(0).normal(1, 2, (69, 3)).astype("float32")
    with strategy.scope():
        keras.utils.set_random_seed(0)
        options = {"momentum": 0.8, "synchronized": True}
        layer = AccumBatchNormalization(steps, **options)
        model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
        accumulate_gradients(model, steps).compile("sgd", "mse", jit_compile=False)
    batch = WINDOW // steps
    model.fit(features, features[:, :1], batch_size=batch, shuffle=False, verbose=0)
    assert layer.get_config()["momentum"] == 0.8
    return np.stack([layer.moving_mean.numpy(), layer.moving_variance.numpy()])


def measure(folder: Path) -> dict[str, Any]:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    one = tf.distribute.get_strategy()
    found: dict[str, Any] = {"reduced": []}
    all_reduce = tf.distribute.ReplicaContext.all_reduce

    def counted(self: Any, operation: Any, value: Any, *rest: Any) -> Any:
        found["reduced"].append(sum(t.shape.num_elements() for t in tf.nest.flatten(value)))
        return all_reduce(self, operation, value, *rest)

    tf.distribute.ReplicaContext.all_reduce = counted
    model = trained(mirrored, adamw, STEPS)
    tf.distribute.ReplicaContext.all_reduce = all_reduce
    found["parameters"] = model.count_params()
    found["adamw"] = difference(model, trained(one, adamw, 1))
    found["scaled"] = difference(trained(mirrored, scaled, STEPS), trained(one, scaled, 1))

    found["normalized"] = [statistics(mirrored, STEPS), statistics(one, 1)]
    found["several"] = difference(trained(mirrored, several, STEPS), trained(one, several, 1))

    part = trained(mirrored, scaled, STEPS, "carry", epochs=1)
    part.save(folder / "model.keras")
    with mirrored.scope():
        loaded = keras.saving.load_model(folder / "model.keras")
    found["pending"] = loaded.optimizer.pending
    for model in (part, loaded):
        model.optimizer.flush()
    found["loaded"] = difference(part, loaded)
    found["carried"] = difference(part, trained(one, scaled, 1, epochs=1))
    return found


@pytest.mark.slow
def test_replicas(tmp_path: Path) -> None:
    # The devices must be configured before TensorFlow starts.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(measure, (tmp_path,))
    assert found["adamw"] < 1e-6
    assert found["scaled"] < 1e-6
    assert found["several"] < 1e-6
    np.testing.assert_allclose(*found["normalized"], rtol=1e-5)
    # Two replicas reduce all gradients and the weight, in the traced step and in the partial
    # windows of three epochs.
    assert found["reduced"] == [found["parameters"] + 1] * 2 * 4
    assert found["pending"]
    assert found["loaded"] < 1e-6
    assert found["carried"] < 1e-6


def test_strategy_with_one_replica() -> None:
    mirrored = tf.distribute.MirroredStrategy(["CPU:0"])
    one = trained(tf.distribute.get_strategy(), scaled_adamw, 1, epochs=1)
    assert difference(trained(mirrored, scaled_adamw, STEPS, epochs=1), one) < 1e-6


@pytest.mark.parametrize("jit_compile", [False, True])
def test_end_of_a_dataset_is_no_micro_step(jit_compile: bool) -> None:
    """Without a known length, `fit` starts one more step, which fails when it reads the batch."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(48, 3)).astype("float32")
    batches = list(zip(features.reshape(6, 8, 3), features.sum(1).reshape(6, 8, 1), strict=True))
    shapes = tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1))
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=shapes)
    keras.utils.set_random_seed(0)
    normalization = AccumBatchNormalization(4)
    model = keras.Sequential([keras.Input((3,)), normalization, keras.layers.Dense(1)])
    accumulate_gradients(model, 4, "carry").compile("sgd", "mse", jit_compile=jit_compile)
    model.fit(dataset, epochs=1, verbose=0, shuffle=False)
    state = [float(v.numpy()) for v in model.optimizer.variables if v.name == "micro_step"]
    assert state == [2] and float(normalization.window_calls.numpy()) == 2
    assert int(model.optimizer.iterations) == 1


class Values(keras.Sequential):
    """A model whose step differentiates one loss per example, as in Keras' guides."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.optimizer.scale_loss(keras.losses.mean_squared_error(y, self(x)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": tf.reduce_mean(loss)}


def test_step_that_differentiates_the_losses_of_examples_adds_them_up() -> None:
    """Micro-batches of 3, 3 and 2 examples equal a batch of 8."""
    features = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    found = []
    for steps in (0, 3):
        keras.utils.set_random_seed(0)
        model = Values([keras.Input((3,)), keras.layers.Dense(2)])
        if steps:
            accumulate_gradients(model, steps)
        sgd = keras.optimizers.SGD(0.01, momentum=0.9)
        model.compile(keras.optimizers.LossScaleOptimizer(sgd), run_eagerly=True)
        model.fit(
            features,
            features[:, :2],
            batch_size=3 if steps else 8,
            epochs=2,
            verbose=0,
            shuffle=False,
        )
        found.append(model)
    assert difference(*found) < 1e-6
