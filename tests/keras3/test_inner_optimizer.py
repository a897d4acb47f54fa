"""Tests of the inner optimizer of `bertaccum.keras3.AccumulatingOptimizer`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from test_keras3 import BACKEND, EAGER, LOSS, assert_same, dense_data, dense_model

from bertaccum.keras3 import AccumulatingOptimizer, accumulate_gradients

SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam


def trained(
    steps: int, optimizer: Any, change: Callable[[Any], None], before: int = 0, eager: bool = False
) -> keras.Model:
    """Train a model for three epochs, and change its optimizer after `before` of them."""
    model = dense_model()
    if steps:
        accumulate_gradients(model, steps)
    model.compile(optimizer, LOSS, run_eagerly=EAGER and eager)
    options: dict[str, Any] = {"batch_size": 32 // max(steps, 1), "shuffle": False, "verbose": 0}
    if before:
        model.fit(*dense_data(), epochs=before, **options)
    change(model.optimizer)
    if steps == 0:
        model.make_train_function(force=True)  # Keras' own step has the old setting.
    model.fit(*dense_data(), epochs=3 - before, **options)
    return model


def settings(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Return the arguments of an optimizer that are attributes, with other values."""
    changed: dict[str, Any] = {}
    for name in inspect.signature(type(optimizer)).parameters:
        value = getattr(optimizer, name, None)
        if name in ("clipnorm", "global_clipnorm", "clipvalue", "weight_decay"):
            changed[name] = 0.01
        elif isinstance(value, bool) and name != "use_ema":
            changed[name] = not value
        elif isinstance(value, float) and name != "learning_rate":
            changed[name] = value / 2
    return changed


OPTIMIZERS = ("SGD", "Adam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Ftrl", "Lion", "Muon")


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("scaled", [False, True])
def test_attributes_are_those_of_the_inner_optimizer(name: str, scaled: bool) -> None:
    """keras-team/keras#16201, keras-team/keras#9861, tensorflow/addons#2650."""
    inner = getattr(keras.optimizers, name)()
    outer: Any = keras.optimizers.LossScaleOptimizer(inner) if scaled else inner
    wrapper: Any = AccumulatingOptimizer(outer)
    found = settings(inner)
    assert len(found) >= 5
    for setting, value in found.items():
        setattr(wrapper, setting, value)
        assert getattr(inner, setting) == getattr(wrapper, setting) == value
        assert setting not in vars(outer) or outer is inner or vars(outer)[setting] != value
    for unknown in ("momentun", "apply_all"):
        with pytest.raises(
            AttributeError, match=f"neither AccumulatingOptimizer nor its inner {name} "
        ):
            getattr(wrapper, unknown)
        with pytest.raises(AttributeError, match=unknown):
            setattr(wrapper, unknown, 1)
    if scaled:
        assert float(wrapper.initial_scale) == 2**15
        wrapper.dynamic_growth_steps = 5
        assert outer.dynamic_growth_steps == 5


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "clipnorm": (lambda: SGD(0.5), lambda one: setattr(one, "clipnorm", 0.05)),
    "weight_decay": (lambda: Adam(0.05), lambda one: setattr(one, "weight_decay", 0.1)),
    "momentum": (lambda: SGD(0.5, 0.9), lambda one: setattr(one, "momentum", 0.3)),
    "beta_1": (lambda: Adam(0.05), lambda one: setattr(one, "beta_1", 0.5)),
    "exclude_from_weight_decay": (
        lambda: keras.optimizers.AdamW(0.05, weight_decay=0.5),
        lambda one: one.exclude_from_weight_decay(var_names=["bias"]),
    ),
}


@pytest.mark.parametrize(
    ("setting", "before"),
    [
        ("clipnorm", 0),
        ("momentum", 1),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in [("weight_decay", 0), ("exclude_from_weight_decay", 0), ("beta_1", 1)]
        ),
    ],
)
def test_settings_after_compile(setting: str, before: int) -> None:
    """keras-team/keras#3356: also between two calls of `fit`, whose step has been compiled."""
    make, change = CHANGES[setting]
    whole = trained(0, make(), change, before, eager=True)
    assert_same(trained(4, make(), change, before), whole)
    unchanged = trained(0, make(), lambda one: None, eager=True)
    pairs = zip(unchanged.get_weights(), whole.get_weights(), strict=True)
    assert max(abs(a - b).max() for a, b in pairs) > 1e-3


