"""Tests that AccumBatchNormalization equals NumPy and BatchNormalization on whole windows."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from forked import output

from bertaccum.accumulation import (
    AccumBatchNormalization,
    AccumulatingModel,
    accumulate_gradients,
    replace_batch_normalization,
)

pytestmark = pytest.mark.usefixtures("built_optimizers")
layers = tf_keras.layers
CHANNELS, MOMENTUM = 3, 0.9
SIZES = (2, 1, 6)  # Sizes of a window's micro-batches.
STEPS = len(SIZES)


def windows(rank: int = 2, count: int = 3, examples: int = sum(SIZES)) -> list[np.ndarray]:
    """Return windows whose micro-batches have very different means."""
    rng = np.random.default_rng(rank)
    shape = (count, examples, *[2] * (rank - 2), CHANNELS)
    trend = np.arange(examples).reshape(1, -1, *[1] * (rank - 1))
    return list((rng.normal(size=shape) + trend).astype(np.float32))


def cut(window: np.ndarray, sizes: Sequence[int] = SIZES) -> list[np.ndarray]:
    return np.split(window, np.cumsum(sizes)[:-1])


def moved(pools: Iterable[np.ndarray], bessel: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the moving mean and variance after these windows, in float64."""
    mean, variance = np.zeros(CHANNELS), np.ones(CHANNELS)
    for pool in pools:
        values = np.float64(pool).reshape(-1, CHANNELS)
        mean = MOMENTUM * mean + (1 - MOMENTUM) * values.mean(0)
        variance = MOMENTUM * variance + (1 - MOMENTUM) * values.var(0, ddof=int(bessel))
    return mean, variance


def statistics(layer: Any) -> tuple[np.ndarray, np.ndarray]:
    return layer.moving_mean.numpy(), layer.moving_variance.numpy()


def assert_close(actual: Any, expected: Any, rtol: float = 1e-6) -> None:
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=rtol, atol=1e-6)


def accum(steps: Any = STEPS, **options: Any) -> AccumBatchNormalization:
    return AccumBatchNormalization(steps, momentum=MOMENTUM, **options)


def train(layer: Any, batches: Iterable[np.ndarray]) -> None:
    for batch in batches:
        layer(batch, training=True)


# --- The moving statistics ----------------------------------------------------------


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("rank", [2, 3, 4, 5])
def test_moving_statistics_equal_those_of_whole_windows(rank: int, fused: bool | None) -> None:
    layer, big = accum(fused=fused), layers.BatchNormalization(momentum=MOMENTUM, fused=fused)
    call = tf.function(lambda batch: layer(batch, training=True), reduce_retracing=True)
    for window in windows(rank):
        for batch in cut(window):
            call(batch)
        big(window, training=True)
    bessel = rank >= 4 and fused is None
    assert_close(statistics(layer), moved(windows(rank), bessel))
    assert_close(statistics(layer), statistics(big))


def test_variance_includes_variance_between_micro_batches() -> None:
    layer = AccumBatchNormalization(2, momentum=0.0)
    train(layer, [np.zeros((3, 1), np.float32), np.full((1, 1), 8, np.float32)])
    # Both variances are 0, so a plain or weighted mean of them would be 0.
    np.testing.assert_allclose(statistics(layer), [[2.0], [12.0]])


def test_variance_is_accurate_with_a_large_mean() -> None:
    layer = AccumBatchNormalization(STEPS, momentum=0.0)
    (window,) = windows(count=1)
    train(layer, cut(window + np.float32(1 << 14)))
    np.testing.assert_allclose(layer.moving_variance, window.var(0), rtol=1e-3)


@pytest.mark.parametrize("axis", [1, [1, 2]])
def test_statistics_of_other_axes_equal_batch_normalization(axis: Any) -> None:
    options = {"axis": axis, "momentum": MOMENTUM}
    layer = AccumBatchNormalization(STEPS, **options)
    big = layers.BatchNormalization(**options)
    for window in windows(3):
        train(layer, cut(window))
        big(window, training=True)
    assert_close(statistics(layer), statistics(big))


