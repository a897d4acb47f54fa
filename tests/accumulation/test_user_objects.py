"""Tests that the user's loss and optimizer are used as they are, and that their hooks run."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from bertaccum import AccumulatingOptimizer
from bertaccum.accumulation import accumulate_gradients, contract

pytestmark = pytest.mark.usefixtures("built_optimizers")
losses, optimizers = tf_keras.losses, tf_keras.optimizers
LossScale = tf_keras.mixed_precision.LossScaleOptimizer
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(16, 4))
NUMBERS = RNG.normal(size=(16, 3))
POSITIVE = RNG.uniform(0.1, 1, size=(16, 3))
BITS = RNG.integers(0, 2, (16, 3)).astype(float)
CLASSES = np.eye(3)[RNG.integers(0, 3, 16)]
NUMBERS_OF_CLASSES = CLASSES.argmax(1).astype(float)

# Losses with arguments that are not the defaults, each with fitting targets and an activation. Two
# losses without arguments stand for all of these.
BUILT_IN = [
    (losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.2), BITS, None),
    (losses.BinaryFocalCrossentropy(True, 0.4, 3.0, label_smoothing=0.1), BITS, "sigmoid"),
    (losses.CategoricalCrossentropy(label_smoothing=0.3), CLASSES, "softmax"),
    (losses.CategoricalCrossentropy(from_logits=True), CLASSES, None),
    (losses.CategoricalFocalCrossentropy(0.5, 3.0, label_smoothing=0.1), CLASSES, "softmax"),
    (losses.CosineSimilarity(), NUMBERS, None),
    (losses.Huber(delta=0.1), NUMBERS, None),
    (losses.KLDivergence(), POSITIVE, "softmax"),
    (losses.SparseCategoricalCrossentropy(from_logits=True), NUMBERS_OF_CLASSES, None),
]


@pytest.fixture
def float64() -> Iterator[None]:
    """Use float64, in which equal updates agree to many digits."""
    tf_keras.mixed_precision.set_global_policy("float64")
    yield
    tf_keras.mixed_precision.set_global_policy("float32")


def trained(
    loss: Any, targets: Any, steps: int | None, activation: Any = None, **options: Any
) -> tf_keras.Model:
    """Return a model after two windows of eight examples.

    Without `steps`, it runs eagerly, because tracing takes longer.
    """
    tf_keras.utils.set_random_seed(0)
    model = tf_keras.Sequential([tf_keras.layers.Dense(3, activation)])
    model.build((None, 4))
    options = {"optimizer": optimizers.SGD(0.1, momentum=0.9), "eager": True} | options
    callbacks, epochs = options.pop("callbacks", []), options.pop("epochs", 1)
    if steps is not None:
        accumulate_gradients(model, steps)
    model.compile(options["optimizer"], loss, run_eagerly=options["eager"] or steps is None)
    size = 8 // (steps or 1)
    model.fit(FEATURES, targets, size, epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return model


def assert_close(model: tf_keras.Model, expected: tf_keras.Model) -> None:
    for own, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-10)


# --- Losses -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
def test_arguments_of_losses_have_an_effect() -> None:
    """Each loss trains a layer of its own."""
    given, targets, activations = zip(*BUILT_IN, strict=True)

    def together(steps: int | None) -> tf_keras.Model:
        tf_keras.utils.set_random_seed(0)
        inputs = tf_keras.Input((4,))
        outputs = [tf_keras.layers.Dense(3, kind)(inputs) for kind in activations]
        model = tf_keras.Model(inputs, outputs)
        if steps is not None:
            accumulate_gradients(model, steps)
        model.compile(optimizers.SGD(0.1, momentum=0.9), list(given), run_eagerly=True)
        model.fit(FEATURES, list(targets), 8 // (steps or 1), shuffle=False, verbose=0)
        return model

    assert_close(together(4), together(None))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("loss", "targets", "activation", "steps"),
    [
        # `axis=0` averages over the examples, so only the whole window has one result.
        (losses.BinaryCrossentropy(axis=0), BITS, "sigmoid", 1),
        (losses.SparseCategoricalCrossentropy(ignore_class=1), NUMBERS_OF_CLASSES, "softmax", 4),
    ],
)
def test_arguments_with_divisors_of_their_own(
    loss: Any, targets: Any, activation: str, steps: int
) -> None:
    expected = trained(loss, targets, None, activation)
    assert_close(trained(loss, targets, steps, activation), expected)


class Scaled(losses.Loss):
    """A loss with a factor, which a callback may change, and an `if` on a tensor in its call."""

    def __init__(self, factor: Any = 3.0) -> None:
        super().__init__(name="scaled")
        self.factor = factor

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(y_true) > 1e9:
            y_pred = -y_pred
        return self.factor * tf.reduce_mean((y_true - y_pred) ** 2, axis=-1)

    def method(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return self.call(y_true, y_pred)


def huber(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """A loss function with the name of one of Keras."""
    return 5 * tf.reduce_mean(tf.abs(y_true - y_pred), axis=-1)


def powered(y_true: tf.Tensor, y_pred: tf.Tensor, power: float) -> tf.Tensor:
    return tf.reduce_mean(tf.abs(y_true - y_pred) ** power, axis=-1)


def closure(power: float) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    def loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return powered(y_true, y_pred, power)

    return loss


USERS = {
    "function": huber,
    "closure": closure(3.0),
    "partial": functools.partial(powered, power=3.0),
    "method": Scaled().method,
    "lambda": lambda y_true, y_pred: powered(y_true, y_pred, 3.0),
    "class": Scaled(),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("kind", "eager"),
    [
        *(("function", False), ("lambda", False), ("class", False)),
        *(("closure", True), ("partial", True), ("method", True)),
    ],
)
def test_losses_of_users_are_used(kind: str, eager: bool) -> None:
    expected = trained(USERS[kind], NUMBERS, None, eager=eager)
    assert_close(trained(USERS[kind], NUMBERS, 4, eager=eager), expected)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("eager", [True, False])
def test_callbacks_can_change_a_loss(eager: bool) -> None:
    def annealed(steps: int | None) -> tf_keras.Model:
        # In a graph, only a variable can change.
        loss = Scaled(1.0 if eager else tf.Variable(1.0, dtype=tf.float64))

        def change(epoch: int, logs: Any) -> None:
            if eager:
                loss.factor = 7.0
            else:
                loss.factor.assign(7.0)

        callback = tf_keras.callbacks.LambdaCallback(on_epoch_begin=change)
        model = trained(loss, NUMBERS, steps, eager=eager, callbacks=[callback])
        assert "call" not in vars(loss)  # The object is the user's again.
        return model

    model = annealed(4)
    assert_close(model, annealed(None))
    assert_close(model, trained(Scaled(7.0), NUMBERS, None))


def test_replicas_that_take_turns_in_a_loss_record_their_own_values() -> None:
    """If a loss communicates, each replica waits in it for the others, and the first one leaves."""
    loss = Scaled()
    replicas = [(contextvars.copy_context(), contextlib.ExitStack()) for _ in range(2)]
    values = [c.run(s.enter_context, contract.recorded_values(loss)) for c, s in replicas]
    for number, (context, stack) in enumerate(replicas):
        context.run(loss.call, NUMBERS[:1], NUMBERS[:1] + number)
        context.run(stack.close)
    np.testing.assert_allclose(values, [[[0.0]], [[3.0]]], atol=1e-12)
    assert "call" not in vars(loss)  # The object is the user's again.


# --- Attributes of optimizers -------------------------------------------------------------------

SETTINGS = [
    (optimizers.SGD, {"momentum": 0.5, "nesterov": True, "clipnorm": 0.1}),
    (optimizers.Adam, {"beta_1": 0.3, "beta_2": 0.5, "epsilon": 0.1, "learning_rate": 0.5}),
    (optimizers.AdamW, {"weight_decay": 0.5, "global_clipnorm": 0.1, "lr": 0.5}),
    (optimizers.RMSprop, {"rho": 0.3, "clipvalue": 0.05, "ema_momentum": 0.5}),
    (optimizers.legacy.SGD, {"momentum": 0.5, "nesterov": True, "clipnorm": 0.1}),
    (optimizers.legacy.Adam, {"beta_1": 0.3, "beta_2": 0.5, "epsilon": 0.1, "lr": 0.5}),
    (lambda rate: LossScale(optimizers.Adam(rate)), {"beta_1": 0.3, "epsilon": 0.1}),
]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_settings_after_compile_have_an_effect(number: int) -> None:
    make, settings = SETTINGS[number]

    def changed(steps: int | None) -> tf_keras.Model:
        class Change(tf_keras.callbacks.Callback):
            def on_train_begin(self, logs: Any = None) -> None:
                for name, value in settings.items():
                    on_inner = steps is None and not hasattr(self.model.optimizer, name)
                    optimizer = self.model.optimizer
                    setattr(optimizer.inner_optimizer if on_inner else optimizer, name, value)
                    assert float(getattr(optimizer, name, value)) == pytest.approx(float(value))

        return trained("mse", NUMBERS, steps, optimizer=make(0.2), callbacks=[Change()])

    expected = changed(None)
    assert_close(changed(4), expected)
    plain = trained("mse", NUMBERS, None, optimizer=make(0.2))
    assert np.abs(plain.get_weights()[0] - expected.get_weights()[0]).max() > 1e-4


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("eager", [False, True])
def test_partial_windows_have_the_settings_of_full_windows(eager: bool) -> None:
    """A compiled step keeps its settings until the model is compiled again, an eager one does not.

    Without accumulation, all steps run eagerly.
    """

    def twice_fitted(steps: int | None) -> tf_keras.Model:
        tf_keras.utils.set_random_seed(0)
        model = tf_keras.Sequential([tf_keras.layers.Dense(3)])
        model.build((None, 4))
        if steps is not None:
            accumulate_gradients(model, steps)
        optimizer: Any = optimizers.AdamW(0.1, weight_decay=0.5)
        for number, decay in enumerate((0.5, 0.0)):
            if number == 0 or not eager:
                model.compile(optimizer, "mse", run_eagerly=eager or steps is None)
            optimizer = model.optimizer
            optimizer.weight_decay = decay
            # The second window of an epoch is half as large.
            model.fit(FEATURES[:12], NUMBERS[:12], 8 // (steps or 1), 2, shuffle=False, verbose=0)
        return model

    assert_close(twice_fitted(4), twice_fitted(None))


def test_variable_with_two_gradients_is_refused() -> None:
    variable, optimizer = tf.Variable([1.0]), AccumulatingOptimizer(optimizers.SGD(0.1), 2)
    optimizer.build([variable])
    with pytest.raises(ValueError, match="has two gradients in one call"):
        optimizer.accumulate([(tf.ones(1), variable), (tf.ones(1), variable)], weight=1)


def test_methods_and_attributes_are_those_of_the_inner_optimizer() -> None:
    class Own(optimizers.SGD):
        calls = 0

        def warm_up(self, by: int) -> int:
            self.calls += by
            return self.calls

        def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
            variable.assign_sub(2 * gradient)

    inner = Own(0.1)
    optimizer = AccumulatingOptimizer(inner, 2)
    assert optimizer.warm_up(3) == inner.calls == optimizer.calls == 3
    optimizer.calls = 5
    assert inner.calls == 5 and "calls" not in vars(optimizer)
    variable = tf.Variable(1.0)
    optimizer.update_step(tf.constant(0.25), variable)
    assert float(variable) == 0.5
    optimizer.update_step = lambda gradient, variable: variable.assign_add(gradient)
    inner.update_step(tf.constant(0.25), variable)
    assert float(variable) == 0.75
    for unknown in ("momentums", "beta_1", "_nothing_like_it"):
        with pytest.raises(AttributeError, match=unknown):
            getattr(optimizer, unknown)
    with pytest.raises(AttributeError, match="neither AccumulatingOptimizer nor its inner Own"):
        optimizer.beta_1 = 0.9


def test_attributes_of_subclasses() -> None:
    class Named(AccumulatingOptimizer):
        label = "a"

    optimizer = Named(optimizers.SGD(0.1), 2)
    optimizer.momentum, optimizer.label, optimizer.other = 0.9, "b", 3
    assert optimizer.inner.momentum == 0.9
    assert (vars(optimizer)["label"], vars(optimizer)["other"]) == ("b", 3)


@pytest.mark.parametrize("make", [optimizers.Adam, optimizers.legacy.Adam])
def test_a_model_can_be_compiled_again(make: Any) -> None:
    def fit(steps: int | None) -> list[np.ndarray]:
        tf_keras.utils.set_random_seed(0)
        model = tf_keras.Sequential([tf_keras.layers.Dense(4), tf_keras.layers.Dense(3)])
        model.build((None, 4))
        if steps:
            accumulate_gradients(model, steps)
        size, optimizer = 8 // (steps or 1), make(0.1)
        model.compile(optimizer, "mse", run_eagerly=steps is None)
        model.fit(FEATURES, NUMBERS, size, shuffle=False, verbose=0)
        model.layers[0].trainable = False
        model.compile(optimizer, "mse", run_eagerly=steps is None)
        model.fit(FEATURES, NUMBERS, size, shuffle=False, verbose=0)
        return model.get_weights()

    for own, other in zip(fit(4), fit(None), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-5)


def test_variables_can_be_called_as_in_keras() -> None:
    for inner in (optimizers.Adam(), optimizers.legacy.Adam(), LossScale(optimizers.Adam())):
        optimizer = AccumulatingOptimizer(inner, 2)
        optimizer.build([tf.Variable(1.0)])
        assert [v.name for v in optimizer.variables()] == [v.name for v in optimizer.variables]


def test_tensorboard_logs_the_learning_rate_of_a_schedule(tmp_path: Any) -> None:
    schedule = optimizers.schedules.ExponentialDecay(0.5, 2, 0.5)
    for make in (optimizers.SGD, optimizers.legacy.SGD):
        board = tf_keras.callbacks.TensorBoard(tmp_path)
        logs: list[dict[str, Any]] = []
        board._log_epoch_metrics = lambda epoch, own: logs.append(board._collect_learning_rate(own))  # noqa: B023
        trained("mse", NUMBERS, 4, epochs=2, optimizer=make(schedule), callbacks=[board])
        rates = [float(log["learning_rate"]) for log in logs]
        assert rates == pytest.approx([0.25, 0.125])  # Two updates per epoch.


# --- Hooks of optimizers ------------------------------------------------------------------------


def overriding(base: type, hook: str) -> Any:
    return type("Noisy", (base,), {hook: lambda self, *args, **kwargs: None})(0.1)


HOOKS = [
    *((optimizers.SGD, h) for h in ("minimize", "compute_gradients", "aggregate_gradients")),
    *(
        (optimizers.legacy.SGD, hook)
        for hook in ("minimize", "_compute_gradients", "_aggregate_gradients", "_get_gradients")
    ),
]


@pytest.mark.parametrize(("base", "hook"), HOOKS)
@pytest.mark.parametrize("scaled", [False, True])
def test_hooks_that_would_be_skipped_are_refused(base: type, hook: str, scaled: bool) -> None:
    optimizer = overriding(base, hook)
    with pytest.raises(TypeError, match=f"Noisy has its own {hook}"):
        AccumulatingOptimizer(LossScale(optimizer) if scaled else optimizer, 2)


def test_hooks_of_one_object_are_refused() -> None:
    optimizer = optimizers.SGD(0.1)
    optimizer.aggregate_gradients = list
    with pytest.raises(TypeError, match="SGD has its own aggregate_gradients"):
        AccumulatingOptimizer(optimizer, 2)
    aggregator = optimizers.legacy.SGD(0.1, gradient_aggregator=lambda pairs: pairs)
    with pytest.raises(TypeError, match="SGD has its own gradient_aggregator"):
        AccumulatingOptimizer(aggregator, 2)


@pytest.mark.usefixtures("float64")
def test_transformers_and_apply_gradients_receive_the_mean_of_the_window() -> None:
    def halved(pairs: Any) -> list[Any]:
        seen.append(len(seen))
        return [(g / 2, v) for g, v in pairs]

    class Halving(optimizers.SGD):
        def apply_gradients(self, grads_and_vars: Any, name: Any = None) -> Any:
            return super().apply_gradients(halved(grads_and_vars), name)

    class LegacyHalving(optimizers.legacy.SGD):
        def apply_gradients(self, grads_and_vars: Any, name: Any = None) -> Any:
            return super().apply_gradients(halved(grads_and_vars), name)

    makers = [
        lambda: Halving(0.1),
        lambda: LegacyHalving(0.1),
        lambda: optimizers.legacy.SGD(0.1, gradient_transformers=[halved]),
    ]
    for make in makers:
        seen: list[int] = []
        expected = trained("mse", NUMBERS, None, optimizer=make())
        seen.clear()
        assert_close(trained("mse", NUMBERS, 4, optimizer=make()), expected)
        assert len(seen) == 2  # One call for each update.


def test_sums_over_replicas_are_not_summed_again() -> None:
    class Old(optimizers.SGD):
        def apply_gradients(self, grads_and_vars: Any, name: Any = None) -> Any:
            return super().apply_gradients(grads_and_vars, name)

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        optimizer = AccumulatingOptimizer(Old(0.1), 1)
        variable = tf.Variable(1.0)
    strategy = variable.distribute_strategy
    strategy.run(lambda: optimizer.apply_gradients([(tf.constant(1.0), variable)]))
    assert float(variable.values[0]) == pytest.approx(0.9)


# --- Several optimizers, and several calls ------------------------------------------------------


@pytest.mark.parametrize(("how", "kind"), [("model", "parts"), ("optimizer", "critic")])
def test_two_calls_in_a_train_step_are_refused(how: str, kind: str) -> None:
    class Twice(tf_keras.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            for layer in self.layers if kind == "parts" else [self.layers[0]] * 2:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
                variables = layer.trainable_variables
                pairs = zip(tape.gradient(loss, variables), variables, strict=True)
                self.optimizer.apply_gradients(pairs)
            return {"loss": loss}

    model = Twice([tf_keras.layers.Dense(2), tf_keras.layers.Dense(1)])
    model.build((None, 4))
    optimizer: Any = optimizers.SGD(0.1)
    if how == "model":
        accumulate_gradients(model, 2)
    else:
        optimizer = AccumulatingOptimizer(optimizer, 2)
        optimizer.build(model.trainable_variables)
    model.compile(optimizer)
    with pytest.raises(ValueError, match="optimizer 'SGD' is applied twice in one train_step"):
        model.fit(FEATURES, NUMBERS[:, :1], batch_size=4, verbose=0)


def test_a_loop_of_micro_steps_may_be_unrolled() -> None:
    variable, other = tf.Variable([1.0]), tf.Variable([1.0])
    optimizer = AccumulatingOptimizer(optimizers.SGD(1.0), 2)
    optimizer.build([variable, other])

    @tf.function
    def window(x: tf.Tensor) -> None:
        for part in tf.split(x, 2):
            optimizer.apply_gradients([(part, variable)])

    window(tf.constant([0.25, 0.75]))
    assert float(variable[0]) == 0.5

    @tf.function
    def parts(x: tf.Tensor) -> None:
        optimizer.apply_gradients([(x, variable)])
        optimizer.apply_gradients([(x, other)])

    with pytest.raises(ValueError, match="applied twice"):
        parts(tf.constant([0.25]))


class Gan(tf_keras.Model):
    """A generator and a discriminator, with their gradients taken in one of two orders."""

    def __init__(self, at_once: bool) -> None:
        super().__init__()
        self.generator, self.discriminator = tf_keras.layers.Dense(4), tf_keras.layers.Dense(1)
        self.at_once = at_once

    def compile(self, steps: int | None) -> None:
        super().compile(run_eagerly=steps is None)
        pair = [optimizers.SGD(0.1, name="d"), optimizers.Adam(0.1, name="g")]
        pair = [AccumulatingOptimizer(o, steps) for o in pair] if steps else pair
        for optimizer, layer in zip(pair, (self.discriminator, self.generator), strict=True):
            optimizer.build(layer.trainable_variables)  # Otherwise, it is traced twice.
        self.d_optimizer, self.g_optimizer = pair

    def call(self, inputs: Any) -> Any:
        return self.discriminator(self.generator(inputs))

    def train_step(self, data: Any) -> dict[str, Any]:
        noise, real = data

        def d_gradients() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(noise) - self.discriminator(real))
                loss += tf.reduce_mean(self.discriminator(real) ** 2)
            return tape.gradient(loss, self.discriminator.trainable_variables)

        def g_gradients() -> Any:
            with tf.GradientTape() as tape:
                loss = -tf.reduce_mean(tf.tanh(self(noise)))
            return tape.gradient(loss, self.generator.trainable_variables)

        def apply(optimizer: Any, gradients: Any, layer: Any) -> None:
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

        if self.at_once:
            d, g = d_gradients(), g_gradients()
            apply(self.d_optimizer, d, self.discriminator)
            apply(self.g_optimizer, g, self.generator)
        else:
            apply(self.d_optimizer, d_gradients(), self.discriminator)
            apply(self.g_optimizer, g_gradients(), self.generator)
        return {}


def train_gan(at_once: bool, steps: int | None) -> list[np.ndarray]:
    tf_keras.utils.set_random_seed(0)
    model = Gan(at_once)
    model.build((None, 4))
    if steps:
        accumulate_gradients(model, steps)
    model.compile(steps)
    model.fit(FEATURES, FEATURES + 1, batch_size=8 // (steps or 1), shuffle=False, verbose=0)
    return model.get_weights()


def test_gradients_that_see_new_weights_cause_a_warning() -> None:
    with pytest.warns(UserWarning, match="optimizer 'g' depend on weights that optimizer 'd' has"):
        train_gan(at_once=False, steps=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accumulated = train_gan(at_once=True, steps=4)
        train_gan(at_once=False, steps=1)
    for own, other in zip(accumulated, train_gan(at_once=True, steps=None), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-6)


def test_wide_and_deep_model_with_two_optimizers() -> None:
    def fit(steps: int | None, wrapped: bool) -> list[np.ndarray]:
        tf_keras.utils.set_random_seed(0)
        experimental = tf_keras.experimental
        deep = tf_keras.Sequential([tf_keras.layers.Dense(4, "relu"), tf_keras.layers.Dense(1)])
        model = experimental.WideDeepModel(experimental.LinearModel(), deep)
        pair: list[Any] = [optimizers.SGD(0.1), optimizers.Adam(0.1)]
        if wrapped:
            pair = [AccumulatingOptimizer(optimizer, steps) for optimizer in pair]
        elif steps:
            accumulate_gradients(model, steps)
        model.compile(pair, "mse", run_eagerly=wrapped or steps is None)
        targets = NUMBERS[:, :1]
        model.fit(FEATURES, targets, 8 // (steps or 1), shuffle=False, verbose=0)
        return model.get_weights()

    expected = fit(None, wrapped=False)
    for wrapped in (False, True):
        for own, other in zip(fit(4, wrapped), expected, strict=True):
            np.testing.assert_allclose(own, other, atol=1e-6)


# --- Weights that change by themselves ----------------------------------------------------------


class Counting(tf_keras.layers.Layer):
    """A layer with a moving average of its inputs, which it updates in a function."""

    def build(self, shape: Any) -> None:
        self.average = self.add_weight("average", trainable=False)

    @tf.function
    def update(self, inputs: tf.Tensor) -> None:
        self.average.assign(0.9 * self.average + 0.1 * tf.reduce_mean(inputs))

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if training:
            self.update(inputs)
        return inputs


class Sharp(tf_keras.Sequential):
    """Sharpness-aware minimization: the gradient is taken at weights that are moved for it."""

    def train_step(self, data: Any) -> dict[str, Any]:
        for variable in self.trainable_variables:
            variable.assign_add(0.1 * tf.ones_like(variable))
        with tf.GradientTape() as tape:
            loss = self.compute_loss(data[0], data[1], self(data[0], training=True))
        for variable in self.trainable_variables:
            variable.assign_sub(0.1 * tf.ones_like(variable))
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {"loss": loss}


class Switching(tf_keras.layers.Layer):
    """A layer that changes a weight in a branch, and reads a dataset."""

    def build(self, shape: Any) -> None:
        self.chosen = self.add_weight("chosen", trainable=False)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        numbers = tf.data.Dataset.from_tensor_slices((tf.range(3), tf.range(3), tf.range(3)))
        index = tf.cast(numbers.map(lambda a, b, c: a).reduce(0, lambda a, b: a + b), tf.int32)
        branches = [lambda: self.chosen.assign(1.0), lambda: self.chosen.assign(2.0)]
        return inputs + tf.switch_case(index - 2, branches)


class Annealed(tf_keras.Sequential):
    """A model that counts its steps, as for a schedule of a weight in its loss."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.counter = tf.Variable(0, trainable=False, name="counter")

    def train_step(self, data: Any) -> dict[str, Any]:
        self.counter.assign_add(1)
        return super().train_step(data)