def test_partial_window_sees_the_changed_setting() -> None:
    """JAX compiles the update of a partial window apart."""
    x, y = dense_data(48)
    models = []
    for steps in (0, 4):
        model = dense_model()
        if steps:
            accumulate_gradients(model, steps)
        model.compile(SGD(0.5), LOSS, run_eagerly=EAGER and not steps)
        for clipnorm in (None, 0.05):
            model.optimizer.clipnorm = clipnorm
            model.make_train_function(force=not steps)
            model.fit(x, y, batch_size=8 if steps else 32, shuffle=False, verbose=0)
        models.append(model)
    assert_same(*models)


def test_subclass_has_attributes_of_its_own() -> None:
    class Noted(AccumulatingOptimizer):
        def __init__(self) -> None:
            super().__init__(SGD(0.1), 4)
            self.note = "mine"

    optimizer = Noted()
    optimizer.momentum = 0.5
    assert optimizer.note == "mine" and optimizer.inner_optimizer.momentum == 0.5


def test_inner_accumulation_cannot_be_set() -> None:
    optimizer = AccumulatingOptimizer(SGD(0.1), 4)
    optimizer.gradient_accumulation_steps = 2
    with pytest.raises(ValueError, match="already accumulates"):
        optimizer.build([keras.Variable(np.zeros(2))])


def test_variable_with_two_gradients_is_refused() -> None:
    variable, gradient = keras.Variable(np.zeros(2)), ops.ones(2)
    optimizer = AccumulatingOptimizer(SGD(0.1), 4)
    optimizer.build([variable])
    with pytest.raises(ValueError, match="has two gradients in one call"):
        optimizer.apply([gradient, gradient], [variable, variable])


def test_number_of_steps_cannot_be_replaced() -> None:
    optimizer = AccumulatingOptimizer(SGD(0.1), 4)
    with pytest.raises(ValueError, match="`accumulation_steps` cannot be replaced"):
        optimizer.accumulation_steps = 8
    assert optimizer.accumulation_steps == 4


def test_set_weights_sets_all_variables() -> None:
    first, second = (
        trained(4, Adam(0.05), lambda one: None, before, eager=True) for before in (0, 1)
    )
    values = [ops.convert_to_numpy(v) for v in first.optimizer.variables]
    second.optimizer.set_weights([value + 1 for value in values])
    for variable, value in zip(second.optimizer.variables, values, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value + 1)


class Signs(SGD):
    """An optimizer that changes gradients in its own hook, and counts the calls."""

    calls = 0

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        self.calls += 1
        return super().apply_gradients([(ops.sign(g) * 0.01, v) for g, v in grads_and_vars])


class SignsInApply(SGD):
    calls = 0

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        self.calls += 1
        super().apply([ops.sign(g) * 0.01 for g in grads], trainable_variables)