def test_masked_values_do_not_count() -> None:
    layer, big = accum(), layers.BatchNormalization(momentum=MOMENTUM)
    for window in windows(3):
        mask = np.random.default_rng(1).random(window.shape[:2]) < 0.7
        mask[:, 0] = True
        for batch, part in zip(cut(window), cut(mask), strict=True):
            layer(batch, training=True, mask=tf.constant(part))
        big(window, training=True, mask=tf.constant(mask))
    assert_close(statistics(layer), statistics(big), rtol=1e-5)


def test_statistics_change_once_per_window() -> None:
    layer, seen = accum(), []
    for window in windows():
        for batch in cut(window):
            layer(batch, training=True)
            seen.append(layer.moving_mean.numpy()[0])
    first, second, third = seen[2], seen[5], seen[8]
    assert seen == [0, 0, first, first, first, second, second, second, third]
    assert len({0, first, second, third}) == 4


def test_end_window_applies_a_partial_window_once() -> None:
    layer = accum(steps=5)
    layer.end_window()  # The layer is not built yet.
    first, second = windows(count=2)
    train(layer, cut(first))
    layer.end_window()
    layer.end_window()  # The window is empty.
    assert_close(statistics(layer), moved([first]))
    train(layer, cut(second, (1, 1, 1, 1, 5)))
    assert_close(statistics(layer), moved([first, second]))


def test_change_of_steps_takes_effect_at_the_next_window() -> None:
    steps = tf.Variable(3)
    layer = accum(steps)
    first, second = windows(count=2)
    train(layer, cut(first)[:1])
    steps.assign(2)
    train(layer, cut(first)[1:])
    assert_close(statistics(layer), moved([first]))
    train(layer, cut(second, (4, 5)))
    assert_close(statistics(layer), moved([first, second]))
    assert len(layer.weights) == 4 and layer.get_config()["accumulation_steps"] == 2


@pytest.mark.parametrize("rank", [2, 4])
def test_empty_micro_batch_adds_nothing(rank: int) -> None:
    layer = accum(STEPS + 1)
    (window,) = windows(rank, count=1)
    train(layer, [*cut(window), window[:0]])
    assert_close(statistics(layer), moved([window], bessel=rank == 4))
    train(layer, [window[:0]] * (STEPS + 1))
    assert_close(statistics(layer), moved([window], bessel=rank == 4))


@pytest.mark.parametrize("rank", [2, 4])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_keeps_statistics_in_float32(policy: str, rank: int) -> None:
    layer = accum(dtype=policy)
    # The values are exact in bfloat16, but their squares overflow float16.
    pools = [np.round(w) * 32 for w in windows(rank)]
    for pool in pools:
        train(layer, cut(pool))
    assert layer(pools[0], training=True).dtype == layer.compute_dtype
    assert all(v.dtype == tf.float32 for v in layer.weights)
    assert_close(statistics(layer), moved(pools, bessel=rank == 4), rtol=1e-5)


