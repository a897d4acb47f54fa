"""Tests that `model.fit` with an accumulating optimizer equals `model.fit` with the large batch."""

from __future__ import annotations

import itertools
import json
import math
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fitting
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from forked import Forked

from bertaccum import AccumulatingOptimizer
from bertaccum.accumulation import AdaptiveClip, ClipByGlobalNorm, accumulate_gradients

pytestmark = pytest.mark.usefixtures("built_optimizers")
UPDATES = fitting.EPOCHS * fitting.EXAMPLES // fitting.WINDOW


@pytest.fixture(scope="module")
def large_batch() -> np.ndarray:
    return fitting.fit(fitting.adamw, fitting.WINDOW, run_eagerly=True)[0]


# Each place of the loss scale and each way to execute, and an outer scale, which has a conditional
# of its own, in executions of several steps.
@pytest.mark.parametrize(
    ("scale", "options"),
    [("none", {"jit_compile": True}), ("inner", {}), ("outer", {"steps_per_execution": 2})],
    ids=str,
)
def test_fit_equals_the_large_batch(
    large_batch: np.ndarray, scale: str, options: dict[str, object]
) -> None:
    weights, network = fitting.fit(
        lambda: fitting.accumulating(scale, 4), fitting.WINDOW // 4, **options
    )
    np.testing.assert_allclose(weights, large_batch, rtol=0, atol=1e-6)
    assert int(network.optimizer.iterations.numpy()) == UPDATES


OPTIMIZERS = {
    name: getattr(tf_keras.optimizers, name)
    for name in dir(tf_keras.optimizers)
    if isinstance(getattr(tf_keras.optimizers, name), type)
    and issubclass(getattr(tf_keras.optimizers, name), tf_keras.optimizers.Optimizer)
    and name != "Optimizer"
}
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.1},
    "global_clipnorm": {"global_clipnorm": 0.1},
    "ema": {"use_ema": True, "ema_momentum": 0.9, "weight_decay": 0.1},
}


# Every optimizer, and every variant with each of the two kinds of optimizers that users choose.
PAIRS = [(name, "ema") for name in OPTIMIZERS]
PAIRS += [(name, variant) for name in ("SGD", "AdamW") for variant in VARIANTS if variant != "ema"]