@pytest.mark.parametrize("kind", [Signs, SignsInApply])
def test_own_hook_gets_the_mean_of_the_window(kind: type) -> None:
    """tensorflow/addons#958, keras-team/keras#7912, horovod/horovod#2806."""
    if BACKEND == "jax" and kind is Signs:
        with pytest.raises(TypeError, match="Signs has its own apply_gradients"):
            AccumulatingOptimizer(kind(0.5))
        return

    def by_hand(optimizer: Any, batch: int) -> Any:
        variable = keras.Variable(np.zeros(5, "float32"))
        for part in np.split(gradients, 64 // batch):
            optimizer.apply_gradients([(ops.convert_to_tensor(part.mean(0)), variable)])
        return ops.convert_to_numpy(variable)

    gradients = np.random.default_rng(0).normal(size=(64, 5)).astype("float32")
    inner = kind(0.5)
    ours = by_hand(AccumulatingOptimizer(inner, 4), 8)
    np.testing.assert_allclose(ours, by_hand(kind(0.5), 32), atol=1e-7)
    if BACKEND != "jax":
        assert inner.calls == 2


@pytest.mark.skipif(BACKEND != "tensorflow", reason="replicas are TensorFlow's")
def test_own_reduction_of_replicas_is_refused() -> None:
    class Reducing(SGD):
        def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
            return super()._all_reduce_sum_gradients(grads_and_vars)

    for optimizer in (Reducing(), keras.optimizers.LossScaleOptimizer(Reducing())):
        with pytest.raises(TypeError, match="Reducing has its own _all_reduce_sum_gradients"):
            AccumulatingOptimizer(optimizer)


def steps_of(model: keras.Model, losses: int, optimizers: list[Any]) -> keras.Model:
    """Return a model whose `train_step` applies gradients several times."""

    class Several(keras.Sequential):
        def train_step(self, *args: Any) -> Any:
            if BACKEND == "jax":
                return self.on_jax(*args)
            x, _ = args[0]
            for number in range(losses):
                variables = self.layers[number % 2].trainable_variables
                gradients = [ops.ones_like(v) for v in variables]
                used = optimizers[number % len(optimizers)] or self.optimizer
                used.apply(gradients, variables)
            return {"loss": ops.sum(x)}

        def on_jax(self, state: Any, data: Any) -> Any:
            trained, others, own, metrics = state
            for number in range(losses):
                used = optimizers[number % len(optimizers)]
                if used is None:
                    unit = [ops.ones_like(v) for v in trained]
                    trained, own = self.optimizer.stateless_apply(own, unit, trained)
            return {"loss": ops.sum(data[0])}, (trained, others, own, metrics)

    made = Several(model.layers)
    made.build((None, 5))
    return made


@pytest.mark.parametrize("times", [2, 5])
def test_optimizer_applied_twice_is_refused(times: int) -> None:
    """Encoder and decoder apart, or a critic that is trained several times."""
    model = accumulate_gradients(steps_of(dense_model(), times, [None]), 4)
    model.compile(SGD(0.1), LOSS)
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(ValueError, match="is applied twice in one train_step"):
        model.fit(*dense_data(), batch_size=8, verbose=0)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only graphs show what belongs to a step")
@pytest.mark.parametrize("compiled", [True, False])
def test_optimizer_alone_applied_twice_is_refused(compiled: bool) -> None:
    model = steps_of(dense_model(), 2, [None])
    model.compile(AccumulatingOptimizer(SGD(0.1), 4), LOSS, jit_compile=compiled)
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(ValueError, match="is applied twice in one train_step"):
        model.fit(*dense_data(), batch_size=8, verbose=0)


def test_optimizers_that_do_not_accumulate_are_refused() -> None:
    """A GAN with plain optimizers of its own."""
    plain = [SGD(0.1), SGD(0.1)]
    model = accumulate_gradients(steps_of(dense_model(), 2, plain), 4)
    model.compile(SGD(0.1), LOSS)
    with pytest.raises(ValueError, match="no optimizer in the train_step of Several accumulates"):
        model.fit(*dense_data(), batch_size=8, verbose=0)


@pytest.mark.skipif(BACKEND == "jax", reason="on JAX, a model has one optimizer")
def test_an_optimizer_that_does_not_accumulate_beside_one_that_does_causes_a_warning() -> None:
    both = [AccumulatingOptimizer(SGD(0.1), 4), SGD(0.2, name="plain")]
    model = accumulate_gradients(steps_of(dense_model(), 2, both), 4)
    model.generator_optimizer, model.critic_optimizer = both
    model.compile(SGD(0.1), LOSS)
    with pytest.warns(UserWarning, match="weights that change .* optimizer 'plain' trains"):
        model.fit(*dense_data(), batch_size=8, verbose=0)


@pytest.mark.skipif(BACKEND == "jax", reason="on JAX, a model has one optimizer")
def test_each_part_has_its_optimizer() -> None:
    """The partial windows of all optimizers end with the epoch."""
    both = [AccumulatingOptimizer(SGD(0.1), 4), AccumulatingOptimizer(SGD(0.2), 4)]
    model = accumulate_gradients(steps_of(dense_model(), 2, both), 4)
    before = model.get_weights()
    model.compile(SGD(0.1), LOSS)
    model.fit(*dense_data(48), batch_size=8, verbose=0)
    assert [int(one.iterations) for one in both] == [2, 2]
    assert not any(one.pending for one in both)
    for old, new, rate in zip(before, model.get_weights(), (0.1, 0.1, 0.2, 0.2), strict=True):
        np.testing.assert_allclose(old - 2 * rate, new, atol=1e-6)


@pytest.mark.skipif(BACKEND == "jax", reason="on JAX, a model has one optimizer")
def test_optimizer_of_other_steps_is_refused() -> None:
    both = [AccumulatingOptimizer(SGD(0.1), 4), AccumulatingOptimizer(SGD(0.2, name="other"), 2)]
    model = accumulate_gradients(steps_of(dense_model(), 2, both), 4)
    model.compile(SGD(0.1), LOSS, run_eagerly=EAGER)
    with pytest.raises(ValueError, match="but optimizer 'other' over 2; give both the same"):
        model.fit(*dense_data(), batch_size=8, verbose=0)


def test_a_model_can_be_compiled_again_with_the_same_optimizer() -> None:
    """Also with a layer that was frozen meanwhile, and an optimizer with its own hook."""

    class Doubling(SGD):
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            super().apply([2 * g for g in grads], trainable_variables)

    def fit(steps: int | None) -> list[np.ndarray]:
        model = dense_model()
        if steps:
            accumulate_gradients(model, steps)
        optimizer = Doubling(0.1) if BACKEND != "jax" else SGD(0.1)
        for _ in range(2):
            model.compile(optimizer, LOSS, run_eagerly=EAGER and not steps)
            model.fit(*dense_data(), batch_size=32 // (steps or 1), shuffle=False, verbose=0)
            # On JAX, Keras refuses an optimizer that was built with the layer.
            model.layers[0].trainable = BACKEND == "jax"
        return model.get_weights()

    for own, other in zip(fit(4), fit(None), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-5)


# In each window, the micro-steps train the body and the left or the right head.
HEADS = ("ll", "rr", "rr", "lr", "rl", "ll")


@pytest.mark.parametrize("compiled", [False, True] if BACKEND == "tensorflow" else [False])
def test_variables_without_gradient_in_a_window_do_not_change(compiled: bool) -> None:
    """On JAX, they do, with a warning."""

    def variables() -> dict[str, keras.Variable]:
        return {name: keras.Variable(np.ones(2, "float32")) for name in "blr"}

    def decaying(built_with: dict[str, keras.Variable]) -> Any:
        optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.1)
        optimizer.build(list(built_with.values()))
        return optimizer

    whole, own = variables(), variables()
    plain, accumulating = decaying(whole), AccumulatingOptimizer(decaying(own), 2)
    accumulating.build(list(own.values()))
    warned = nullcontext() if BACKEND != "jax" else pytest.warns(UserWarning, match="On JAX")

    def micro_step(head: str) -> Callable[[], None]:
        ones = ops.ones((2,))
        return lambda: accumulating.apply([ones, ones], [own["b"], own[head]])

    compile: Callable[[Any], Any] = lambda function: function  # noqa: E731
    if compiled:
        import tensorflow as tf

        compile = tf.function
    steps = {head: compile(micro_step(head)) for head in "lr"}
    with warned:
        for window in HEADS:
            trained = ["b", *sorted(set(window))]
            shares = [ops.full((2,), f"b{window}b".count(name) / 2, "float32") for name in trained]
            plain.apply(shares, [whole[name] for name in trained])
            for head in window:
                steps[head]()
    if BACKEND != "jax":
        for name in "blr":
            np.testing.assert_allclose(*map(ops.convert_to_numpy, (own[name], whole[name])), 1e-6)