def test_fit_with_a_partial_last_batch_equals_whole_windows() -> None:
    layer = accum(steps=3)
    model = tf_keras.Sequential([layers.Input((CHANNELS,)), layer, layers.Dense(1)])
    model.compile("sgd", "mse")
    (window,) = windows(count=1, examples=10)
    model.fit(window, np.ones((10, 1)), batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert_close(statistics(layer), moved([window, window]))


# --- A drop-in replacement ------------------------------------------------------------


@pytest.mark.parametrize("rank", [2, 4])
def test_outputs_and_gradients_of_a_micro_batch_equal_batch_normalization(rank: int) -> None:
    results = []
    for layer in (accum(), layers.BatchNormalization(momentum=MOMENTUM)):
        batch = tf.constant(windows(rank)[0])
        with tf.GradientTape() as tape:
            tape.watch(batch)
            outputs = layer(batch, training=True)
            loss = tf.reduce_sum(outputs**3)
        results.append([outputs, *tape.gradient(loss, [batch, layer.gamma, layer.beta])])
    assert isinstance(accum(), layers.BatchNormalization)
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("rank", [2, 4])
def test_frozen_or_inference_calls_accumulate_nothing(rank: int) -> None:
    layer = accum(steps=1)
    first, second, _ = windows(rank)
    train(layer, [first])
    inference = layer(second, training=False)
    layer.trainable = False
    np.testing.assert_array_equal(layer(second, training=True), inference)
    layer.end_window()
    assert_close(statistics(layer), moved([first], bessel=rank == 4))


@pytest.mark.parametrize("rank", [2, 4])
def test_training_may_be_a_tensor(rank: int) -> None:
    layer = accum(steps=1)
    call = tf.function(lambda batch, training: layer(batch, training=training))
    first, second, _ = windows(rank)
    call(first, tf.constant(True))
    inference = call(second, tf.constant(False))
    np.testing.assert_allclose(inference, layer(second), rtol=1e-6)
    assert_close(statistics(layer), moved([first], bessel=rank == 4))


def test_layer_can_be_copied_after_tracing() -> None:
    layer = accum()
    tf.function(lambda batch: layer(batch, training=True))(windows()[0])
    assert int(copy.deepcopy(layer)._window.calls) == 1


def test_config_round_trip() -> None:
    layer = accum(synchronized=True, axis=1, epsilon=1e-5, center=False, name="norm")
    layer.build((None, CHANNELS, 2))
    same = AccumBatchNormalization.from_config(layer.get_config())
    assert same.get_config() == layer.get_config()
    assert (same.accumulation_steps, same.synchronized, same.center) == (3, True, False)


@pytest.mark.parametrize("how", ["keras", "checkpoint"])
def test_partial_window_continues_after_loading(how: str, tmp_path: Path) -> None:
    def build() -> tf_keras.Model:
        return tf_keras.Sequential([layers.Input((CHANNELS,)), accum()])

    first, second = windows(count=2)
    model = build()
    train(model, [*cut(first), *cut(second)[:2]])
    if how == "keras":
        model.save(tmp_path / "model.keras")
        model = tf_keras.models.load_model(tmp_path / "model.keras")
    else:
        path = tf.train.Checkpoint(model).write(str(tmp_path / "model"))
        model = build()
        tf.train.Checkpoint(model).read(path).assert_consumed()
    assert_close(statistics(model.layers[0]), moved([first]))
    train(model, cut(second)[2:])
    assert_close(statistics(model.layers[0]), moved([first, second]))


def test_loads_weights_saved_by_batch_normalization(tmp_path: Path) -> None:
    plain = tf_keras.Sequential([layers.Input((CHANNELS,)), layers.BatchNormalization()])
    train(plain, windows())
    for path in (tmp_path / "plain.h5", tmp_path / "checkpoint"):
        plain.save_weights(path)
        model = tf_keras.Sequential([layers.Input((CHANNELS,)), accum()])
        model.load_weights(path)
        np.testing.assert_array_equal(model.get_weights(), plain.get_weights())


@pytest.mark.parametrize("option", ["renorm", "virtual_batch_size", "adjustment"])
def test_unsupported_option_raises(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        accum(**{option: 1})


@pytest.mark.parametrize("steps, error", [(0, ValueError), (True, TypeError), (2.0, TypeError)])
def test_invalid_accumulation_steps_raise(steps: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="accumulation_steps"):
        accum(steps)


# --- Several calls in a micro-step ----------------------------------------------------


def siamese(layer: Any, accumulating: bool, eager: bool = True) -> tf_keras.Model:
    inputs = [layers.Input((CHANNELS,)), layers.Input((CHANNELS,))]
    left, right = (layer(part) for part in inputs)
    model = tf_keras.Model(inputs, layers.Dense(1)(layers.Subtract()([left, right])))
    if accumulating:
        accumulate_gradients(model, STEPS)
    model.compile("sgd", "mse", run_eagerly=eager)
    return model


def pairs() -> list[tuple[list[np.ndarray], np.ndarray]]:
    """Return the micro-batches of two windows, with very different left and right inputs."""
    batches = [batch for window in windows(count=2) for batch in cut(window)]
    return [([batch, 5 - 3 * batch], batch[:, :1]) for batch in batches]


def test_each_call_in_a_micro_step_has_its_own_window() -> None:
    layer, big = accum(), layers.BatchNormalization(momentum=MOMENTUM)
    model, plain = siamese(layer, True, eager=False), siamese(big, False)
    for (left, right), y in pairs():
        model.train_on_batch([left, right], y)
    for window in windows(count=2):
        plain.train_on_batch([window, 5 - 3 * window], window[:, :1])
    assert_close(statistics(layer), statistics(big))
    assert len(layer.weights) == 4


def test_end_window_applies_partial_windows_of_several_calls() -> None:
    layer, big = accum(), layers.BatchNormalization(momentum=MOMENTUM)
    model = siamese(layer, True)
    (left, right), y = pairs()[0]
    model.train_on_batch([left, right], y)
    model.end_window()
    siamese(big, False).train_on_batch([left, right], y)
    assert_close(statistics(layer), statistics(big))


def test_partial_windows_of_several_calls_continue_after_loading(tmp_path: Path) -> None:
    layer, stopped = accum(), siamese(accum(), True)
    whole = siamese(layer, True)
    for inputs, y in pairs()[:2]:
        stopped.train_on_batch(inputs, y)
    stopped.save(tmp_path / "model.keras")
    again = tf_keras.models.load_model(tmp_path / "model.keras")
    again.run_eagerly = True
    for inputs, y in pairs()[2:]:
        again.train_on_batch(inputs, y)
    for inputs, y in pairs():
        whole.train_on_batch(inputs, y)
    (norm,) = [part for part in again.layers if isinstance(part, AccumBatchNormalization)]
    assert_close(statistics(norm), statistics(layer))


def test_second_call_without_accumulate_gradients_warns() -> None:
    layer = accum()
    with pytest.warns(UserWarning, match=f"calls {layer.name} twice .* `accumulate_gradients`"):
        inputs, y = pairs()[0]
        siamese(layer, False, eager=False).train_on_batch(inputs, y)


# --- replace_batch_normalization ------------------------------------------------------


def functional() -> tf_keras.Model:
    inner_inputs = layers.Input((4, 4, CHANNELS))
    hidden = layers.Conv2D(4, 2, name="conv")(inner_inputs)
    hidden = layers.BatchNormalization(name="norm", fused=False)(hidden)
    inner = tf_keras.Model(inner_inputs, layers.ReLU()(hidden), name="inner")
    inputs = layers.Input((4, 4, CHANNELS))
    twice = layers.BatchNormalization(name="twice", epsilon=1e-2)
    hidden = inner(twice(twice(inputs)))
    hidden = layers.Dense(3)(layers.Flatten()(hidden))
    sync = layers.experimental.SyncBatchNormalization(name="sync")
    return tf_keras.Model(inputs, sync(hidden), name="outer")


def sequential(deferred: bool = False) -> tf_keras.Model:
    parts = [layers.Dense(4, name="dense"), layers.BatchNormalization(), layers.Dense(2)]
    inputs = [] if deferred else [layers.Input((4, 4, CHANNELS))]
    model = tf_keras.Sequential([*inputs, *parts], name="chain")
    model.build((None, 4, 4, CHANNELS))
    return model


def examples(count: int = 5) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 4, 4, CHANNELS)).astype(np.float32)


