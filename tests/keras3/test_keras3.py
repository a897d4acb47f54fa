"""`bertaccum.keras3` equals large batches, on the backend of Keras that KERAS_BACKEND selects.

The last test runs this file on JAX and PyTorch, in environments without TensorFlow and tf_keras.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from bertaccum.keras3 import AccumBatchNormalization, AccumulatingOptimizer, accumulate_gradients

ROOT = Path(__file__).resolve().parents[2]
BACKEND = keras.config.backend()
# On TensorFlow, tracing and compiling a step takes longer than a few steps, so the references, and
# what does not depend on compiling, run eagerly.
EAGER = BACKEND == "tensorflow"
OPTIMIZERS = (
    *("SGD", "Adam", "AdamW", "Nadam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Ftrl", "Lion"),
    *("Adafactor", "Lamb", "Muon"),
)
FEW = ("SGD", "AdamW", "Lion")
# Keras' Adam divides by the square root of its second moment, which magnifies rounding errors of
# gradients near zero.
CLOSE = {"rtol": 0, "atol": 3e-5}


# Tests in other files of what depends on the backend; there is one of each kind. All tests of this
# file run on each backend, except these.
ON_TENSORFLOW = ("other_backend", "import_loads", "embeddings", "loss_scale_of_a_trained_model")
DEPENDING = {
    "keras_scenarios": (
        "variables_change_with_the_last_micro_step_of_a_window",
        "gradients_that_overwrite_variables",
        "compile_options_do_not_change_the_updates",
        "custom_compute_loss",
        "train_on_batch_and_weights_file",
        "checkpoint_of_the_backend_contains_the_partial_window",
        "structures_of_losses_and_targets[0]",
    ),
    "threads": (
        "equals_the_large_batch[keras-team/keras#19356]",
        "equals_the_large_batch[tensorflow/tensorflow#21243]",
        "equals_the_large_batch[keras-team/keras#20743]",
        "overflow_of_one_micro_batch_skips_its_window[1]",
        "sums_of_bfloat16_have_all_digits",
        "batch_normalization_in_float16",
        "own_train_step",
        "loop_with_a_compiled_stateless_apply",
        "model_parallel",
        "averaged_weights_are_validated",
        "state_of_a_recurrent_layer_between_micro_batches",
    ),
    "losses": (
        "losses_of_users[closure]",
        "losses_of_users[registered]",
        "annealed_loss",
        "number_of_values_differs",
        "one_added_loss_per_example_is_a_sum[True]",
        "losses_of_features_are_means_over_the_examples",
        "loss_weight_is_the_divisor",
        "loss_weight_of_0_has_no_effect",
        "outputs_with_different_sample_weights_are_refused",
        "loss_weight_without_compute_loss_is_refused",
        "layers_that_change_their_state_warn",
    ),
    "inner_optimizer": (
        "settings_after_compile[momentum-1]",
        "partial_window_sees_the_changed_setting",
        "own_hook_gets_the_mean_of_the_window",
        "optimizer_applied_twice_is_refused[2]",
        "optimizers_that_do_not_accumulate_are_refused",
        "each_part_has_its_optimizer",
        "variables_without_gradient_in_a_window_do_not_change",
        "a_model_can_be_compiled_again_with_the_same_optimizer",
    ),
}


def schedule() -> keras.optimizers.schedules.LearningRateSchedule:
    return keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.7)


def dense_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(7, activation="tanh", kernel_regularizer="l2"),
            keras.layers.Dense(3),
        ]
    )


def dense_data(examples: int = 64) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(examples, 5)).astype("float32"), rng.integers(0, 3, examples)


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fitted(
    model: keras.Model,
    data: tuple[np.ndarray, ...],
    optimizer: Any,
    steps: int,
    batch: int,
    on_partial: str = "apply",
    loss: Any = LOSS,
    eager: bool = False,
    **fit: Any,
) -> keras.Model:
    """Train a model for three epochs; with `steps` 0, without accumulation."""
    if steps:
        accumulate_gradients(model, steps, on_partial)
    eager = EAGER and (eager or not steps)
    model.compile(optimizer, loss, weighted_metrics=[], run_eagerly=eager)
    named = dict(zip(("x", "y", "sample_weight"), data, strict=False))
    model.fit(**named, batch_size=batch, **{"epochs": 3, "shuffle": False, "verbose": 0} | fit)
    return model


def assert_same(one: keras.Model, other: keras.Model, **close: Any) -> None:
    for mine, theirs in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, **CLOSE | close)
    assert int(one.optimizer.iterations) == int(other.optimizer.iterations)


@pytest.mark.parametrize(
    "name",
    ["AdamW"]
    if BACKEND != "tensorflow"
    else [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in OPTIMIZERS],
)
def test_every_optimizer_equals_the_large_batch(name: str) -> None:
    options = {"use_ema": True, "clipnorm": 0.1, "weight_decay": 0.01}

    def train(steps: int, batch: int) -> keras.Model:
        optimizer = getattr(keras.optimizers, name)(schedule(), **options)
        # An epoch of 60 examples ends with a partial window, in micro-batches of 11, 11 and 5.
        return fitted(dense_model(), dense_data(60), optimizer, steps, batch)

    assert_same(train(3, 11), train(0, 33))


def test_weights_count_unmasked_positions() -> None:
    def model() -> keras.Model:
        keras.utils.set_random_seed(0)
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((6, 4)),
                layers.Masking(),
                layers.GRU(5, return_sequences=True),
                layers.Dense(3),
            ]
        )

    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 6, 4)).astype("float32")
    x[np.arange(6) >= rng.integers(1, 7, 64)[:, None]] = 0
    data = x, rng.integers(0, 3, (64, 6))
    adam = keras.optimizers.Adam
    whole = fitted(model(), data, adam(schedule()), 0, 32)
    assert_same(fitted(model(), data, adam(schedule()), 4, 8), whole)
    # Without weights, the result would differ.
    assert np.ptp(x.any(-1).reshape(8, 48).sum(1)) > 5


def test_embeddings_equal_a_dense_gradient() -> None:
    """On TensorFlow, Keras' own update from a sparse gradient with repeated rows is wrong."""

    def train(steps: int, batch: int) -> keras.Model:
        keras.utils.set_random_seed(0)
        layers = keras.layers
        model = keras.Sequential(
            [keras.Input((6,), dtype="int32"), layers.Embedding(20, 4), layers.Flatten()]
        )
        model.add(layers.Dense(3))
        tokens = np.random.default_rng(0).integers(0, 20, (64, 6))
        return fitted(model, (tokens, dense_data()[1]), keras.optimizers.Adam(), steps, batch)

    whole = train(1 if BACKEND == "tensorflow" else 0, 32)
    assert_same(train(4, 8), whole)


