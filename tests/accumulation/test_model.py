"""Tests that `fit` of an accumulating model equals `fit` with whole windows, for any batches."""

from __future__ import annotations

import copy
import functools
import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fitting
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from bertaccum import AccumulatingOptimizer
from bertaccum.accumulation import AccumBatchNormalization, AccumulatingModel, accumulate_gradients

pytestmark = pytest.mark.usefixtures("built_optimizers")
layers, l2 = tf_keras.layers, tf_keras.regularizers.l2
EXAMPLES = 28


def functional() -> tf_keras.Model:
    """Return a model with two inputs, two outputs and a regularizer on each layer."""
    left, right = layers.Input((3,), name="left"), layers.Input((2,), name="right")
    hidden = layers.Dense(4, "tanh", kernel_regularizer=l2(0.1))(
        layers.Concatenate()([left, right])
    )
    mean = layers.Dense(1, name="mean", bias_regularizer=l2(0.1))(hidden)
    kind = layers.Dense(2, name="kind", activity_regularizer=l2(0.1))(hidden)
    return tf_keras.Model({"left": left, "right": right}, {"mean": mean, "kind": kind})


class Subclassed(tf_keras.Model):
    """The functional model as a subclass with a custom `train_step` that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(4, "tanh", kernel_regularizer=l2(0.1))
        self.mean = layers.Dense(1, bias_regularizer=l2(0.1))
        self.kind = layers.Dense(2, activity_regularizer=l2(0.1))
        self.steps = tf.Variable(0, trainable=False)

    def call(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        hidden = self.hidden(tf.concat([inputs["left"], inputs["right"]], 1))
        return {"mean": self.mean(hidden), "kind": self.kind(hidden)}

    def train_step(self, data: Any) -> Any:
        self.steps.assign_add(1)
        return super().train_step(data)


def sequential() -> tf_keras.Model:
    return tf_keras.Sequential(
        [layers.Input((3,)), layers.Dense(4, "tanh", kernel_regularizer=l2(0.1)), layers.Dense(1)]
    )


def rows(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "left": rng.normal(size=(EXAMPLES, 3)).astype(np.float32),
        "right": rng.normal(size=(EXAMPLES, 2)).astype(np.float32),
        "mean": rng.normal(size=(EXAMPLES, 1)).astype(np.float32),
        "kind": rng.integers(0, 2, EXAMPLES),
        "weight": rng.uniform(0, 2, EXAMPLES).astype(np.float32),
    }


def batches(
    sizes: list[int], pick: Callable[[dict[str, np.ndarray]], Any], known: bool = True
) -> tf.data.Dataset:
    """Return a dataset of batches of these sizes, whose number is `known` in advance or not.

    If it is not known, the optimizers of tf_keras count the failing step at the end of an epoch
    as an update.
    """
    data = pick(rows(np.random.default_rng(0)))
    ends = np.cumsum(sizes)
    assert ends[-1] == EXAMPLES

    def cut() -> Iterator[Any]:
        for size, end in zip(sizes, ends, strict=True):
            batch = slice(end - size, end)
            yield tf.nest.map_structure(lambda a: a[batch], data)  # noqa: B023

    spec = tf.nest.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), data)
    dataset = tf.data.Dataset.from_generator(cut, output_signature=spec)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(sizes))) if known else dataset


def two_outputs(data: dict[str, np.ndarray]) -> Any:
    inputs = {key: data[key] for key in ("left", "right")}
    return inputs, {key: data[key] for key in ("mean", "kind")}


def one_output(data: dict[str, np.ndarray]) -> Any:
    return data["left"], data["mean"]


TWO_LOSSES = {
    "mean": "mse",
    "kind": tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
}
KINDS: dict[str, Any] = {
    "functional": (functional, two_outputs, TWO_LOSSES),
    "subclassed": (Subclassed, two_outputs, TWO_LOSSES),
    "sequential": (sequential, one_output, "mse"),
}
# Windows of three micro-batches and 8 examples, except for the partial window at the epoch's end.
SIZES = [3, 3, 2, 1, 6, 1, 4, 1, 3, 4]
# The same with two sizes, because XLA compiles each size.
TWO_SIZES = [2, 4, 2, 4, 2, 2, 2, 2, 4, 4]
WINDOWS = [8, 8, 8, 4]


def train(
    kind: str, sizes: list[int], steps: int | None = None, on_partial: str = "apply", **options: Any
) -> tuple[tf_keras.Model, dict[str, list[float]]]:
    """Fit a model for two epochs; return the model and its history.

    Without `steps`, the model does not accumulate, and runs eagerly, because tracing takes longer.
    """
    make, pick, loss = KINDS[kind]
    tf_keras.utils.set_random_seed(0)
    model = make()
    if steps is not None:
        assert accumulate_gradients(model, steps, on_partial) is model
    optimizer = options.pop("optimizer", None) or fitting.adamw()
    model.compile(optimizer, loss, **{"run_eagerly": steps is None} | options.pop("compiled", {}))
    data = batches(sizes, options.pop("pick", pick), options.pop("known", steps is None))
    history = model.fit(data, epochs=2, verbose=0, **options)
    return model, history.history


@functools.cache
def trained_with_windows(kind: str) -> tuple[tf_keras.Model, dict[str, list[float]]]:
    return train(kind, WINDOWS)


def assert_equal(one: tf_keras.Model, other: tf_keras.Model) -> None:
    assert one.trainable_variables
    for mine, theirs in zip(one.variables, other.variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "compiled"),
    [
        ("functional", {"jit_compile": True}),
        ("subclassed", {}),
        # The ten steps of an epoch are not a multiple of three.
        ("sequential", {"steps_per_execution": 3}),
    ],
)
def test_ragged_batches_and_a_partial_window_equal_whole_windows(
    kind: str, compiled: dict[str, bool]
) -> None:
    big, expected = trained_with_windows(kind)
    # With an unknown number of batches, the model's own counter would count the failing step at
    # the epoch's end, and an execution of several steps would lose all of them at this end.
    known = kind == "subclassed" or "steps_per_execution" in compiled
    sizes = TWO_SIZES if "jit_compile" in compiled else SIZES
    model, history = train(kind, sizes, 3, compiled=compiled, known=known)
    updates = 2 * len(WINDOWS)
    assert int(model.optimizer.iterations.numpy()) == updates
    assert isinstance(model, AccumulatingModel) and isinstance(model, type(big))
    if kind == "subclassed":
        assert (int(model.steps), int(big.steps)) == (2 * len(SIZES), updates)
        model.steps.assign(updates)
    assert_equal(model, big)
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)


def test_sample_weights_apply_to_examples_not_to_micro_batches() -> None:
    pick = lambda data: (*one_output(data), data["weight"])  # noqa: E731
    big, _ = train("sequential", WINDOWS, pick=pick)
    model, _ = train("sequential", SIZES, 3, pick=pick, compiled={"run_eagerly": True})
    unweighted, _ = trained_with_windows("sequential")
    assert_equal(model, big)
    assert np.abs(big.get_weights()[0] - unweighted.get_weights()[0]).max() > 1e-3


def test_class_weights_equal_those_of_the_large_batch() -> None:
    def fit(batch: int, steps: int | None) -> tf_keras.Model:
        tf_keras.utils.set_random_seed(0)
        model = tf_keras.Sequential([layers.Dense(2)])
        if steps is not None:
            accumulate_gradients(model, steps)
        model.compile(tf_keras.optimizers.SGD(0.1), TWO_LOSSES["kind"], run_eagerly=True)
        data = rows(np.random.default_rng(0))
        options = {"batch_size": batch, "epochs": 2, "shuffle": False, "verbose": 0}
        model.fit(data["left"], data["kind"], class_weight={0: 0.2, 1: 3.0}, **options)
        return model

    assert_equal(fit(4, 3), fit(12, None))


def test_output_with_a_mask_is_weighted_by_unmasked_positions() -> None:
    """The weight of a micro-batch is its number of tokens, not of sequences or padding."""
    rng = np.random.default_rng(0)
    lengths = np.array([[1], [5], [5], [4], [1], [1], [2], [5]])
    tokens = np.where(np.arange(5) < lengths, rng.integers(1, 6, (8, 5)), 0)
    targets = rng.normal(size=(8, 5, 1))

    def fit(batch: int, steps: int | None) -> tf_keras.Model:
        tf_keras.utils.set_random_seed(0)
        inputs = layers.Input((5,))
        embedded = layers.Embedding(6, 3, mask_zero=True)(inputs)
        model = tf_keras.Model(inputs, layers.Dense(1, kernel_regularizer=l2(0.1))(embedded))
        if steps is not None:
            accumulate_gradients(model, steps)
        model.compile(tf_keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        model.fit(tokens, targets, batch_size=batch, epochs=4, shuffle=False, verbose=0)
        return model

    assert_equal(fit(2, 2), fit(4, None))


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_ragged_and_sparse_inputs_are_weighted_by_examples(kind: str) -> None:
    rows = tf.constant([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
    inputs = (
        tf.RaggedTensor.from_tensor(rows, ragged_rank=1)
        if kind == "ragged"
        else tf.sparse.from_dense(rows)
    )
    layer = layers.Input((None,) if kind == "ragged" else (2,), **{kind: True})
    total = tf.reduce_sum if kind == "ragged" else tf.sparse.reduce_sum
    summed = layers.Lambda(lambda x: tf.reshape(total(x, 1), [-1, 1]))(layer)
    dense = layers.Dense(1, "linear", False, "ones")
    model = tf_keras.Model(layer, [dense(summed), dense(summed)])
    accumulate_gradients(model, 2)
    number = lambda y, y_pred: tf.reduce_mean((y - y_pred) ** 2)  # noqa: E731
    model.compile(tf_keras.optimizers.SGD(1.0), [number, "mse"], run_eagerly=True)
    model.train_on_batch(inputs, [tf.zeros([3, 1])] * 2)
    [weight] = [v for v in model.optimizer.variables if "weight" in v.name]
    assert weight == 3


def test_partial_window_is_applied_before_validation_and_callbacks() -> None:
    seen: list[tf.Tensor] = []
    losses: list[list[float]] = []

    class LineStyle(tf_keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(self.model.get_weights()[0])

    options = {"validation_data": batches([EXAMPLES], one_output)}
    for sizes, steps, callbacks in ((WINDOWS, None, LineStyle()), (SIZES, 3, [LineStyle()])):
        optimizer = tf_keras.optimizers.SGD(0.1)
        _, history = train(
            "sequential", sizes, steps, callbacks=callbacks, optimizer=optimizer, **options
        )
        losses.append(history["val_loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)
    np.testing.assert_allclose(seen[2:], seen[:2], rtol=0, atol=1e-6)


def test_partial_window_can_be_carried_over_or_dropped() -> None:
    """Each epoch has seven batches of 4, so that half a window of 8 remains."""
    momentum = functools.partial(tf_keras.optimizers.SGD, 0.1, momentum=0.9)
    carried, dropped = (
        train("sequential", [4] * 7, 2, on_partial, known=True, optimizer=momentum())[0]
        for on_partial in ("carry", "drop")
    )
    data = rows(np.random.default_rng(0))
    x, y = (np.concatenate([a, a]) for a in one_output(data))
    for model, windows in (
        (carried, np.split(np.arange(2 * EXAMPLES), 7)),
        (dropped, [*np.split(np.arange(24), 3), *np.split(np.arange(28, 52), 3)]),
    ):
        tf_keras.utils.set_random_seed(0)
        expected = sequential()
        expected.compile(momentum(), "mse", run_eagerly=True)
        for window in windows:
            expected.train_on_batch(x[window], y[window])
        assert int(model.optimizer.iterations.numpy()) == len(windows)
        assert_equal(model, expected)


class Interrupt(tf_keras.callbacks.Callback):
    """A callback that raises KeyboardInterrupt after the first micro-step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        raise KeyboardInterrupt