def pretrained(model: tf_keras.Model) -> tf_keras.Model:
    rng = np.random.default_rng(0)
    model.set_weights([rng.uniform(0.5, 1, w.shape) for w in model.get_weights()])
    return model


@pytest.mark.parametrize("build", [functional, sequential, lambda: sequential(deferred=True)])
def test_replacing_keeps_predictions_weights_and_names(build: Any) -> None:
    model = pretrained(build())
    replaced = replace_batch_normalization(model, 4)
    np.testing.assert_array_equal(replaced(examples()), model(examples()))
    for ours, theirs in zip(replaced.weights, model.weights, strict=True):
        assert ours.name == theirs.name and ours is not theirs
        np.testing.assert_array_equal(ours, theirs)
    assert type(replaced) is type(model) and replaced.name == model.name
    assert [part.name for part in replaced.layers] == [part.name for part in model.layers]


def test_replacing_reaches_nested_models_and_keeps_options() -> None:
    steps = tf.Variable(4)
    model = functional()
    replaced = replace_batch_normalization(model, steps)
    found = [replaced.get_layer("twice"), replaced.get_layer("inner").get_layer("norm")]
    found.append(replaced.get_layer("sync"))
    assert all(type(part) is AccumBatchNormalization for part in found)
    assert all(part.accumulation_steps is steps for part in found)
    assert [part.synchronized for part in found] == [False, False, True]
    assert [part.fused for part in found] == [True, False, False]
    assert found[0].epsilon == 1e-2
    assert type(model.get_layer("twice")) is layers.BatchNormalization