def test_frozen_layers_keep_their_weights() -> None:
    """Weight decay changes only variables that are trained."""

    def train(steps: int, batch: int) -> keras.Model:
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5)
        model = fitted(dense_model(), dense_data(), optimizer, steps, batch, epochs=1)
        model.layers[0].trainable = False
        own = optimizer if steps == 0 else model.optimizer
        model.compile(own, LOSS, run_eagerly=EAGER and steps == 0)
        model.fit(*dense_data(), batch_size=batch, epochs=1, shuffle=False, verbose=0)
        return model

    if BACKEND == "jax":  # Keras itself expects as many gradients as before.
        with pytest.raises(ValueError, match="variables"):
            train(0, 32)
        return
    assert_same(train(4, 8), train(0, 32))


def test_ignored_class_and_sample_weights() -> None:
    x, y = dense_data()
    y[::3] = 2
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=2)
    data = x, y, np.random.default_rng(1).uniform(0, 2, 64).astype("float32")
    trained = [
        fitted(dense_model(), data, keras.optimizers.SGD(0.5), steps, batch, loss=loss)
        for steps, batch in ((4, 8), (0, 32))
    ]
    assert_same(*trained)


def test_partial_windows() -> None:
    data = dense_data(40)
    apply, carry, drop = (
        fitted(dense_model(), data, "sgd", 4, 8, on_partial, eager=on_partial == "apply", epochs=2)
        for on_partial in ("apply", "carry", "drop")
    )
    assert [int(m.optimizer.iterations) for m in (apply, carry, drop)] == [4, 2, 2]
    assert [m.optimizer.pending for m in (apply, carry, drop)] == [False, True, False]
    first = data[0][:32], data[1][:32]
    assert_same(drop, fitted(dense_model(), first, "sgd", 0, 32, epochs=2))