def interrupted_and_fitted(on_partial: str, interrupt: bool) -> tf_keras.Model:
    tf_keras.utils.set_random_seed(0)
    model = tf_keras.Sequential([layers.Input((4,)), AccumBatchNormalization(2), layers.Dense(1)])
    accumulate_gradients(model, 2, on_partial)
    model.compile("sgd", "mse", run_eagerly=True)
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 2, (12, 4)), rng.normal(size=(12, 1))
    if interrupt:
        with pytest.raises(KeyboardInterrupt):
            model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[Interrupt()])
        assert model.optimizer.pending
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    return model


@pytest.mark.parametrize("on_partial", ["apply", "drop"])
def test_fit_after_an_interrupted_fit_starts_a_new_window(on_partial: str) -> None:
    after, fresh = (interrupted_and_fitted(on_partial, interrupt) for interrupt in (True, False))
    assert_equal(after, fresh)


def test_fit_after_an_interrupted_fit_can_carry_over_its_window() -> None:
    after, fresh = (interrupted_and_fitted("carry", interrupt) for interrupt in (True, False))
    updates = [int(model.optimizer.iterations.numpy()) for model in (after, fresh)]
    assert updates == [2, 1]  # The models ran four and three micro-steps.


def test_window_restored_by_a_callback_is_kept(tmp_path: Path) -> None:
    """`BackupAndRestore` restores a window in this way to resume in the middle of an epoch."""
    model = accumulate_gradients(sequential(), 3)
    model.compile("sgd", "mse", run_eagerly=True)
    x, y = np.ones((6, 3)), np.ones((6, 1))
    model.train_on_batch(x[:2], y[:2])
    checkpoint = tf.train.Checkpoint(model)
    path = checkpoint.save(str(tmp_path / "checkpoint"))

    class Restore(tf_keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            checkpoint.restore(path)

    model.fit(x[2:], y[2:], batch_size=2, verbose=0, callbacks=[Restore()])
    assert int(model.optimizer.iterations.numpy()) == 1
    assert not model.optimizer.pending  # The restored micro-step and two more form a window.


@pytest.mark.parametrize("on_partial", ["apply", "carry", "drop"])
def test_batch_normalization_ends_its_window_with_the_optimizer(on_partial: str) -> None:
    tf_keras.utils.set_random_seed(0)
    model = tf_keras.Sequential([layers.Input((4,)), AccumBatchNormalization(2), layers.Dense(1)])
    accumulate_gradients(model, 2, on_partial)
    model.compile("sgd", "mse", run_eagerly=True)
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, (12, 4)).astype(np.float32)
    model.fit(x, x[:, :1], batch_size=4, shuffle=False, verbose=0)
    mean, windows = np.zeros(4), {"apply": [x[:8], x[8:]]}.get(on_partial, [x[:8]])
    for window in windows:
        mean = 0.99 * mean + 0.01 * window.mean(0)
    layer = model.layers[0]
    np.testing.assert_allclose(layer.moving_mean, mean, rtol=1e-5)
    assert int(layer._window.calls) == (on_partial == "carry")