@pytest.mark.parametrize(("name", "variant"), PAIRS)
def test_optimizer_equals_its_large_batch(name: str, variant: str) -> None:
    """Compare after eight updates of an embedding and a dense layer in float64."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 5, (UPDATES, 12))
    targets = rng.normal(size=(UPDATES, 12))
    start = [rng.normal(size=(5, 3)), rng.normal(size=(3, 1))]

    def train(cuts: list[int]) -> np.ndarray:
        table, kernel = variables = [tf.Variable(value) for value in start]
        inner = OPTIMIZERS[name](0.01, **VARIANTS[variant])
        optimizer = inner if len(cuts) == 2 else AccumulatingOptimizer(inner)
        for update in range(UPDATES):
            for begin, end in itertools.pairwise(cuts):
                with tf.GradientTape() as tape:
                    features = tf.gather(table, rows[update, begin:end])
                    errors = tf.squeeze(features @ kernel, 1) - targets[update, begin:end]
                    loss = tf.reduce_sum(errors**2) / (12 if optimizer is inner else 1)
                gradients = tape.gradient(loss, variables)
                if optimizer is inner:
                    dense = [tf.convert_to_tensor(g) for g in gradients]
                    inner.apply_gradients(zip(dense, variables, strict=True))
                else:
                    optimizer.accumulate(zip(gradients, variables, strict=True), end - begin)
            if optimizer is not inner:
                assert optimizer.apply()
        optimizer.finalize_variable_values(variables)
        return np.concatenate([v.numpy().ravel() for v in variables])

    whole = train([0, 12])
    assert np.abs(whole - np.concatenate([v.ravel() for v in start])).max() > 1e-4
    np.testing.assert_allclose(train([0, 5, 10, 12]), whole, rtol=0, atol=1e-12)


def start_program(replicas: int, scale: str, **options: object) -> Forked:
    """Compare with the large batch in a process: see `fitting.main`."""
    environment = options.pop("env", None)
    code = f"import fitting; fitting.main({replicas}, {scale!r}, **{options})"
    return Forked(code, env=environment)


def check_program(process: Forked, scale: str) -> str:
    out, errors = process.communicate(timeout=200)
    found = re.search(r"difference (\S+) updates (\d+) reduced (.*)", out)
    assert found, errors
    assert float(found[1]) <= 1e-6
    window = fitting.UNEVEN_WINDOW if scale == "model" else fitting.WINDOW
    assert int(found[2]) == fitting.EPOCHS * math.ceil(fitting.EXAMPLES / window)
    # One reduction contains all gradients and their weight. An outer loss scale also needs one
    # number per micro-step, to detect overflows on other replicas.
    weights = 3 * 4 + 4 + 4 + 1
    assert found[3] == str([1, weights + 1] if scale == "outer" else [weights + 1])
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "executions"), [("loop", 1), ("model", 2)])
def test_fit_on_replicas_equals_the_large_batch(scale: str, executions: int) -> None:
    check_program(start_program(2, scale, executions=executions), scale)


# All other windows of these runs do not overflow.
@pytest.mark.parametrize(
    ("replicas", "scale"), [(2, "outer"), pytest.param(4, "inner", marks=pytest.mark.slow)]
)
def test_overflow_on_one_replica_affects_all_replicas(replicas: int, scale: str) -> None:
    check_program(start_program(replicas, scale, overflow=True), scale)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["loop", "none"])
def test_fit_on_two_workers_equals_the_large_batch(scale: str) -> None:
    with socket.socket() as one, socket.socket() as two:
        for free in (one, two):
            free.bind(("127.0.0.1", 0))
        workers = [f"127.0.0.1:{free.getsockname()[1]}" for free in (one, two)]
    processes = []
    for index in range(2):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        processes.append(start_program(0, scale, env={"TF_CONFIG": json.dumps(task)}))
    try:
        for process in processes:
            out = check_program(process, scale)
            # In every micro-step, Keras reduces only single numbers, for the logs. The gradients
            # are in one reduction, inside the branch of the update.
            assert scale == "loop" or re.search(r"collectives \[1(, 1)*\] branches \[1\]", out), out
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)


STRATEGIES = {
    "one device": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
    "mirrored on one device": lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
}


@pytest.mark.parametrize(
    ("strategy", "scale"),
    [
        ("one device", "none"),
        ("mirrored on one device", "inner"),
        ("mirrored on one device", "outer"),
    ],
)
def test_fit_under_a_strategy_with_one_device_equals_the_large_batch(
    large_batch: np.ndarray, strategy: str, scale: str
) -> None:
    with STRATEGIES[strategy]().scope():
        weights, _ = fitting.fit(lambda: fitting.accumulating(scale, 4), fitting.WINDOW // 4)
    np.testing.assert_allclose(weights, large_batch, rtol=0, atol=1e-6)


def test_misuse_under_a_strategy_raises_with_a_hint() -> None:
    strategy = STRATEGIES["mirrored on one device"]()
    outside = AccumulatingOptimizer("adam")
    with strategy.scope():
        variable = tf.Variable(1.0)
        optimizer = AccumulatingOptimizer("adam")
        with pytest.raises(ValueError, match=r"outside the scope.*with strategy.scope\(\)"):
            outside.build([variable])
        built = AccumulatingOptimizer("sgd")
        built.build([variable])
        with pytest.raises(ValueError, match=r"outside of a replica; .* passed to Mirrored"):
            optimizer.apply_gradients([(tf.constant(1.0), variable)])
    for give in (built.apply_gradients, built.accumulate):
        with pytest.raises(ValueError, match=r"outside of a replica; .* passed to Mirrored"):
            give([(tf.constant(1.0), variable)])
    assert variable.numpy() == 1 and not built.pending
    for reduced in ({"skip_gradients_aggregation": True}, {"experimental_aggregate_gradients": 0}):
        with pytest.raises(ValueError, match="each replica's own gradients"):
            AccumulatingOptimizer("adam").apply_gradients([(1.0, tf.Variable(1.0))], **reduced)


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("end", ["apply", "flush", "traced_flush", "drop"])
def test_window_can_end_outside_the_scope_of_the_strategy(end: str, traced: bool) -> None:
    """Guard against a bug that updated the weights, failed, and used the sums again."""
    strategy = STRATEGIES["mirrored on one device"]()
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0])
        optimizer = AccumulatingOptimizer(tf_keras.optimizers.SGD(1.0, momentum=0.5))
        optimizer.build([variable])
    for gradient in ([1.0, 2.0], [3.0, 2.0]):
        pairs = [(tf.constant(gradient), variable)]
        strategy.run(lambda pairs=pairs: optimizer.accumulate(pairs))
    ending = getattr(optimizer, end)
    applied = (tf.function(ending) if traced else ending)()
    assert bool(applied) == (end != "drop")
    np.testing.assert_array_equal(variable.numpy(), [1, 2] if end == "drop" else [-1, 0])
    assert not optimizer.pending
    assert int(optimizer.iterations.numpy()) == (end != "drop")


def test_variables_of_another_model_raise() -> None:
    optimizer = AccumulatingOptimizer("adam")
    one, other = fitting.model(), fitting.model()
    for network in (one, other):
        network.compile(optimizer, "mse")
    one.train_on_batch(*fitting.data())
    with pytest.raises(ValueError, match="built without the variable"):
        other.train_on_batch(*fitting.data())


def test_failing_step_at_the_end_of_a_dataset_does_not_count(large_batch: np.ndarray) -> None:
    """With a dataset of unknown length, the step after the last batch of each epoch fails.

    In a graph, operations that do not depend on the data run even if the step fails. The
    optimizers of tf_keras therefore count one update too many.
    """
    data = tf.data.Dataset.from_tensor_slices(fitting.data()).batch(4)
    network = fitting.model()
    network.compile(AccumulatingOptimizer(fitting.adamw(), 4), "mse")
    network.fit(data.filter(lambda *_: True), epochs=fitting.EPOCHS, verbose=0)
    weights = np.concatenate([w.ravel() for w in network.get_weights()])
    np.testing.assert_allclose(weights, large_batch, rtol=0, atol=1e-6)
    assert int(network.optimizer.iterations.numpy()) == UPDATES
    assert int(network.optimizer.window.step.numpy()) == 0


def test_accumulation_steps_can_be_a_function() -> None:
    """Use windows of 4, then of 8, then of 16 examples."""
    sizes = [4, 4, 8, 8, 16, 16]
    features, targets = fitting.data()

    def steps(update: tf.Tensor) -> tf.Tensor:
        return tf.gather([1, 1, 2, 2, 4, 4, 4], update)

    accumulated, expected = fitting.model(), fitting.model()
    accumulated.compile(AccumulatingOptimizer("sgd", steps), "mse")
    expected.compile("sgd", "mse", run_eagerly=True)
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        expected.train_on_batch(features[rows], targets[rows])
        for micro in range(start, start + size, 4):
            accumulated.train_on_batch(features[micro : micro + 4], targets[micro : micro + 4])
        start += size
    for mine, theirs in zip(accumulated.variables, expected.variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=0, atol=1e-6)


def test_accumulation_steps_can_be_a_variable() -> None:
    """A change in the middle of a window takes effect at the next window."""
    steps = tf.Variable(2)
    variable = tf.Variable(0.0)
    optimizer = AccumulatingOptimizer(tf_keras.optimizers.SGD(1.0), steps)
    step = tf.function(lambda g: optimizer.apply_gradients([(g, variable)]))
    seen = []
    for gradient in (1.0, 3.0, 1.0, 2.0, 3.0, 5.0):
        step(tf.constant(gradient))
        seen.append(float(variable))
        if gradient == 1.0 and len(seen) == 1:
            steps.assign(3)
    assert seen == [0, -2, -2, -2, -4, -4]


def test_windows_of_one_micro_step_need_no_accumulators(large_batch: np.ndarray) -> None:
    weights, network = fitting.fit(
        lambda: AccumulatingOptimizer(fitting.adamw(), np.int64(1)), fitting.WINDOW
    )
    np.testing.assert_allclose(weights, large_batch, rtol=0, atol=1e-6)
    assert network.optimizer.window.sums is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_micro_step_without_examples_has_no_weight(dtype: str) -> None:
    variable = tf.Variable(0.0)
    optimizer = AccumulatingOptimizer(tf_keras.optimizers.SGD(1.0), 2, accumulator_dtype=dtype)
    for summed, examples in ((0.0, 0), (6.0, 3)):
        optimizer.accumulate([(tf.constant(summed), variable)], examples)
    assert optimizer.apply()
    assert float(variable) == -2.0


def test_flush_applies_a_partial_window() -> None:
    """The mean of three of four micro-batches is divided by three, not by four."""
    features, targets = fitting.data()
    accumulated, expected = fitting.model(), fitting.model()
    optimizer = AccumulatingOptimizer(fitting.adamw(), 4)
    accumulated.compile(optimizer, "mse")
    expected.compile(fitting.adamw(), "mse", run_eagerly=True)
    for start in (0, 4, 8):
        accumulated.train_on_batch(features[start : start + 4], targets[start : start + 4])
    assert optimizer.flush()
    assert not optimizer.flush()
    expected.train_on_batch(features[:12], targets[:12])
    for mine, theirs in zip(accumulated.variables, expected.variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", ["inner", "outer"])
def test_overflow_skips_the_window_as_with_the_large_batch(scale: str) -> None:
    """The overflow is in the last micro-step, which ends the window, or in earlier ones."""
    features, targets = fitting.data()
    late, early = targets[:16].copy(), targets[:16].copy()
    late[12] = early[0] = early[8] = np.inf
    accumulated, expected = fitting.model(), fitting.model()
    accumulated.compile(fitting.accumulating(scale, 4), "mse")
    expected.compile(fitting.LossScale(fitting.adamw()), "mse", run_eagerly=True)
    for window in (targets[:16], late, targets[16:32], early, targets[32:48]):
        expected.train_on_batch(features[:16], window)
        for start in range(0, 16, 4):
            rows = slice(start, start + 4)
            accumulated.train_on_batch(features[rows], window[rows])
    for mine, theirs in zip(accumulated.variables, expected.variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=0, atol=1e-6)
    assert int(accumulated.optimizer.iterations.numpy()) == 5
    inner = getattr(accumulated.optimizer, "inner_optimizer", None)
    counting = accumulated.optimizer if scale == "inner" else inner
    assert int(counting.skipped_windows.numpy()) == 2


@pytest.mark.parametrize("scaled", [True, False])
def test_loss_scale_warns_only_if_the_loss_was_not_scaled(
    scaled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = AccumulatingOptimizer(fitting.LossScale(tf_keras.optimizers.SGD(0.1)), 2)
    variable = tf.Variable(1.0)
    with caplog.at_level("WARNING"):
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = optimizer.get_scaled_loss(2 * variable) if scaled else 2 * variable
            gradients = [tape.gradient(loss, variable)]
            gradients = optimizer.get_unscaled_gradients(gradients) if scaled else gradients
            optimizer.apply_gradients(zip(gradients, [variable], strict=True))
    forgotten = [record for record in caplog.records if "You forgot to call" in record.message]
    assert len(forgotten) == (not scaled)
    assert scaled or "forgot to call LossScaleOptimizer.get_scaled_loss()" in caplog.text
    assert float(variable.numpy()) == pytest.approx(0.8, abs=1e-6)


def decayed(gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
    return gradient + 0.1 * variable


def clipped(gradient: tf.Tensor, _: tf.Variable) -> tf.Tensor:
    return tf.clip_by_norm(gradient, 0.5)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("change", [decayed, clipped])
def test_step_can_change_unscaled_gradients(change: Callable[..., tf.Tensor], own: bool) -> None:
    """A term that is added has the same effect as with the large batch.

    Clipping acts on each micro-batch, and has the same effect as without a loss scale.
    """
    features, targets = fitting.data()

    def train(scaled: bool, steps: int) -> tuple[np.ndarray, int]:
        variable = tf.Variable(tf.ones([3, 1]))
        optimizer: Any = tf_keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer = fitting.LossScale(optimizer) if scaled else optimizer
        optimizer = AccumulatingOptimizer(optimizer, steps) if steps else optimizer

        def step(x: tf.Tensor, y: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ variable - y) ** 2)
                if own and scaled:
                    loss = optimizer.get_scaled_loss(loss)
            if own:
                gradients = tape.gradient(loss, [variable])
                gradients = optimizer.get_unscaled_gradients(gradients) if scaled else gradients
            else:
                gradients = [g for g, _ in optimizer.compute_gradients(loss, [variable], tape)]
            optimizer.apply_gradients([(change(gradients[0], variable), variable)])

        # Tracing takes longer than the steps of a reference.
        run, size = tf.function(step) if scaled and steps == 4 else step, 16 // max(steps, 1)
        for start in range(0, 64, size):
            run(features[start : start + size], targets[start : start + size])
        return variable.numpy(), int(optimizer.iterations.numpy())

    expected, updates = train(change is decayed, 0 if change is decayed else 4)
    found, counted = train(True, 4)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert counted == updates == 4
    np.testing.assert_allclose(train(True, 1)[0], train(True, 0)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("scale", ["inner", "none"])
def test_missing_gradients_are_reported_as_by_keras(
    scale: str, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = fitting.accumulating(scale, steps)
    one, other = tf.Variable(1.0, name="one"), tf.Variable(1.0, name="other")
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer.apply_gradients([(None, one), (None, other)])
    with caplog.at_level("WARNING"):
        optimizer.apply_gradients([(tf.constant(1.0), one), (None, other)])
    assert "Gradients do not exist for variables ['other:0']" in caplog.text


@pytest.mark.parametrize("steps", [1, 4])
def test_fit_of_a_frozen_model_changes_nothing(steps: int) -> None:
    network = accumulate_gradients(fitting.model(), steps)
    network.trainable = False
    network.compile("adam", "mse")
    history = network.fit(*fitting.data(), batch_size=16, verbose=0).history["loss"]
    assert history == [pytest.approx(network.evaluate(*fitting.data(), verbose=0))]
    assert int(network.optimizer.iterations.numpy()) == 0


HYPERPARAMETERS = {
    "clipnorm": 0.5,
    "clipvalue": 0.25,
    "global_clipnorm": 2.0,
    "weight_decay": 0.125,
    "use_ema": True,
    "ema_momentum": 0.75,
    "ema_overwrite_frequency": 3,
    "jit_compile": True,
}


@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_hyperparameters_are_delegated_to_the_inner_optimizer(name: str) -> None:
    inner, value = tf_keras.optimizers.SGD(), HYPERPARAMETERS[name]
    plain = AccumulatingOptimizer(inner)
    scaled = AccumulatingOptimizer(fitting.LossScale(inner))
    setattr(inner, name, value)
    assert getattr(plain, name) == getattr(scaled, name) == value
    setattr(scaled, name, None)
    assert getattr(inner, name) is getattr(plain, name) is None


def test_loss_scale_changes_only_between_windows() -> None:
    features, targets = fitting.data()
    targets[5] = np.inf  # This target is in the second micro-batch of the first window.
    network = fitting.model()
    scale = fitting.LossScale(fitting.adamw(), dynamic_growth_steps=2)
    network.compile(AccumulatingOptimizer(scale, 4), "mse")
    seen = []
    for start in range(0, 48, 4):
        network.train_on_batch(features[start : start + 4], targets[start : start + 4])
        seen.append(float(scale.loss_scale) / 32768)
    # The scale is halved after the first window and doubled after two finite windows.
    assert seen == [1.0] * 3 + [0.5] * 8 + [1.0]


@pytest.mark.parametrize("scale", ["inner", "outer", "model", None])
def test_float16_overflows_only_if_the_large_batch_does(scale: str | None) -> None:
    """A micro-batch's scaled gradient, 2 x 32,768, overflows float16, but a quarter does not."""
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        network = tf_keras.Sequential([tf_keras.layers.Dense(1, "linear", False, "zeros")])
        optimizer: object = tf_keras.optimizers.SGD(0.25)
        if scale == "model":
            accumulate_gradients(network, 4)
        elif scale == "inner":
            optimizer = AccumulatingOptimizer(fitting.LossScale(optimizer), 4)
        elif scale == "outer":
            optimizer = AccumulatingOptimizer(optimizer, 4)
        network.compile(optimizer, "mse")
        assert float(network.optimizer.loss_scale) == 32768
        targets = np.array([[1], [1], [1], [-1]])
        network.fit(np.ones((4, 1)), targets, batch_size=1 if scale else 4, verbose=0)
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    assert network.get_weights()[0] == 0.25


