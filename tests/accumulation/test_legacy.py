"""Tests that legacy tf_keras optimizers, also of tf-models-official, equal their large batch."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import fitting
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from forked import output
from official.modeling.optimization.ema_optimizer import ExponentialMovingAverage
from official.modeling.optimization.lars import LARS
from official.nlp.optimization import AdamWeightDecay, create_optimizer

from bertaccum.accumulation import AccumulatingOptimizer, accumulate_gradients

legacy = tf_keras.optimizers.legacy


def schedule() -> tf_keras.optimizers.schedules.LearningRateSchedule:
    return tf_keras.optimizers.schedules.PolynomialDecay(0.05, 20, 0.0)


def clipped_adamw() -> AdamWeightDecay:
    options = {"weight_decay_rate": 0.1, "exclude_from_weight_decay": ["bias"]}
    return AdamWeightDecay(schedule(), gradient_clip_norm=0.1, **options)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "create_optimizer": lambda: create_optimizer(0.05, 20, 3),
    "create_optimizer, LAMB": lambda: create_optimizer(0.05, 20, 3, optimizer_type="lamb"),
    "AdamWeightDecay that clips": clipped_adamw,
    "LARS": lambda: LARS(0.05, weight_decay_rate=0.1, exclude_from_weight_decay=["bias"]),
    "SGD": lambda: legacy.SGD(schedule(), momentum=0.9, global_clipnorm=0.1),
    "Adam": lambda: legacy.Adam(0.05, decay=0.1, clipnorm=0.1),
    "Adadelta": lambda: legacy.Adadelta(1.0),
    "Adagrad": lambda: legacy.Adagrad(0.05),
    "Adamax": lambda: legacy.Adamax(0.05),
    "Ftrl": lambda: legacy.Ftrl(0.05),
    "Nadam": lambda: legacy.Nadam(0.05),
    "RMSprop": lambda: legacy.RMSprop(0.05, clipvalue=0.1),
}


def flat(variables: list[tf.Variable]) -> np.ndarray:
    return np.concatenate([v.numpy().ravel() for v in variables])


# Every optimizer with one of the two faces; the two that users of BERT have with both.
FACES = [(name, ("optimizer", "model")[number % 2]) for number, name in enumerate(OPTIMIZERS)]
FACES += [("create_optimizer", "model"), ("AdamWeightDecay that clips", "model")]


@functools.cache
def trained_with_windows(name: str) -> np.ndarray:
    return fitting.fit(OPTIMIZERS[name], fitting.WINDOW, run_eagerly=True)[0]


@pytest.mark.parametrize(("name", "face"), FACES)
def test_legacy_optimizer_equals_its_large_batch(name: str, face: str) -> None:
    make, whole = OPTIMIZERS[name], trained_with_windows(name)
    if face == "model":
        network = lambda: accumulate_gradients(fitting.model(), 4)  # noqa: E731
        cut, trained = fitting.fit(make, fitting.WINDOW // 4, network=network)
    else:
        optimizer = lambda: AccumulatingOptimizer(make(), 4)  # noqa: E731
        cut, trained = fitting.fit(optimizer, fitting.WINDOW // 4)
    assert np.abs(whole - flat(fitting.model().trainable_variables)).max() > 1e-3
    np.testing.assert_allclose(cut, whole, rtol=0, atol=1e-6)
    updates = fitting.EPOCHS * fitting.EXAMPLES // fitting.WINDOW
    assert int(trained.optimizer.iterations.numpy()) == updates


def averaged(accumulate: bool) -> np.ndarray:
    """Return the averages of `ExponentialMovingAverage`, which counts updates, and the weights."""
    network = fitting.model()
    average = ExponentialMovingAverage(clipped_adamw(), average_decay=0.5)
    average.shadow_copy(network)
    optimizer = AccumulatingOptimizer(average, 4) if accumulate else average
    network.compile(optimizer, "mse", run_eagerly=not accumulate)
    size = fitting.WINDOW // 4 if accumulate else fitting.WINDOW
    network.fit(*fitting.data(), batch_size=size, shuffle=False, verbose=0)
    averages = [average.get_slot(v, "average") for v in network.trainable_variables]
    return flat([*averages, *network.trainable_variables])


def test_moving_average_of_tf_models_equals_that_of_the_large_batch() -> None:
    np.testing.assert_allclose(averaged(True), averaged(False), rtol=0, atol=1e-6)


@pytest.mark.parametrize("face", ["optimizer", "model"])
def test_overflow_lowers_the_loss_scale_of_a_legacy_optimizer(face: str) -> None:
    """The settings of the legacy `LossScaleOptimizer` are copied to the new one."""
    scaled = fitting.LossScale(legacy.SGD(0.1), initial_scale=64, dynamic_growth_steps=100)
    assert isinstance(scaled, legacy.Optimizer)
    network = fitting.model()
    if face == "model":
        accumulate_gradients(network, 4).compile(scaled, "mse")
    else:
        network.compile(AccumulatingOptimizer(scaled, 4), "mse")
    network.fit(*fitting.data(overflow=True), batch_size=4, shuffle=False, verbose=0)
    assert float(network.optimizer.loss_scale) == 32
    assert network.optimizer.dynamic_growth_steps == 100
    assert np.isfinite(flat(network.trainable_variables)).all()


def test_learning_rate_and_clipping_are_delegated_to_the_legacy_optimizer() -> None:
    optimizer = AccumulatingOptimizer(legacy.SGD(0.5, clipnorm=0.25))
    optimizer.learning_rate = 0.125
    assert float(optimizer.inner.inner.learning_rate) == float(optimizer.learning_rate) == 0.125
    assert optimizer.clipnorm == 0.25
    assert not hasattr(optimizer, "weight_decay")


# --- Two replicas ---------------------------------------------------------------------


def fit_on_replicas(strategy: tf.distribute.Strategy) -> float:
    """Return the weight difference to the large batch on one device, with effective clipping."""
    whole, _ = fitting.fit(clipped_adamw, fitting.WINDOW, run_eagerly=True)
    with strategy.scope():
        cut, _ = fitting.fit(lambda: AccumulatingOptimizer(clipped_adamw(), 4), fitting.WINDOW // 4)
    return float(np.abs(whole - cut).max())


def end_windows_outside(strategy: tf.distribute.Strategy) -> list[float]:
    """Return a weight of 8 after one update outside the scope, per way to end a window."""
    left = []
    for name, traced in (("apply", False), ("apply", True), ("flush", False), ("flush", True)):
        with strategy.scope():
            weight = tf.Variable(8.0)
            optimizer = AccumulatingOptimizer(tf_keras.optimizers.SGD(1.0))
            optimizer.build([weight])

        def micro_step(optimizer: Any = optimizer, weight: Any = weight) -> None:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.accumulate([(tf.cast(1 + 2 * replica, tf.float32), weight)])

        strategy.run(micro_step)
        end = getattr(optimizer, name)
        assert (tf.function(end) if traced else end)()
        left.append(float(weight.numpy()))
        assert not optimizer.pending
    return left


def mean_of_unequal_shares(strategy: tf.distribute.Strategy) -> float:
    """Return the mean gradient of a sum of 1 with weight 1 and a sum of 6 with weight 3."""
    with strategy.scope():
        weight = tf.Variable(0.0)
        sgd = tf_keras.optimizers.SGD(1.0)
        optimizer = AccumulatingOptimizer(sgd, accumulator_dtype="bfloat16")
        optimizer.build([weight])

    def micro_step() -> None:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        number = tf.cast(replica, tf.float32)
        optimizer.accumulate([(1 + 5 * number, weight)], 1 + 2 * number)

    strategy.run(micro_step)
    assert optimizer.apply()
    return -float(weight.numpy())


def on_two_replicas() -> None:
    """Print results on two logical CPUs, which exist only in a process of its own."""
    strategy = fitting.make_strategy(2)
    results = {"legacy": fit_on_replicas(strategy), "left": end_windows_outside(strategy)}
    print(json.dumps(results | {"mean": mean_of_unequal_shares(strategy)}))


@pytest.mark.slow
def test_two_replicas_equal_one_device_and_windows_can_end_outside_the_scope() -> None:
    results = json.loads(output("import test_legacy; test_legacy.on_two_replicas()"))
    assert results["legacy"] <= 1e-6
    assert results["left"] == [6.0] * 4  # 8 minus the mean of 1 and 3, subtracted once.
    assert results["mean"] == 1.75