def test_end_window_applies_to_all_optimizers_of_a_custom_step() -> None:
    class TwoOptimizers(tf_keras.Sequential):
        def train_step(self, data: Any) -> dict[str, tf.Tensor]:
            results = super().train_step(data)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
            pairs = zip(tape.gradient(loss, self.variables), self.variables, strict=True)
            self.second.apply_gradients(pairs)
            return results

    def fit(batches: list[slice], steps: int | None) -> tf_keras.Model:
        tf_keras.utils.set_random_seed(0)
        model = TwoOptimizers([layers.Dense(1)])
        second = tf_keras.optimizers.SGD(0.1)
        # The first optimizer has learning rate 0, because its updates would change the weights
        # for which the second one computes gradients.
        model.second = second if steps is None else AccumulatingOptimizer(second, steps)
        if steps is not None:
            accumulate_gradients(model, steps)
        model.compile(tf_keras.optimizers.SGD(0.0), "mse", run_eagerly=True)
        for batch in batches:
            model.train_on_batch(x[batch], x[batch, :1])
        if steps is not None:
            model.end_window()
        return model

    x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    cut = fit([slice(0, 3), slice(3, 4), slice(4, 6), slice(6, 7)], 3)
    assert_equal(cut, fit([slice(0, 6), slice(6, 7)], None))


