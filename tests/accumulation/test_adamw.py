"""Tests that the AdamW optimizers equal that of tf_keras."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from forked import output

from bertaccum.accumulation.adamw import InPlaceAdamW

SHAPES = [(5, 3), (3,), (4, 2, 3)]
NAMES = ["kernel", "bias", "filters"]


def train(
    kind: type, dtype: str, traced: bool, factor: float, offload: bool = False
) -> list[np.ndarray]:
    """Return variables and optimizer state after six updates.

    Gradients are divided by `factor` first if the optimizer can multiply by it.
    """
    rng = np.random.default_rng(0)
    pairs = zip(SHAPES, NAMES, strict=True)
    variables = [tf.Variable(rng.normal(size=s), dtype=dtype, name=n) for s, n in pairs]
    schedule = tf_keras.optimizers.schedules.PolynomialDecay(0.1, 10, 0.0)
    optimizer = kind(schedule, weight_decay=0.1, epsilon=1e-8)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    if offload:
        optimizer.offload_moments()
    optimizer.build(variables)

    def update(*gradients: tf.Tensor) -> None:
        pairs = list(zip(gradients, variables, strict=True))
        if issubclass(kind, InPlaceAdamW):
            with optimizer.scaling(tf.constant(factor, tf.float64)):
                optimizer.apply_gradients([(g / factor, v) for g, v in pairs])
        else:
            optimizer.apply_gradients(pairs)

    run = tf.function(update) if traced else update
    for _ in range(6):
        run(*(tf.constant(rng.normal(size=s), dtype) for s in SHAPES))
    assert optimizer.iterations == 6
    moments = zip(optimizer._momentums, optimizer._velocities, strict=True)
    copies = [getattr(m, "copies", [m])[0] for pair in moments for m in pair]
    return [v.numpy() for v in (*variables, *copies)]


# In float32 the kernel's 1 - 0.999 has a relative error of 1.3e-5, and so has a second moment.
# Steps, which are up to 0.1 here, have half of this relative error.
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 5e-6)])
@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("factor", [1.0, 0.25])
@pytest.mark.parametrize("offload", [False, True])
def test_weights_and_moments_equal_those_of_tf_keras(
    offload: bool, dtype: str, bound: float, traced: bool, factor: float
) -> None:
    mine = train(InPlaceAdamW, dtype, traced, factor, offload)
    theirs = train(tf_keras.optimizers.AdamW, dtype, traced, factor)
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound)


def test_factor_applies_only_inside_its_context() -> None:
    variable = tf.Variable([1.0])
    optimizer = InPlaceAdamW(0.1, weight_decay=0.0)
    optimizer.build([variable])
    with optimizer.scaling(tf.constant(0.0, tf.float64)):
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    assert float(variable[0]) == 1.0
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    assert float(variable[0]) < 1.0


def test_optimizer_from_config_can_be_traced_twice() -> None:
    variables = [tf.Variable([1.0]), tf.Variable([2.0])]
    made = InPlaceAdamW(0.1, weight_decay=0.1, bias_correction=False)
    optimizer = InPlaceAdamW.from_config(made.get_config())
    assert not optimizer.bias_correction
    optimizer.build(variables)
    for _ in range(2):
        step = tf.function(
            lambda: optimizer.apply_gradients([(tf.constant([1.0]), v) for v in variables])
        )
        step()
    assert optimizer.iterations == 2


OTHER_DEVICE = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from bertaccum.options.commands import TrainConfig
from bertaccum.training.recipe import make_optimizer
cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)

def train(offload):
    with tf.device("CPU:1"):
        kernel = tf.Variable(np.linspace(-1, 1, 12).reshape(4, 3), dtype=tf.float32, name="kernel")
        config = TrainConfig(offload=offload, learning_rate=1e-2, warmup_fraction=0.0)
        optimizer = make_optimizer(config, 20, 2)
        optimizer.build([kernel])
        @tf.function
        def update(features):
            for part in (features[:2], features[2:]):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.sin(part @ kernel) ** 2)
                optimizer.accumulate([(tape.gradient(loss, kernel), kernel)], 2.0)
            return optimizer.apply()
        rng = np.random.default_rng(0)
        for _ in range(10):
            update(tf.constant(rng.normal(size=(4, 4)), tf.float32))
    return kernel.numpy(), kernel.device[-5:], len(optimizer.inner.variables)

start = np.linspace(-1, 1, 12).reshape(4, 3)
(here, *facts), (there, *others) = map(train, ("none", "all"))
moved = np.abs(here - start).max() > 0.05
# NumPy and TensorFlow may sum the squares of a gradient, for its norm, in another order.
print(facts, others, np.allclose(there, here, rtol=0, atol=1e-7), bool(moved))
"""


@pytest.mark.slow
def test_variables_of_another_device_are_updated_from_the_host() -> None:
    """Use the second of two logical CPUs in place of a GPU."""
    assert output(OTHER_DEVICE).strip() == "['CPU:1', 3] ['CPU:1', 3] True True"