def test_batch_normalization_loads_the_weights_of_its_keras_class(tmp_path: Path) -> None:
    class Own(keras.Model):
        """A model whose files name the layer by its attribute, and not by its class."""

        def __init__(self, layer: keras.layers.Layer) -> None:
            super().__init__()
            self.layer = layer

        def call(self, inputs: Any) -> Any:
            return self.layer(inputs, training=True)

    def new(layer: keras.layers.Layer) -> keras.Model:
        model = Own(layer)
        model(np.random.default_rng(0).normal(size=(8, 4)).astype("float32"))
        return model

    plain, model = new(keras.layers.BatchNormalization()), new(AccumBatchNormalization(4))
    plain.save_weights(tmp_path / "plain.weights.h5")
    model.load_weights(tmp_path / "plain.weights.h5")
    weights = [keras.ops.convert_to_numpy(v) for v in model.layer.variables]
    for mine, its in zip(weights, plain.get_weights(), strict=False):
        np.testing.assert_array_equal(mine, its)
    assert [np.abs(w).max() for w in weights[4:]] == [0] * 4


def test_own_fit_without_callbacks_applies_partial_windows() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

        def fit(self, x: Any, y: Any, epochs: int) -> Any:
            return super().fit(x, y, batch_size=8, epochs=epochs, verbose=0)

    model = accumulate_gradients(Own(), 3)
    model.compile("sgd", LOSS, run_eagerly=EAGER)
    model.fit(*dense_data(16), 2)
    assert int(model.optimizer.iterations) == 2
    assert not model.optimizer.pending