def test_schedule_of_accumulation_steps_is_saved(tmp_path: Path) -> None:
    steps = tf_keras.optimizers.schedules.PiecewiseConstantDecay([1], [2, 4])
    model = accumulate_gradients(sequential(), steps)
    model.compile(AccumulatingOptimizer("adam", steps), "mse", run_eagerly=True)
    data = batches([4] * 7, one_output)
    model.fit(data, verbose=0)
    model.save(tmp_path / "model.h5")
    again = tf_keras.models.load_model(tmp_path / "model.h5")
    assert again.get_config() == model.get_config()
    again.run_eagerly = True
    again.fit(data, verbose=0)
    # The windows have 2, 4 and 1 micro-steps before loading, and 4 and 3 afterwards.
    assert int(again.optimizer.iterations.numpy()) == 5


def test_model_saved_before_its_first_step_can_be_loaded(tmp_path: Path) -> None:
    model = accumulate_gradients(functional(), 2)
    model.compile("adam", TWO_LOSSES)
    model.save(tmp_path / "model.keras")
    again = tf_keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(again, AccumulatingModel)


# Files in HDF5 are in test_saving.py.
def test_resume_from_a_partial_window_gives_identical_weights(tmp_path: Path) -> None:
    data = rows(np.random.default_rng(0))
    inputs, targets = two_outputs(data)

    def run(model: tf_keras.Model, micro_steps: range) -> None:
        for start in micro_steps:
            rows = slice(2 * start, 2 * start + 2)
            cut = lambda a: a[rows]  # noqa: B023, E731
            model.train_on_batch(
                {k: cut(v) for k, v in inputs.items()}, {k: cut(v) for k, v in targets.items()}
            )

    whole = accumulate_gradients(functional(), 3)
    whole.compile(fitting.adamw(), TWO_LOSSES, run_eagerly=True)
    run(whole, range(4))
    whole.save(tmp_path / "model.keras")
    again = tf_keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(again, AccumulatingModel)
    assert again.get_config() == whole.get_config()
    again.run_eagerly = True
    for model in (whole, again):
        run(model, range(4, 7))
    for mine, theirs in zip(again.variables, whole.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


@pytest.mark.slow
def test_savedmodel_gives_identical_predictions_and_can_be_trained(tmp_path: Path) -> None:
    """A SavedModel does not contain the optimizer's state, so training starts a new optimizer."""
    model, _ = train("functional", SIZES, 3)
    model.save(tmp_path / "model", save_format="tf")
    again = tf_keras.models.load_model(tmp_path / "model")
    inputs, targets = two_outputs(rows(np.random.default_rng(0)))
    for name, outputs in model.predict(inputs, verbose=0).items():
        np.testing.assert_array_equal(again.predict(inputs, verbose=0)[name], outputs)
    again.fit(inputs, targets, batch_size=4, verbose=0)
    assert int(again.optimizer.iterations.numpy()) == 3  # 7 micro-steps form 3 windows.


@pytest.mark.slow
def test_compiled_model_stays_compiled_with_its_optimizer_wrapped() -> None:
    model = sequential()
    model.compile(fitting.adamw(), "mse")
    model.train_on_batch(np.ones((2, 3)), np.ones((2, 1)))
    moments = model.optimizer
    accumulate_gradients(model, 2)
    assert isinstance(model.optimizer, AccumulatingOptimizer)
    assert model.optimizer.inner is moments
    for _ in range(2):
        model.train_on_batch(np.ones((2, 3)), np.ones((2, 1)))
    assert int(model.optimizer.iterations.numpy()) == 2


def test_mixed_float16_puts_the_loss_scale_inside() -> None:
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = accumulate_gradients(sequential(), 2)
        model.compile("adam", "mse")
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    assert isinstance(model.optimizer, AccumulatingOptimizer)
    assert isinstance(model.optimizer.inner, fitting.LossScale)


def test_losses_and_regularizers_of_different_dtypes_are_logged() -> None:
    def fit(sizes: list[int], steps: int | None) -> dict[str, list[float]]:
        tf_keras.utils.set_random_seed(0)
        inputs = layers.Input((3,))
        hidden = layers.Dense(4, "tanh", kernel_regularizer=l2(0.1))(inputs)
        heads = {"mean": layers.Dense(1, name="mean")(hidden)}  # Half precision.
        heads["kind"] = layers.Dense(2, dtype="float32", name="kind")(hidden)
        model = tf_keras.Model(inputs, heads)
        if steps is not None:
            accumulate_gradients(model, steps)
        weights = {"mean": 2.0, "kind": 3.0}
        model.compile("sgd", TWO_LOSSES, loss_weights=weights, run_eagerly=True)
        data = batches(sizes, lambda d: (d["left"], {key: d[key] for key in ("mean", "kind")}))
        history: dict[str, list[float]] = model.fit(data, epochs=2, verbose=0).history
        return history

    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        expected, history = fit(WINDOWS, None), fit(SIZES, 3)
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    assert expected.keys() == history.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=0.02)