def test_accumulators_have_the_given_dtype(large_batch: np.ndarray) -> None:
    weights, network = fitting.fit(
        lambda: AccumulatingOptimizer(fitting.adamw(), 4, accumulator_dtype="bfloat16"), 4
    )
    assert 1e-6 < np.abs(weights - large_batch).max() < 3e-2
    assert {total.dtype.name for total in network.optimizer.window.sums.totals} == {"bfloat16"}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reduction_computes_the_mean_or_the_sum(reduction: str) -> None:
    variable = tf.Variable([0.0, 0.0])
    optimizer = AccumulatingOptimizer(tf_keras.optimizers.SGD(1.0), 3, reduction)
    for gradient in ([1.0, 2.0], [2.0, 4.0], [3.0, 9.0]):
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
    expected = [-6.0, -15.0] if reduction == "sum" else [-2.0, -5.0]
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6)


def test_nonfinite_gradients_are_skipped_raised_or_propagated() -> None:
    for nonfinite in ("skip", "raise", "propagate"):
        variable = tf.Variable(1.0)
        optimizer = AccumulatingOptimizer(tf_keras.optimizers.SGD(1.0), 1, nonfinite=nonfinite)
        step = lambda: optimizer.apply_gradients([(tf.constant(np.nan), variable)])  # noqa: B023, E731
        if nonfinite == "raise":
            with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
                step()
        else:
            step()
        assert np.isnan(variable.numpy()) == (nonfinite == "propagate")