@pytest.mark.parametrize(("on_partial", "masked"), [("apply", True), ("drop", False)])
def test_batch_normalization_pools_its_statistics(on_partial: str, masked: bool) -> None:
    """The layer comes first, so that the inputs are those of the large batch."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(55, 4, 2)).astype("float32") * [3, 1] + [2, 0]
    x[::3, 2:] = 0
    y = rng.integers(0, 3, 55)

    def statistics(steps: int, batch: int, examples: int = 55) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        layers = keras.layers
        normalization = (
            AccumBatchNormalization(steps, momentum=0.8)
            if steps
            else layers.BatchNormalization(momentum=0.8)
        )
        model = keras.Sequential([keras.Input((4, 2)), *[layers.Masking()] * masked, normalization])
        model.add(layers.Flatten())
        model.add(layers.Dense(3))
        fitted(model, (x[:examples], y[:examples]), "sgd", steps, batch, on_partial)
        return [
            keras.ops.convert_to_numpy(w)
            for w in (normalization.moving_mean, normalization.moving_variance)
        ]

    # An epoch of 55 examples has a window of 33 examples, and a partial one of 22.
    whole = statistics(0, 33, 55 if on_partial == "apply" else 33)
    for mine, theirs in zip(statistics(3, 11), whole, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert abs(whole[1] - 1).max() > 0.1


def test_batch_normalization_is_saved_with_its_window(tmp_path: Path) -> None:
    x, y = dense_data(40)

    def model() -> keras.Model:
        keras.utils.set_random_seed(0)
        return keras.Sequential(
            [keras.Input((5,)), AccumBatchNormalization(4), keras.layers.Dense(3)]
        )

    half = fitted(model(), (x, y), "sgd", 4, 8, "carry", eager=True, epochs=1)
    half.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for one in (half, loaded):
        one.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    assert_same(loaded, half, atol=1e-7)
    frozen = model()
    frozen.layers[0].trainable = False
    before = frozen.layers[0].get_weights()
    fitted(frozen, (x, y), "sgd", 4, 8, eager=True, epochs=1)
    for old, new in zip(before, frozen.layers[0].get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    with pytest.raises(ValueError, match="renorm"):
        AccumBatchNormalization(4, renorm=True)
    with pytest.raises(ValueError, match="over 2 micro-steps, but layer pooled over 4"):
        accumulate_gradients(keras.Sequential([AccumBatchNormalization(4, name="pooled")]), 2)


def test_window_of_batch_normalization_is_forgotten_with_that_of_the_optimizer() -> None:
    normalization = AccumBatchNormalization(3)
    model = keras.Sequential([keras.Input((2,)), normalization, keras.layers.Dense(1)])
    accumulate_gradients(model, 3).compile("sgd", "mse")
    normalization(np.ones((2, 2), "float32"), training=True)
    variables = model.trainable_variables
    model.optimizer.apply([keras.ops.ones(v.shape) for v in variables], variables)
    for optimizer, calls in ((model.optimizer, 1), ("sgd", 0)):
        model.compile(optimizer, "mse")
        assert int(normalization.window_calls) == calls


def test_batch_normalization_can_change_its_momentum() -> None:
    x, y = dense_data(32)
    found = []
    for steps, layer in ((0, keras.layers.BatchNormalization()), (4, AccumBatchNormalization(4))):
        assert layer.momentum == 0.99
        layer.momentum = 0.5
        assert layer.get_config()["momentum"] == 0.5
        model = keras.Sequential([keras.Input((5,)), layer, keras.layers.Dense(3)])
        fitted(model, (x, y), "sgd", steps, 8 if steps else 32, epochs=1)
        found.append(keras.ops.convert_to_numpy(layer.moving_mean))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-7)


def test_batch_normalization_must_be_called_once_in_a_micro_step() -> None:
    normalization = AccumBatchNormalization(2, name="shared")
    both = [keras.Input((5,)), keras.Input((5,))]
    merged = keras.layers.Add()([normalization(one) for one in both])
    model = keras.Model(both, keras.layers.Dense(3)(merged))
    x, y = dense_data(8)
    with pytest.raises(ValueError, match="layer shared is called twice in a micro-step"):
        fitted(model, ([x, x], y), "sgd", 2, 4)


def test_layers_of_batch_normalization_may_have_the_same_name() -> None:
    def tower(name: str) -> keras.Model:
        inputs = keras.Input((5,))
        return keras.Model(inputs, AccumBatchNormalization(2, name="norm")(inputs), name=name)

    both = [keras.Input((5,)), keras.Input((5,))]
    merged = keras.layers.Add()([tower(f"tower{i}")(one) for i, one in enumerate(both)])
    x, y = dense_data(8)
    model = keras.Model(both, keras.layers.Dense(3)(merged))
    fitted(model, ([x, 2 * x], y), "sgd", 2, 4, eager=True, epochs=1)
    layers = [model.get_layer(f"tower{i}").get_layer("norm") for i in range(2)]
    means = [keras.ops.convert_to_numpy(one.moving_mean) for one in layers]
    np.testing.assert_allclose(means, [0.01 * x.mean(0), 0.02 * x.mean(0)], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("steps", [1, 2])
def test_missing_gradients_are_reported_as_by_keras(steps: int) -> None:
    optimizer = AccumulatingOptimizer("sgd", steps)
    one, other = (keras.Variable(1.0, name=name) for name in ("one", "other"))
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer.apply([None, None], [one, other])
    with pytest.warns(UserWarning, match=r"Gradients do not exist for variables \['other'\]"):
        optimizer.apply([keras.ops.ones(()), None], [one, other])


def test_learning_rate_and_callbacks_see_updates() -> None:
    model = fitted(dense_model(), dense_data(), keras.optimizers.Adam(schedule()), 4, 8, eager=True)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.05 * 0.7**3)
    seen: list[int] = []
    model = accumulate_gradients(dense_model(), 4)
    model.compile(keras.optimizers.Adam(0.1), LOSS)
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_: seen.append(int(model.optimizer.iterations))
        ),
    ]
    model.fit(*dense_data(40), batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    assert seen == [2, 4]
    assert float(model.optimizer.learning_rate) == pytest.approx(0.025)


def test_steps_may_depend_on_the_number_of_updates() -> None:
    def growing(updates: Any) -> Any:
        return 1 + keras.ops.cast(updates, "int32")

    model = accumulate_gradients(dense_model(), growing)
    model.compile("sgd", LOSS, run_eagerly=EAGER)
    model.fit(*dense_data(80), batch_size=8, epochs=1, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == 4  # Windows of 1, 2, 3 and 4 micro-batches.


def test_saving_and_loading_in_the_middle_of_a_window(tmp_path: Path) -> None:
    x, y = dense_data(48)

    def trained(on_partial: str) -> keras.Model:
        adam, part = keras.optimizers.Adam(0.01), (x[:40], y[:40])
        return fitted(dense_model(), part, adam, 4, 8, on_partial, eager=True, epochs=1)

    model = trained("carry")
    assert model.optimizer.pending
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.pending and loaded.optimizer.accumulation_steps == 4
    flushed = keras.saving.load_model(tmp_path / "model.keras")
    flushed.optimizer.flush()
    assert_same(flushed, trained("apply"))
    for one in (loaded, model):
        one.fit(x[40:], y[40:], batch_size=8, epochs=3, shuffle=False, verbose=0)
    assert_same(loaded, model, atol=1e-7)


def test_model_that_was_compiled_and_trained_before(tmp_path: Path) -> None:
    def trained_before() -> keras.Model:
        return fitted(dense_model(), dense_data(), keras.optimizers.Adam(0.01), 0, 32, epochs=1)

    model, whole = accumulate_gradients(trained_before(), 3), trained_before()
    x, y = dense_data(60)
    model.fit(x, y, batch_size=11, epochs=2, shuffle=False, verbose=0)
    whole.fit(x, y, batch_size=33, epochs=2, shuffle=False, verbose=0)
    assert_same(model, whole)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.accumulation_steps == 3
    assert_same(loaded, model)


class Scaled(keras.Model):
    def __init__(self, units: int, scale: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.dense, self.scale = keras.layers.Dense(units), scale

    def call(self, inputs: Any) -> Any:
        return self.scale * self.dense(inputs)


class Described(Scaled):
    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"units": self.dense.units, "scale": self.scale}


def test_subclass_is_saved_or_refused_as_by_keras(tmp_path: Path) -> None:
    for plain in (Scaled(3), accumulate_gradients(Scaled(3), 4)):
        with pytest.raises(NotImplementedError, match="the object must override `get_config"):
            plain.get_config()
    model = accumulate_gradients(Described(3, scale=2.0), 4)
    model.compile("sgd", LOSS, run_eagerly=EAGER)
    model.fit(*dense_data(8), batch_size=4, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", {"Described": Described})
    assert (loaded.dense.units, loaded.scale) == (3, 2.0)


def test_mixed_float16_scales_the_loss_inside() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = fitted(dense_model(), dense_data(), keras.optimizers.SGD(0.1), 4, 8)
        inner = model.optimizer.inner_optimizer
        assert isinstance(inner, keras.optimizers.LossScaleOptimizer)
        assert_same(
            model, fitted(dense_model(), dense_data(), keras.optimizers.SGD(0.1), 0, 32), atol=1e-3
        )
    finally:
        keras.config.set_dtype_policy("float32")


def test_window_without_weight_leaves_the_weights_finite() -> None:
    x, y = dense_data()
    y[:16] = 2
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=2)
    adam = keras.optimizers.Adam
    trained = [
        fitted(dense_model(), (x, y), adam(0.01), steps, batch, loss=loss)
        for steps, batch in ((2, 8), (0, 16))
    ]
    assert np.isfinite(trained[0].get_weights()[0]).all()
    assert_same(*trained)


def test_loss_scale_of_a_trained_model_goes_on(tmp_path: Path) -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), 64.0)
        model = fitted(dense_model(), dense_data(32), scaled, 0, 32, epochs=1)
        accumulate_gradients(model, 4, "carry")
        model.fit(*dense_data(40), batch_size=8, epochs=1, shuffle=False, verbose=0)
        assert float(scaled.dynamic_scale) == 64
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert loaded.optimizer.pending
        assert float(loaded.optimizer.inner_optimizer.dynamic_scale) == 64
    finally:
        keras.config.set_dtype_policy("float32")


def test_micro_batches_overflow_no_sooner_than_the_large_batch() -> None:
    """The gradient of the first micro-batch alone, times the loss scale, exceeds float16."""
    x, y = np.ones((32, 1), "float32"), np.zeros((32, 1), "float32")
    y[:8] = -100
    keras.config.set_dtype_policy("mixed_float16")
    try:
        for steps in (1, 4):
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
            scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), 512.0)
            fitted(model, (x, y), scaled, steps, 32 // steps, loss="mse", epochs=1)
            assert float(scaled.dynamic_scale) == 512
            assert int(scaled.iterations) == 1
        assert float(model.optimizer.scale_loss(keras.ops.cast(1, "float64"))) == 128
    finally:
        keras.config.set_dtype_policy("float32")


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="not a Keras 3 model"):
        accumulate_gradients(object(), 4)
    with pytest.raises(ValueError, match="at least 1"):
        AccumulatingOptimizer("sgd", 0)
    with pytest.raises(TypeError, match="integer or a function"):
        AccumulatingOptimizer("sgd", 1.5)
    with pytest.raises(ValueError, match="already accumulates"):
        AccumulatingOptimizer(keras.optimizers.Adam(gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match="already accumulates"):
        AccumulatingOptimizer(AccumulatingOptimizer("sgd"))
    model = accumulate_gradients(dense_model(), 4)
    with pytest.raises(ValueError, match="only once"):
        accumulate_gradients(model, 4)
    with pytest.raises(ValueError, match="give both the same"):
        model.compile(AccumulatingOptimizer("sgd", 2), LOSS)
    with pytest.raises(ValueError, match="put it inside"):
        model.compile(keras.optimizers.LossScaleOptimizer(AccumulatingOptimizer("sgd")), LOSS)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True, reduction="sum"))
    with pytest.raises(ValueError, match="needs a mean"):
        model.fit(*dense_data(), verbose=0)


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution is for JAX")
def test_data_parallel() -> None:
    """Every micro-batch is spread over the devices of `keras.distribution`."""
    whole = fitted(dense_model(), dense_data(60), keras.optimizers.AdamW(schedule()), 0, 32)
    devices = keras.distribution.list_devices()
    assert len(devices) == 4
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    try:
        spread = fitted(dense_model(), dense_data(60), keras.optimizers.AdamW(schedule()), 4, 8)
        assert len(spread.optimizer.variables[2].value.sharding.device_set) == 4
        assert spread.optimizer.variables[-1].value.sharding.is_fully_replicated
    finally:
        keras.distribution.set_distribution(None)
    assert_same(spread, whole)


def test_import_loads_no_tf_keras() -> None:
    code = "import sys, bertaccum.keras3; print('tf_keras' in sys.modules)"
    own = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=own
    )
    assert done.stdout.split() == ["False"]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "folder"), [("jax", "jax"), ("torch", "huggingface")])
def test_other_backend(backend: str, folder: str, tmp_path: Path) -> None:
    python = ROOT / f"build/peers/environments/{folder}/bin/python"
    if not python.exists():
        pytest.skip(f"no {backend} (run make {python.parents[1].relative_to(ROOT)})")
    devices = "--xla_force_host_platform_device_count=4"
    environment = os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    # Compiling the code of small models takes longer than running it, above all with MLIR.
    environment |= {"XLA_FLAGS": f"{devices} --xla_cpu_use_fusion_emitters=false"}
    environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
    # Many models are compiled to the same code.
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [python, "-m", "pytest", "-q", "--noconftest", "-c", os.devnull]
    command += ["--rootdir", ROOT / "tests/keras3", "-p", "no:cacheprovider"]
    command += ["-k", " and ".join(f"not {name}" for name in ON_TENSORFLOW), __file__]
    command += (
        f"{Path(__file__).with_name(f'test_{file}.py')}::test_{name}"
        for file, names in DEPENDING.items()
        for name in names
    )
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    # Tests of what only other backends have; tests for all backends must not be skipped.
    skipped = {"jax": 2, "torch": 5}[backend]
    assert f" passed, {skipped} skipped" in done.stdout