@pytest.mark.slow
def test_layer_frozen_between_fits_does_not_change() -> None:
    """The function that ends an epoch's last window was traced while the layer was trainable."""
    tf_keras.utils.set_random_seed(0)
    model = accumulate_gradients(sequential(), 3)
    model.compile(tf_keras.optimizers.Adam(0.1), "mse")
    data = batches(SIZES, one_output)
    model.fit(data, verbose=0)
    model.layers[0].trainable = False
    model.compile(model.optimizer, "mse")
    frozen, other = (layer.get_weights()[0] for layer in model.layers)
    model.fit(data, verbose=0)
    np.testing.assert_array_equal(model.layers[0].get_weights()[0], frozen)
    assert np.abs(model.layers[1].get_weights()[0] - other).max() > 1e-3


def test_end_window_without_a_window_does_nothing() -> None:
    model = accumulate_gradients(sequential(), 3)
    model.compile("adam", "mse", run_eagerly=True)
    model.end_window()
    model.fit(batches([14, 14], one_output), verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 1


@pytest.mark.parametrize("own", [True, False])
def test_custom_fit_and_positional_callbacks_accumulate(own: bool) -> None:
    class Own(tf_keras.Sequential):
        def fit(self, *args: Any, **kwargs: Any) -> Any:
            return super().fit(*args, **kwargs)

    kind = Own if own else tf_keras.Sequential
    model = accumulate_gradients(kind([layers.Dense(1)]), 3)
    model.compile("adam", "mse", run_eagerly=True)
    history = tf_keras.callbacks.History()
    x, y = one_output(rows(np.random.default_rng(0)))
    if own:
        model.fit(x, y, batch_size=14, verbose=0, callbacks=history)
    else:
        model.fit(x, y, 14, 1, 0, [history])
    assert history.history["loss"]
    assert int(model.optimizer.iterations.numpy()) == 1


def test_own_fit_without_callbacks_applies_partial_windows() -> None:
    class Own(tf_keras.Sequential):
        def fit(self, x: Any, y: Any, epochs: int) -> Any:
            return super().fit(x, y, batch_size=14, epochs=epochs, verbose=0)

    model = accumulate_gradients(Own([layers.Dense(1)]), 3)
    model.compile("adam", "mse", run_eagerly=True)
    model.fit(*one_output(rows(np.random.default_rng(0))), 2)
    assert int(model.optimizer.iterations.numpy()) == 2


def test_callback_list_gets_the_epoch_end_callback_only_once() -> None:
    model = accumulate_gradients(sequential(), 3)
    model.compile("adam", "mse", run_eagerly=True)
    callbacks = tf_keras.callbacks.CallbackList([], add_history=True, model=model)
    for _ in range(2):
        model.fit(batches([14, 14], one_output), verbose=0, callbacks=callbacks)
    assert int(model.optimizer.iterations.numpy()) == 2
    assert len(callbacks.callbacks) == 2


def test_window_of_an_optimizer_that_is_an_attribute_is_dropped() -> None:
    model = accumulate_gradients(tf_keras.Sequential([layers.Dense(1)]), 3)
    model.build((None, 2))
    model.second = AccumulatingOptimizer(tf_keras.optimizers.SGD(), 3)
    model.second.accumulate([(tf.ones_like(v), v) for v in model.variables])
    model.begin_window()
    assert not model.second.pending


def test_custom_step_can_unpack_its_own_data() -> None:
    class FourParts(tf_keras.Sequential):
        def train_step(self, data: Any) -> Any:
            scalar, x, y, _ = data
            return super().train_step((x, y * scalar))

    model = accumulate_gradients(FourParts([layers.Dense(1)]), 2)
    model.compile("adam", "mse", run_eagerly=True)
    x, y = one_output(rows(np.random.default_rng(0)))
    parts = tf.data.Dataset.from_tensor_slices((x, y, y)).batch(7)
    model.fit(parts.map(lambda x, y, z: (tf.constant(2.0), x, y, z)), verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 2


def test_compute_loss_can_have_its_own_arguments() -> None:
    class Own(tf_keras.Sequential):
        def train_step(self, data: Any) -> dict[str, tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = self.compute_loss(*data) + self.compute_loss(*data, scale=tf.constant(2.0))
            self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
            return {"loss": loss}

        def compute_loss(
            self, x: tf.Tensor, y: tf.Tensor, training: bool = True, scale: Any = 1.0
        ) -> tf.Tensor:
            given.append((training, scale))
            return scale * tf.reduce_mean((self(x, training=training) - y) ** 2)

    given: list[Any] = []
    weights: list[Any] = []

    def loss_weight(*arguments: Any) -> tf.Tensor:
        weights.append(arguments)
        return tf.size(arguments[0])

    model = accumulate_gradients(Own([layers.Dense(1)]), 2, loss_weight=loss_weight)
    model.compile("sgd", run_eagerly=True)
    model.train_on_batch(np.ones((4, 3)), np.ones((4, 1)))
    assert given == [(True, 1.0), (True, 2.0)]
    assert [len(y) for y, *_ in weights] == [4, 4]


def test_window_of_an_optimizer_that_is_replaced_is_forgotten() -> None:
    model = accumulate_gradients(sequential(), 3)
    x, y = one_output(rows(np.random.default_rng(0)))
    replaced = tf_keras.optimizers.Adam(1.0)
    for optimizer, micro_batches in ((replaced, 5), (tf_keras.optimizers.SGD(0.1), 3)):
        model.compile(optimizer, "mse", run_eagerly=True)
        for start in range(micro_batches):
            model.train_on_batch(x[start : start + 2], y[start : start + 2])
    weights = model.get_weights()
    model.end_window()
    for now, before in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(now, before)
    assert [int(one.iterations.numpy()) for one in (replaced, model.optimizer)] == [1, 1]


def test_windows_of_layers_are_forgotten_with_that_of_the_optimizer() -> None:
    normalization = AccumBatchNormalization(3)
    model = tf_keras.Sequential([layers.Input((2,)), normalization, layers.Dense(1)])
    accumulate_gradients(model, 3).compile("sgd", "mse")
    normalization(np.ones((2, 2)), training=True)
    model.optimizer.apply_gradients([(tf.ones_like(v), v) for v in model.trainable_variables])
    for optimizer, calls in ((model.optimizer, 1), ("sgd", 0)):
        model.compile(optimizer, "mse")
        assert int(normalization._window.calls) == calls


@pytest.mark.slow
def test_ragged_output_is_weighted_by_positions() -> None:
    lengths = [1, 5, 4, 1, 2, 6]
    rng = np.random.default_rng(0)
    flat_x, flat_y = rng.normal(size=(sum(lengths), 2)), rng.normal(size=(sum(lengths), 1))
    x, y = (
        tf.RaggedTensor.from_row_lengths(tf.constant(a, tf.float32), lengths)
        for a in (flat_x, flat_y)
    )

    def fit(cuts: list[slice], steps: int | None) -> tf_keras.Model:
        tf_keras.utils.set_random_seed(0)
        inputs = layers.Input((None, 2), ragged=True)
        model = tf_keras.Model(inputs, layers.TimeDistributed(layers.Dense(1))(inputs))
        if steps is not None:
            accumulate_gradients(model, steps)
        loss = lambda a, b: (a - b).flat_values ** 2  # noqa: E731
        model.compile(tf_keras.optimizers.SGD(0.1), loss, run_eagerly=True)
        for cut in cuts:
            model.train_on_batch(x[cut], y[cut])
        return model

    cut = fit([slice(0, 2), slice(2, 3), slice(3, 6)], 3)
    assert_equal(cut, fit([slice(0, 6)], None))


@pytest.mark.parametrize("copy_layer", [None, lambda layer: layer])
def test_clone_accumulates_with_the_same_settings(copy_layer: Any) -> None:
    make, pick, loss = KINDS["functional"]
    model = accumulate_gradients(make(), 2, "drop")
    model.compile("sgd", loss)
    clone = tf_keras.models.clone_model(model, clone_function=copy_layer)
    assert isinstance(clone, AccumulatingModel) and isinstance(clone, type(make()))
    assert clone._accumulation == model._accumulation
    clone.compile("sgd", loss, run_eagerly=True)
    clone.fit(batches([7] * 4, pick), verbose=0)
    assert int(clone.optimizer.iterations.numpy()) == 2
    assert not model.optimizer.pending and not model._seen_optimizers()


deleted: list[float] = []


class Scaled(tf_keras.Model):
    """A model whose arguments tf_keras saves by itself."""

    def __init__(self, units: int = 1, scale: float = 1.0) -> None:
        super().__init__()
        self.dense, self.scale = layers.Dense(units), scale

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.scale * self.dense(inputs)

    def __del__(self) -> None:
        deleted.append(self.scale)


@pytest.mark.parametrize("how", ["file", "copy", "clone"])
def test_arguments_of_a_subclass_are_saved(tmp_path: Path, how: str) -> None:
    def saved(model: tf_keras.Model) -> tf_keras.Model:
        model.save(tmp_path / "model.keras")
        return tf_keras.models.load_model(tmp_path / "model.keras")

    make = {"file": saved, "copy": copy.deepcopy, "clone": tf_keras.models.clone_model}[how]
    model = accumulate_gradients(Scaled(2, scale=3.0), 2)
    model.compile("sgd", "mse", run_eagerly=True)
    model.train_on_batch(np.ones((2, 3)), np.ones((2, 2)))
    expected = Scaled(2, scale=3.0).get_config()
    gc.collect()
    deleted.clear()
    assert model.get_config()["model"]["config"] == expected
    assert not deleted
    with tf_keras.saving.custom_object_scope({"Scaled": Scaled}):
        again = make(model)
    assert isinstance(again, AccumulatingModel) and isinstance(again, Scaled)
    assert (again.dense.units, again.scale) == (2, 3.0)


def normalized(layer: tf_keras.layers.Layer) -> tf_keras.Model:
    return tf_keras.Sequential([layers.Dense(4), layer, layers.Dense(1)])


@pytest.mark.parametrize(
    "kind", [layers.BatchNormalization, layers.experimental.SyncBatchNormalization]
)
def test_model_with_plain_batch_normalization_warns(kind: Any) -> None:
    with pytest.warns(UserWarning, match=r"cannot be exact .* \(norm\)") as found:
        accumulate_gradients(normalized(kind(name="norm")), 2)
    assert len(found) == 1 and "replace_batch_normalization" in str(found[0].message)
    assert "unless the model calls these layers with training=False" in str(found[0].message)


def test_unfrozen_batch_normalization_warns_once() -> None:
    norm = layers.BatchNormalization(name="norm", trainable=False)
    model = normalized(norm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accumulate_gradients(model, 2)
        model.compile("sgd", "mse")
    norm.trainable = True
    with pytest.warns(UserWarning, match=r"cannot be exact .* \(norm\)"):
        model.compile("sgd", "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.compile("sgd", "mse")


def test_no_warning_if_accumulation_is_exact_or_statistics_are_pooled() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accumulate_gradients(normalized(layers.BatchNormalization(trainable=False)), 2)
        accumulate_gradients(normalized(AccumBatchNormalization(2)), 2)
        accumulate_gradients(normalized(layers.BatchNormalization()), 1)
        accumulate_gradients(normalized(layers.LayerNormalization()), 2)


def decorated() -> None:
    class Decorated(tf_keras.Sequential):
        @tf.function(reduce_retracing=True)
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    model = accumulate_gradients(Decorated([layers.Dense(1)]), 2)
    model.compile("adam", "mse", run_eagerly=True)
    model.fit(batches([14, 14], one_output), verbose=0)


def fit_with_own(optimizer: Any) -> None:
    class Own(tf_keras.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {}

    model = accumulate_gradients(Own([layers.Dense(1)]), 2)
    model.compile("adam", "mse")
    model.fit(batches([14, 14], one_output), verbose=0)


def fit_once(loss: Any, optimizer: Any) -> None:
    model = accumulate_gradients(sequential(), 2)
    model.compile(optimizer, loss)
    model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)


MISUSE = {
    "no model": (lambda: accumulate_gradients(layers.Dense(1), 2), "not a tf_keras model"),
    "keras 3": (lambda: accumulate_gradients(keras.Sequential(), 2), "not a tf_keras model"),
    "twice": (
        lambda: accumulate_gradients(accumulate_gradients(sequential(), 2), 2),
        "already accumulates",
    ),
    "no steps": (lambda: accumulate_gradients(sequential(), 0), "at least 1 micro-step"),
    "on_partial": (lambda: accumulate_gradients(sequential(), 2, "keep"), "choose one of apply"),
    "other steps": (
        lambda: fit_once("mse", AccumulatingOptimizer("adam", 3)),
        "give both the same",
    ),
    "a scale outside": (
        lambda: fit_once("mse", fitting.LossScale(AccumulatingOptimizer("adam", 2))),
        "the LossScaleOptimizer is outside; put it inside",
    ),
    "a function around a step": (decorated, "tf.function around train_step"),
    "no accumulating optimizer": (
        lambda: fit_with_own(tf_keras.optimizers.SGD(0.1)),
        "wrap each optimizer that it uses",
    ),
    "an optimizer of other steps": (
        lambda: fit_with_own(AccumulatingOptimizer("sgd", tf.Variable(3))),
        "over 2 micro-steps, but optimizer .SGD. over .*numpy=3.*; give both the same",
    ),
    "a layer of other steps": (
        lambda: accumulate_gradients(tf_keras.Sequential([AccumBatchNormalization(2)]), 4),
        "give both the same",
    ),
    "sum": (
        lambda: fit_once(tf_keras.losses.MeanSquaredError(reduction="sum"), "adam"),
        "reduction='sum_over_batch_size'",
    ),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_raises_with_a_hint(case: str) -> None:
    make, message = MISUSE[case]
    with pytest.raises((ValueError, TypeError), match=message):
        make()