def test_replacing_keeps_frozen_layers_frozen() -> None:
    model = functional()
    inner = model.get_layer("inner")
    inner.trainable = False
    inner.get_layer("conv").trainable = True
    replaced = replace_batch_normalization(model, 4)
    names = [v.name for v in replaced.trainable_variables]
    assert names == [v.name for v in model.trainable_variables]
    copied = replaced.get_layer("inner")
    assert not copied.trainable and copied.get_layer("conv").trainable


def test_replaced_model_trains() -> None:
    model = replace_batch_normalization(sequential(), 3)
    before = statistics(model.layers[1])
    model.compile("sgd", "mse")
    model.fit(examples(), np.ones((5, 4, 4, 2)), batch_size=2, verbose=0)
    assert np.all(model.layers[1].moving_mean != before[0])


@pytest.mark.parametrize("build", [functional, sequential])
@pytest.mark.filterwarnings("ignore:accumulation cannot be exact")
def test_replacing_in_an_accumulating_model_keeps_accumulation(build: Any) -> None:
    replaced = replace_batch_normalization(accumulate_gradients(build(), 3), 3)
    assert isinstance(replaced, AccumulatingModel) and isinstance(replaced, type(build()))
    assert any(isinstance(layer, AccumBatchNormalization) for layer in replaced.submodules)


class Subclassed(tf_keras.Model):
    def __init__(self) -> None:
        super().__init__(name="own")
        self.norm = layers.BatchNormalization()

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.norm(inputs)


class SpecialNormalization(layers.BatchNormalization):
    pass


class NoConfig(layers.Layer):
    def __init__(self, thing: object) -> None:
        super().__init__(name="bare")


def wrapped() -> tf_keras.layers.Layer:
    return layers.TimeDistributed(layers.BatchNormalization(), name="wrapped")