def recurrent() -> tf_keras.Model:
    lstm = layers.LSTM(3, stateful=True, name="lstm")
    return tf_keras.Sequential([layers.Reshape((4, 1), batch_input_shape=(4, 4)), lstm])


layers = tf_keras.layers
CHANGING = {
    "chosen": lambda: tf_keras.Sequential([Switching(), layers.Dense(3)]),
    "vector_u": lambda: tf_keras.Sequential([layers.SpectralNormalization(layers.Dense(3))]),
    "average": lambda: tf_keras.Sequential([Counting(), layers.Dense(3)]),
    "kernel": lambda: Sharp([layers.Dense(3)]),
    "counter": lambda: Annealed([layers.Dense(3)]),
    "state of lstm": recurrent,
}


@pytest.mark.parametrize("name", CHANGING)
def test_weights_that_change_without_an_optimizer_cause_a_warning(name: str) -> None:
    model = accumulate_gradients(CHANGING[name](), 2)
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match=rf"weights that change .*{name}"):
        model.fit(FEATURES, NUMBERS, batch_size=4, verbose=0)


@pytest.mark.parametrize("optimizer", ["scaled", "mirrored"])
def test_other_models_cause_no_warning(optimizer: str) -> None:
    def compiled() -> tf_keras.Model:
        normalization = layers.Normalization()
        normalization.adapt(FEATURES)
        model = tf_keras.Sequential([normalization, layers.Dropout(0.5), layers.Dense(3)])
        accumulate_gradients(model, tf.Variable(2) if optimizer == "scaled" else 2)
        rate = optimizers.SGD(0.1)
        made = LossScale(rate) if optimizer == "scaled" else rate
        model.compile(made, "mse", metrics=["mae"])
        return model

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with strategy.scope() if optimizer == "mirrored" else warnings.catch_warnings():
            compiled().fit(FEATURES, NUMBERS, batch_size=4, epochs=2, verbose=0)
