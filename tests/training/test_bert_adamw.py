"""`--optimizer bert-adamw` against a numpy version of google-research/bert's optimization.py."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import tensorflow as tf

from bertaccum.options.commands import TrainConfig
from bertaccum.options.offload_rungs import OFFLOAD
from bertaccum.training.recipe import make_optimizer, make_schedule

UPDATES, WINDOW, PARTS = 14, 6, (2, 3, 1)
CONFIG = TrainConfig(optimizer="bert-adamw", learning_rate=1e-3, warmup_fraction=0.35)
# These are the encoder's variable names; only the kernel has weight decay.
KERNEL, BIAS, GAMMA = "dense/kernel", "dense/bias", "output_layer_norm/gamma"

Weights = dict[str, np.ndarray]


def first_weights() -> Weights:
    rng = np.random.default_rng(1)
    return {KERNEL: rng.normal(size=(4, 3)), BIAS: np.full(3, 0.5), GAMMA: np.full(3, 1.5)}


def windows() -> list[tuple[np.ndarray, np.ndarray, float]]:
    """Return features, targets and a loss factor for each window.

    The gradients of two windows in three are clipped. Two features are so small that epsilon
    matters.
    """
    rng = np.random.default_rng(2)
    sizes = ([1, 1, 1e-4, 1e-4], [1, 1, 1])
    return [
        (*(rng.normal(size=(WINDOW, len(s))) * s for s in sizes), 0.01 if n % 3 == 2 else 1.0)
        for n in range(UPDATES)
    ]


def mean_gradient(weights: Weights, features: np.ndarray, targets: np.ndarray) -> Weights:
    """Return the analytic gradient of the mean of sum((gamma * (x kernel + bias) - y)^2)."""
    hidden = features @ weights[KERNEL] + weights[BIAS]
    error = 2 * (weights[GAMMA] * hidden - targets) / len(features)
    at_hidden = error * weights[GAMMA]
    return {
        KERNEL: features.T @ at_hidden,
        BIAS: at_hidden.sum(axis=0),
        GAMMA: (error * hidden).sum(axis=0),
    }


def expected_rate(step: int, steps: int, config: TrainConfig) -> float:
    warmup = int(steps * config.warmup_fraction)
    if step < warmup:
        return config.learning_rate * step / warmup
    return config.learning_rate * (1 - step / steps)


def expected() -> tuple[Weights, list[float]]:
    """Return the weights after all updates and the norms before clipping, in float64."""
    weights, norms = first_weights(), []
    first = {name: np.zeros_like(w) for name, w in weights.items()}
    second = {name: np.zeros_like(w) for name, w in weights.items()}
    for step, (features, targets, factor) in enumerate(windows()):
        gradient = mean_gradient(weights, features, targets)
        gradient = {name: factor * g for name, g in gradient.items()}
        norms.append(math.sqrt(sum((g**2).sum() for g in gradient.values())))
        for name, weight in weights.items():
            clipped = gradient[name] * min(1.0, 1.0 / norms[-1])
            first[name] = 0.9 * first[name] + 0.1 * clipped
            second[name] = 0.999 * second[name] + 0.001 * clipped**2
            change = first[name] / (np.sqrt(second[name]) + 1e-6)
            if not re.search("LayerNorm|layer_norm|bias", name):
                change = change + 0.01 * weight
            weights[name] = weight - expected_rate(step, UPDATES, CONFIG) * change
    return weights, norms


def trained(offload: str) -> Weights:
    """Return the weights after training with the recipe's optimizer in a `tf.function`."""
    variables = {n: tf.Variable(w, dtype=tf.float32, name=n) for n, w in first_weights().items()}
    config = TrainConfig(**{**vars(CONFIG), "offload": offload})
    optimizer = make_optimizer(config, UPDATES, len(PARTS))
    optimizer.build(list(variables.values()))

    @tf.function
    def update(features: tf.Tensor, targets: tf.Tensor, factor: tf.Tensor) -> None:
        for x, y in zip(tf.split(features, PARTS), tf.split(targets, PARTS), strict=True):
            with tf.GradientTape() as tape:
                hidden = x @ variables[KERNEL] + variables[BIAS]
                loss = factor * tf.reduce_sum((variables[GAMMA] * hidden - y) ** 2)
            gradients = tape.gradient(loss, list(variables.values()))
            pairs = zip(gradients, variables.values(), strict=True)
            optimizer.accumulate(pairs, tf.cast(len(x), tf.float32))
        optimizer.apply()

    for window in windows():
        update(*(tf.constant(part, tf.float32) for part in window))
    assert optimizer.iterations == UPDATES
    return {name: variable.numpy() for name, variable in variables.items()}


# A step changes a weight by up to 6e-3. In float32, 1 - 0.999 has a relative error of 1.3e-5, so
# a step has half that error, which adds up to 5e-7 over 14 updates.
@pytest.mark.parametrize("offload", OFFLOAD)
def test_updates_equal_those_of_google_bert(offload: str) -> None:
    weights, norms = expected()
    clipped = [norm > 1 for norm in norms]
    assert any(clipped) and not all(clipped)
    before = first_weights()
    for name, found in trained(offload).items():
        assert np.abs(weights[name] - before[name]).min() > 1e-4
        np.testing.assert_allclose(found, weights[name], rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("updates", "fraction"), [(17, 0.1), (50, 0.29), (20, 0.0), (4, 1.0)])
def test_learning_rate_decays_from_the_first_update(updates: int, fraction: float) -> None:
    config = TrainConfig(optimizer="bert-adamw", learning_rate=1.0, warmup_fraction=fraction)
    schedule = make_schedule(config, updates)
    rates = [float(schedule(step)) for step in range(updates)]
    wanted = [expected_rate(step, updates, config) for step in range(updates)]
    np.testing.assert_allclose(rates, wanted, atol=1e-6)