# Files in HDF5, and other optimizers, are in test_saving.py.
def test_resume_from_a_partial_window_gives_identical_weights(tmp_path: Path) -> None:
    features, targets = fitting.data()

    def run(network: tf_keras.Model, micro_steps: range) -> None:
        for start in micro_steps:
            rows = slice(4 * start, 4 * start + 4)
            network.train_on_batch(features[rows], targets[rows])

    def fresh() -> tf_keras.Model:
        network = fitting.model()
        network.compile(fitting.accumulating("inner", 4), "mse", run_eagerly=True)
        return network

    def checkpoint(network: tf_keras.Model) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(model=network, optimizer=network.optimizer)

    whole, restored = fresh(), fresh()
    run(whole, range(6))
    checkpoint(restored).restore(checkpoint(whole).save(f"{tmp_path}/c"))
    whole.save(tmp_path / "model.keras")
    loaded = tf_keras.models.load_model(tmp_path / "model.keras")
    loaded.run_eagerly = True
    assert type(loaded.optimizer) is type(whole.optimizer)
    for network in (whole, restored, loaded):
        run(network, range(6, 12))
    for again in (restored, loaded):
        for mine, theirs in zip(again.variables, whole.variables, strict=True):
            np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


@pytest.mark.parametrize(("how", "scale"), [("weights", "none"), ("savedmodel", "inner")])
def test_other_formats_keep_at_least_weights_and_settings(
    tmp_path: Path, how: str, scale: str
) -> None:
    """A plain model can load the weights; a SavedModel does not restore the optimizer's state."""
    network = fitting.model()
    network.compile(fitting.accumulating(scale, 4), "mse")
    network.fit(*fitting.data(), batch_size=4, verbose=0)
    if how == "weights":
        network.save_weights(f"{tmp_path}/weights.ckpt")
        again = fitting.model()
        again.load_weights(f"{tmp_path}/weights.ckpt").expect_partial()
    else:
        network.save(tmp_path / "model", save_format="tf")
        again = tf_keras.models.load_model(tmp_path / "model")
        assert again.optimizer.get_config() == network.optimizer.get_config()
        assert int(again.optimizer.iterations.numpy()) == 0
    np.testing.assert_array_equal(
        again.predict(fitting.data()[0], verbose=0), network.predict(fitting.data()[0], verbose=0)
    )


