"""Scenarios from Keras' tests of accumulation, optimizers and training, with `bertaccum.keras3`.

Source of the scenarios: `optimizer_test.py`, `optimizer_distribute_test.py`, `trainer_test.py`,
`multi_optimizer_test.py` and `loss_scale_optimizer_test.py` of Keras 3.15.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from test_keras3 import BACKEND, CLOSE, EAGER, FEW, LOSS, assert_same, dense_data, dense_model

from bertaccum.keras3 import AccumulatingOptimizer, accumulate_gradients

pytestmark = pytest.mark.slow
ONES = [[1.0, 1.0], [1.0, 1.0]]


def variable(values: Any = ((1.0, 2.0), (3.0, 4.0))) -> keras.Variable:
    return keras.Variable(np.array(values, "float32"))


def applied(optimizer: Any, *pairs: tuple[Any, keras.Variable]) -> list[np.ndarray]:
    """Apply gradients to variables, and return the values of the variables."""
    tensors = [(keras.ops.convert_to_tensor(np.array(g, "float32")), v) for g, v in pairs]
    optimizer.apply_gradients(tensors)
    return [keras.ops.convert_to_numpy(v) for _, v in pairs]


def test_variables_change_with_the_last_micro_step_of_a_window() -> None:
    optimizer, v = AccumulatingOptimizer(keras.optimizers.SGD(1.0), 3), variable()
    for micro_step, (value, updates) in enumerate(
        [([[1, 2], [3, 4]], 0), ([[1, 2], [3, 4]], 0), ([[0, 1], [2, 3]], 1), ([[0, 1], [2, 3]], 1)]
    ):
        (found,) = applied(optimizer, (ONES, v))
        np.testing.assert_array_equal(found, value)
        assert int(optimizer.iterations) == updates
        assert optimizer.pending == (micro_step != 2)


@pytest.mark.parametrize("name", FEW)
def test_weight_decay_acts_once_per_window(name: str) -> None:
    one, three = variable([[0.9], [0.5]]), variable([[0.9], [0.5]])

    def make() -> Any:
        return getattr(keras.optimizers, name)(weight_decay=0.05)

    plain, accumulating = make(), AccumulatingOptimizer(make(), 3)
    rng = np.random.default_rng(0)
    for _ in range(8):
        gradients = rng.random((3, 2, 1))
        expected = applied(plain, (gradients.mean(0), one))
        for gradient in gradients:
            found = applied(accumulating, (gradient, three))
        np.testing.assert_allclose(found, expected, **CLOSE)


def test_gradients_that_overwrite_variables() -> None:
    """The scales of float8 training arrive as gradients; a window takes their maximum."""
    scale, v = variable(), variable()
    scale.overwrite_with_gradient = True
    optimizer = AccumulatingOptimizer(keras.optimizers.SGD(1.0), 2)
    for factor, (new_scale, new_v) in (
        (1, ([[1, 2], [3, 4]], [[1, 2], [3, 4]])),
        (2, ([[2, 2], [2, 2]], [[-0.5, 0.5], [1.5, 2.5]])),
        (1, ([[2, 2], [2, 2]], [[-0.5, 0.5], [1.5, 2.5]])),
    ):
        gradient = factor * np.array(ONES)
        found = applied(optimizer, (gradient, scale), (gradient, v))
        np.testing.assert_array_equal(found, [new_scale, new_v])


def several() -> keras.optimizers.Optimizer:
    """Return an optimizer that trains biases with another one than kernels."""
    optimizers = keras.optimizers
    by_path = optimizers.OptimizerMap(optimizers.Adam(0.01), {".*bias": optimizers.SGD(0.1)})
    return optimizers.MultiOptimizer(by_path)


def free() -> keras.optimizers.Optimizer:
    return keras.optimizers.ScheduleFreeAdamW(0.01, warmup_steps=2)


@pytest.mark.parametrize("make", [several, free])
def test_optimizers_of_later_versions(make: Any) -> None:
    def train(steps: int) -> keras.Model:
        model = dense_model()
        if steps > 1:
            accumulate_gradients(model, steps)
        model.compile(make(), LOSS)
        batch = 32 // steps
        model.fit(*dense_data(), batch_size=batch, epochs=3, shuffle=False, verbose=0)
        return model

    assert_same(train(4), train(1))


def test_pickled_optimizer_has_the_same_options() -> None:
    optimizer = AccumulatingOptimizer(keras.optimizers.Adam(0.1, clipnorm=2.0), 2)
    applied(optimizer, (ONES, variable()))
    copied = pickle.loads(pickle.dumps(optimizer))
    assert copied.get_config() == optimizer.get_config()
    assert copied.accumulation_steps == 2


def test_learning_rate_can_be_replaced_by_a_function() -> None:
    optimizer, v = AccumulatingOptimizer(keras.optimizers.SGD(0.5), 2), variable()
    optimizer.learning_rate = 0.25
    assert float(optimizer.inner_optimizer.learning_rate) == 0.25
    optimizer.learning_rate = lambda: 0.1
    applied(optimizer, (ONES, v))
    (found,) = applied(optimizer, (ONES, v))
    np.testing.assert_allclose(found, [[0.9, 1.9], [2.9, 3.9]], rtol=1e-6)


def fitted(
    steps: int, compiling: Any = None, callbacks: Any = None, on_partial: str = "apply", **fit: Any
) -> keras.Model:
    model = dense_model()
    if steps > 1:
        accumulate_gradients(model, steps, on_partial)
    compiling = {"run_eagerly": EAGER and steps == 1} | (compiling or {})
    model.compile(keras.optimizers.Adam(0.01), LOSS, **compiling)
    settings = {"epochs": 3, "shuffle": False, "verbose": 0, "batch_size": 32 // steps} | fit
    model.fit(*dense_data(60), callbacks=callbacks and callbacks(), **settings)
    return model


# Single operations are slow on JAX. On PyTorch, Keras would need a C++ compiler for steps.
COMPILING: list[dict[str, Any]] = [
    *([{"steps_per_execution": 3, "jit_compile": True}] if BACKEND != "torch" else []),
    *([{"jit_compile": False}] if BACKEND == "tensorflow" else []),
    *([{"run_eagerly": True}] if BACKEND != "jax" else []),
]


@pytest.mark.parametrize("compiling", COMPILING, ids=str)
def test_compile_options_do_not_change_the_updates(compiling: dict[str, Any]) -> None:
    assert_same(fitted(4, compiling), fitted(1))


def test_class_weights_and_validation() -> None:
    options = {"class_weight": {0: 0.5, 1: 1.0, 2: 3.0}, "validation_data": dense_data(20)}
    whole, ours = fitted(1, **options), fitted(4, **options)
    assert_same(ours, whole)
    losses = [model.history.history["val_loss"] for model in (ours, whole)]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_callbacks_act_on_updates(tmp_path: Path) -> None:
    path = str(tmp_path / "best.keras")

    def callbacks() -> list[keras.callbacks.Callback]:
        named = keras.callbacks
        return [
            named.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10, cooldown=0),
            named.EarlyStopping("loss", patience=3, min_delta=10, restore_best_weights=True),
            named.ModelCheckpoint(path, "loss", save_best_only=True),
            named.TerminateOnNaN(),
        ]

    whole, ours = fitted(1, None, callbacks, epochs=9), fitted(4, None, callbacks, epochs=9)
    assert_same(ours, whole)
    rates = [float(model.optimizer.learning_rate) for model in (ours, whole)]
    assert rates[0] == rates[1] < 0.01
    assert len(ours.history.history["loss"]) == len(whole.history.history["loss"]) == 4
    loaded = keras.saving.load_model(path)
    assert loaded.optimizer.accumulation_steps == 4
    # An update later than the best epoch's would differ by more.
    best = int(np.argmin(ours.history.history["loss"])) + 1
    assert int(loaded.optimizer.iterations) == 2 * best


def test_custom_compute_loss() -> None:
    class Doubled(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = dense_model()

        def call(self, inputs: Any) -> Any:
            return self.inner(inputs)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            loss = super().compute_loss(x, y, y_pred, sample_weight, training)
            return 2 * loss + 0.1 * keras.ops.mean(y_pred**2)

    def train(steps: int) -> keras.Model:
        model = Doubled()
        if steps > 1:
            accumulate_gradients(model, steps)
        eager = EAGER and steps == 1
        model.compile(keras.optimizers.Adam(0.01), LOSS, run_eagerly=eager)
        model.fit(*dense_data(60), batch_size=32 // steps, epochs=2, shuffle=False, verbose=0)
        return model

    assert_same(train(4), train(1))


def test_train_on_batch_and_weights_file(tmp_path: Path) -> None:
    x, y = dense_data(32)

    def new() -> keras.Model:
        model = accumulate_gradients(dense_model(), 4)
        model.compile(keras.optimizers.Adam(0.01), LOSS, run_eagerly=EAGER)
        return model

    model = new()
    for begin in range(0, 24, 8):
        model.train_on_batch(x[begin : begin + 8], y[begin : begin + 8])
    assert model.optimizer.pending
    model.save_weights(tmp_path / "model.weights.h5")
    other = new()
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "model.weights.h5")
    assert_same(other, model, atol=0)
    model.train_on_batch(x[24:], y[24:])
    whole = dense_model()
    whole.compile(keras.optimizers.Adam(0.01), LOSS, run_eagerly=EAGER)
    whole.train_on_batch(x, y)
    assert_same(model, whole)
    whole.save_weights(tmp_path / "plain.weights.h5")
    with pytest.warns(UserWarning, match="is not loaded"):
        other.load_weights(tmp_path / "plain.weights.h5")
    for mine, theirs in zip(other.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_state_for_other_weights_is_not_loaded(tmp_path: Path) -> None:
    def new(frozen: int) -> keras.Model:
        model = accumulate_gradients(dense_model(), 4)
        model.layers[frozen].trainable = False
        model.compile("sgd", LOSS, run_eagerly=EAGER)
        model.train_on_batch(*dense_data(8))
        return model

    first, second = (i for i, layer in enumerate(dense_model().layers) if layer.weights)
    new(first).save_weights(tmp_path / "model.weights.h5")
    with pytest.warns(UserWarning, match="is not loaded"):
        new(second).load_weights(tmp_path / "model.weights.h5")


def test_window_of_an_optimizer_that_is_an_attribute_is_dropped() -> None:
    model = accumulate_gradients(dense_model(), 4)
    model.second = AccumulatingOptimizer("sgd", 4)
    model.second.apply([keras.ops.ones_like(v) for v in model.weights], model.weights)
    model.begin_window()
    assert not model.second.pending


@pytest.mark.skipif(BACKEND == "torch", reason="PyTorch has neither kind of checkpoint")
def test_checkpoint_of_the_backend_contains_the_partial_window(tmp_path: Path) -> None:
    """The checkpoint is one of Orbax on JAX, and one of TensorFlow on TensorFlow."""

    def new() -> keras.Model:
        keras.utils.clear_session()  # Orbax finds variables by the names of their layers.
        model = accumulate_gradients(dense_model(), 4, "carry")
        model.compile(keras.optimizers.Adam(0.01), LOSS)
        return model

    model, other = new(), new()
    other.optimizer.build(other.trainable_variables)
    callbacks: list[keras.callbacks.Callback] = []
    if BACKEND == "jax":
        callbacks = [keras.callbacks.OrbaxCheckpoint(str(tmp_path), save_freq="epoch")]
    settings = {"batch_size": 8, "shuffle": False, "verbose": 0}
    model.fit(*dense_data(40), callbacks=callbacks, **settings)
    if BACKEND == "jax":
        other.load_weights(tmp_path)
    else:
        import tensorflow as tf

        path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "saved")
        restored = tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
        restored.expect_partial()
    assert other.optimizer.pending
    for one in (model, other):
        one.fit(*dense_data(24), **settings)
    assert_same(other, model, atol=1e-7)


def losses_targets_and_weights() -> list[tuple[Any, Any, Any]]:
    x, y = dense_data(60)
    score = x.sum(1, keepdims=True)
    named = {"class": LOSS, "score": "mse"}, {"class": y, "score": score}
    return [
        (*named, None),
        (*named, {"class": 1, "score": 3}),
        ([LOSS, "mse"], [y, score], None),
        ([LOSS, None], [y, score], None),
    ]


@pytest.mark.parametrize("number", range(4))
def test_structures_of_losses_and_targets(number: int) -> None:
    losses, targets, weights = losses_targets_and_weights()[number]

    def train(steps: int) -> keras.Model:
        inner = dense_model()
        one = keras.layers.Dense(1, name="score")(inner.layers[0].output)
        outputs = [inner.outputs[0], one]
        if isinstance(losses, dict):
            outputs = dict(zip(losses, outputs, strict=True))
        model = keras.Model(inner.inputs, outputs)
        if steps > 1:
            accumulate_gradients(model, steps)
        options = {"loss_weights": weights, "run_eagerly": EAGER and steps == 1}
        model.compile(keras.optimizers.Adam(0.01), losses, **options)
        settings = {"batch_size": 32 // steps, "epochs": 2, "shuffle": False, "verbose": 0}
        model.fit(dense_data(60)[0], targets, **settings)
        return model

    assert_same(train(4), train(1))


@keras.saving.register_keras_serializable("scenarios")
class Custom(keras.Sequential):
    """A model with its own `compile`, `fit` and `compute_loss`."""

    def compile(self, optimizer: Any, factor: float) -> None:
        super().compile(optimizer, LOSS)
        self.factor = factor

    def compile_from_config(self, config: Any) -> None:
        self.compile(keras.optimizers.Adam(0.01), 2.0)
        self.optimizer.build(self.trainable_variables)

    def fit(self, x: Any, y: Any, **rest: Any) -> Any:
        return super().fit(x, y, **rest)

    def compute_loss(self, x, y, y_pred, sample_weight):
        return self.factor * super().compute_loss(x, y, y_pred, sample_weight)


def test_custom_compile_and_fit(tmp_path: Path) -> None:
    def train(steps: int) -> keras.Model:
        model = Custom(dense_model().layers)
        model.build((None, 5))
        if steps > 1:
            accumulate_gradients(model, steps)
        model.compile(keras.optimizers.Adam(0.01), 2.0)
        model.fit(*dense_data(50), batch_size=32 // steps, shuffle=False, verbose=0)
        return model

    model = train(4)
    assert_same(model, train(1))
    assert not model.optimizer.pending
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(loaded, model, atol=0)


def test_pickled_model_continues() -> None:
    model = fitted(4, on_partial="carry")
    copied = pickle.loads(pickle.dumps(model))
    for one in (model, copied):
        one.fit(*dense_data(), batch_size=8, shuffle=False, verbose=0)
    assert_same(copied, model, atol=1e-7)


def test_variables_in_another_order_and_without_gradient() -> None:
    found = []
    for steps in (0, 2):
        optimizer: Any = keras.optimizers.SGD(1.0)
        a, b, c = variable(), variable(), variable()
        optimizer = AccumulatingOptimizer(optimizer, steps) if steps else optimizer
        optimizer.build([a, b, c])
        for _ in range(steps or 1):
            applied(optimizer, (2 * np.array(ONES), b), (ONES, a))
        found.append([keras.ops.convert_to_numpy(v) for v in (a, b, c)])
    np.testing.assert_array_equal(*found)
    with pytest.raises(ValueError, match="Unknown variable"):
        applied(optimizer, (ONES, variable()))


def test_file_contains_each_variable_once(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((500,)), keras.layers.Dense(500)])
    accumulate_gradients(model, 2).compile("adam", "mse")
    model.train_on_batch(np.ones((2, 500)), np.ones((2, 500)))
    names = {variable.path.split("/")[0] for variable in model.optimizer.variables}
    assert names == {"accumulating", model.optimizer.inner_optimizer.name}
    model.save(tmp_path / "model.keras")
    parameters = 4 * model.count_params()
    # The weights, two moments and the sums.
    assert 3.9 < (tmp_path / "model.keras").stat().st_size / parameters < 4.3