@pytest.mark.parametrize(
    "parts, message",
    [
        (lambda: [layers.Dense(1)], "'chain' has no BatchNormalization"),
        (lambda: [Subclassed()], "Subclassed 'own' has"),
        (lambda: [wrapped()], "TimeDistributed 'wrapped' has"),
        (lambda: [SpecialNormalization(name="x")], "'x' is a SpecialNormalization"),
        (lambda: [layers.BatchNormalization(), NoConfig(object())], "'bare' cannot be copied"),
        (lambda: [layers.BatchNormalization(renorm=True)], "renorm"),
    ],
)
def test_replacing_a_layer_that_cannot_be_copied_raises(parts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace_batch_normalization(tf_keras.Sequential(parts(), name="chain"), 4)


def test_replacing_in_an_object_that_is_not_a_tf_keras_model_raises() -> None:
    keras3 = keras.Sequential([keras.layers.BatchNormalization()])
    for model in (keras3, layers.BatchNormalization()):
        with pytest.raises(TypeError, match="is not a tf_keras model"):
            replace_batch_normalization(model, 4)


def test_replacing_in_a_subclassed_model_raises() -> None:
    with pytest.raises(ValueError, match="Subclassed 'own' has"):
        replace_batch_normalization(Subclassed(), 4)


# --- Two replicas ---------------------------------------------------------------------

# Number of examples of each replica in each micro-step; the second window is partial.
REPLICA_SIZES = [((2, 3), (4, 0), (3, 1)), ((1, 2), (1, 3))]


def replica_batches() -> list[list[list[np.ndarray]]]:
    """Return batches [window][micro-step][replica]; the replicas have very different means."""
    rng = np.random.default_rng(0)
    return [
        [
            [rng.normal(i + 9 * r, size=(size, CHANNELS)) for r, size in enumerate(sizes)]
            for i, sizes in enumerate(window)
        ]
        for window in REPLICA_SIZES
    ]


def run_on_replicas(strategy: tf.distribute.Strategy, synchronized: bool) -> list[Any]:
    """Return the statistics read outside of replicas and those of each replica, after training."""
    with strategy.scope():
        layer = accum(3, synchronized=synchronized)
        layer.build((None, CHANNELS))

    @tf.function(reduce_retracing=True)
    def step(batch: Any) -> None:
        strategy.run(lambda b: layer(b, training=True), args=(batch,))

    for window in replica_batches():
        for parts in window:
            values = [tf.constant(p, tf.float32) for p in parts]
            step(
                strategy.experimental_distribute_values_from_function(
                    lambda context, v=values: v[context.replica_id_in_sync_group]
                )
            )
    layer.end_window()
    local = zip(layer.moving_mean.values, layer.moving_variance.values, strict=True)
    return [statistics(layer), *[(m.numpy(), v.numpy()) for m, v in local]]


def fit_on_replicas(strategy: tf.distribute.Strategy) -> list[Any]:
    with strategy.scope():
        model = tf_keras.Sequential([layers.Input((CHANNELS,)), layers.BatchNormalization()])
        model.layers[0].momentum = MOMENTUM
        model.layers[0].synchronized = True
        model = replace_batch_normalization(model, 3)
        model.compile("sgd", "mse")
    (window,) = windows(count=1, examples=13)
    model.fit(window, window, batch_size=5, epochs=1, shuffle=False, verbose=0)
    return [statistics(model.layers[0])]


def on_two_replicas() -> None:
    """Print results on two logical CPUs, which exist only in a process of its own."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    results = {
        "synchronized": run_on_replicas(strategy, synchronized=True),
        "local": run_on_replicas(strategy, synchronized=False),
        "fit": fit_on_replicas(strategy),
    }
    print(json.dumps(results, default=np.ndarray.tolist))


@pytest.fixture(scope="module")
def on_replicas() -> dict[str, Any]:
    return json.loads(output("import test_batch_normalization as tests; tests.on_two_replicas()"))


def test_synchronized_replicas_have_the_statistics_of_all_examples(on_replicas: Any) -> None:
    pools = [np.concatenate([b for parts in w for b in parts]) for w in replica_batches()]
    for result in on_replicas["synchronized"]:
        assert_close(result, moved(pools), rtol=1e-5)


def test_unsynchronized_replicas_keep_separate_statistics_and_read_their_mean(
    on_replicas: Any,
) -> None:
    own = [
        moved([np.concatenate([parts[replica] for parts in w]) for w in replica_batches()])
        for replica in range(2)
    ]
    read, *local = on_replicas["local"]
    assert_close(local[0], own[0])
    assert_close(local[1], own[1])
    assert_close(read, np.mean(own, axis=0))


def test_fit_on_replicas_equals_whole_windows(on_replicas: Any) -> None:
    (result,) = on_replicas["fit"]
    assert_close(result, moved(windows(count=1, examples=13)), rtol=1e-5)