def test_config_round_trip() -> None:
    for transform in (ClipByGlobalNorm(0.5), AdaptiveClip(0.02), None):
        optimizer = AccumulatingOptimizer(
            fitting.adamw(), 8, "sum", "bfloat16", "raise", transform, "mine"
        )
        again = tf_keras.optimizers.deserialize(tf_keras.optimizers.serialize(optimizer))
        assert isinstance(again, AccumulatingOptimizer)
        assert again.get_config() == optimizer.get_config()
        assert again.inner.get_config() == optimizer.inner.get_config()


def test_adaptive_clip_bounds_each_unit() -> None:
    """Compare with equation 3 of Brock et al. 2021, computed for each unit in NumPy."""
    rng = np.random.default_rng(0)
    weights, gradient = rng.normal(size=(3, 4)), rng.normal(size=(3, 4)) * [0.001, 0.1, 1, 10]
    [(clipped, _)] = AdaptiveClip(0.1)([(tf.constant(gradient), tf.Variable(weights))])
    for unit in range(4):
        bound = 0.1 * max(np.linalg.norm(weights[:, unit]), 1e-3)
        norm = np.linalg.norm(gradient[:, unit])
        expected = gradient[:, unit] * (bound / norm if norm > bound else 1)
        np.testing.assert_allclose(clipped.numpy()[:, unit], expected, rtol=1e-6)


MISUSE = {
    "no steps": (lambda: AccumulatingOptimizer("adam", 0), "at least 1 micro-step"),
    "no number": (lambda: AccumulatingOptimizer("adam", 1.5), "an integer"),
    "reduction": (lambda: AccumulatingOptimizer("adam", reduction="median"), "choose one of"),
    "nonfinite": (lambda: AccumulatingOptimizer("adam", nonfinite="ignore"), "choose one of"),
    "dtype": (
        lambda: AccumulatingOptimizer("adam", accumulator_dtype="int32"),
        "`accumulator_dtype` is .int32.; choose one of",
    ),
    "twice": (lambda: AccumulatingOptimizer(AccumulatingOptimizer("adam")), "already accumulates"),
    "twice with a scale": (
        lambda: AccumulatingOptimizer(fitting.LossScale(AccumulatingOptimizer("adam"))),
        "already accumulates",
    ),
    "keras 3": (lambda: AccumulatingOptimizer(keras.optimizers.Adam()), "not a tf_keras optimizer"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_invalid_argument_raises_with_a_hint(case: str) -> None:
    make, message = MISUSE[case]
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_complex_variable_gets_the_mean() -> None:
    variable = tf.Variable([1.0 + 1.0j], dtype=tf.complex64)
    optimizer = AccumulatingOptimizer(tf_keras.optimizers.SGD(1.0), 2)
    for gradient in (2.0, 4.0 + 8.0j):
        optimizer.apply_gradients([(tf.constant([gradient], tf.complex64), variable)])
    np.testing.assert_allclose(variable, [-2.0 - 3.0j])
    assert float(optimizer.gradient_norm) == 5
