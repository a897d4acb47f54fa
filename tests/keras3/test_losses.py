"""`bertaccum.keras3` trains with the very loss that the user gave, weighted by its divisor."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from test_keras3 import BACKEND, EAGER

from bertaccum.keras3 import AccumulatingOptimizer, _keras_compat, accumulate_gradients, micro_batch

# On PyTorch, Keras computes parts of a loss in float32.
EXACT = 1e-6 if BACKEND == "torch" else 1e-10
RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 5))
CLASSES = RNG.integers(0, 3, (24, 4))
SOFT = np.eye(3)[CLASSES]  # [examples, positions, classes]


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    _set_precision("float64")
    yield
    _set_precision("float32")


def _set_precision(dtype: str) -> None:
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    if BACKEND == "jax":
        import jax

        jax.config.update("jax_enable_x64", dtype == "float64")


def model(units: int = 12, shape: tuple[int, ...] = (4, 3)) -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    dense = layers.Dense(units, "sigmoid", kernel_regularizer="l2")
    return keras.Sequential([keras.Input((5,)), dense, layers.Reshape(shape)])


def trained(
    steps: int,
    loss: Any,
    y: Any,
    make: Callable[[], keras.Model] = model,
    examples: int = 24,
    accumulating: dict[str, Any] | None = None,
    **compiling: Any,
) -> keras.Model:
    """Train a model on windows of 12 examples; with steps 0, without accumulation."""
    made = make()
    if steps:
        accumulate_gradients(made, steps, **accumulating or {})
    # Tracing takes longer than the few steps.
    eager = BACKEND != "jax"
    made.compile(keras.optimizers.SGD(0.5), loss, run_eagerly=eager, **compiling)
    size = 12 // max(steps, 1)
    for begin in range(0, examples, size):
        rows = slice(begin, begin + size)
        made.train_on_batch(X[rows], keras.tree.map_structure(lambda part, r=rows: part[r], y))
    return made


def difference(one: keras.Model, other: keras.Model) -> float:
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return float(max(abs(a - b).max() for a, b in pairs))


def assert_exact(loss: Callable[[], Any], y: Any, steps: tuple[int, ...] = (1, 4)) -> None:
    whole = trained(0, loss(), y)
    assert difference(whole, model()) > 1e-6
    for number in steps:
        assert difference(trained(number, loss(), y), whole) < EXACT


# Values of arguments that differ from their defaults, and the classes that have the argument.
CHANGED: dict[str, Any] = {
    "from_logits": True,
    "label_smoothing": 0.2,
    "axis": 1,
    "apply_class_balancing": True,
    "alpha": 0.4,
    "beta": 0.7,
    "gamma": 1.5,
    "ignore_class": 1,
    "delta": 0.1,
    "margin": 0.3,
    "q": 0.4,
    "remove_diagonal": False,
    "reduction": "mean",
    "name": "named",
    "dtype": "float32",
}
BUILT_IN = {
    name: one
    for name, one in vars(keras.losses).items()
    if inspect.isclass(one) and issubclass(one, keras.losses.Loss) and one is not keras.losses.Loss
}


# Arguments of all losses, tested with one of them.
COMMON = ("reduction", "name", "dtype")
FEW = ("Huber-delta", "Tversky-alpha", "BinaryCrossentropy-from_logits", "Circle-gamma")


def arguments() -> list[Any]:
    pairs = [
        (name, argument)
        for name, one in BUILT_IN.items()
        for argument in inspect.signature(one).parameters
        if argument not in COMMON or name == "Poisson"
    ]
    pairs += [(name, "reduction") for name in BUILT_IN if name not in dict(pairs)]
    return [
        pytest.param(*pair, id=name, marks=() if name in FEW else pytest.mark.slow)
        for pair in pairs
        if (name := "-".join(pair)) != "SparseCategoricalCrossentropy-axis"  # Only -1 is possible.
    ]


def targets(name: str) -> Any:
    if name in ("Circle", "CTC"):
        return CLASSES[:, 0] if name == "Circle" else CLASSES[:, :2]
    if name.startswith(("Sparse", "CategoricalGeneralized")):
        return CLASSES if name.startswith("Sparse") else CLASSES[:, 0]
    return SOFT + 1 if name == "MeanAbsolutePercentageError" else SOFT


@pytest.mark.parametrize(("name", "argument"), arguments())
def test_every_argument_of_every_loss(name: str, argument: str) -> None:
    """keras-team/keras#3611: a copy of `Huber(delta=0.1)` had the default delta."""
    options = {argument: CHANGED[argument]}
    if name in ("Dice", "Tversky"):
        options = {"axis": (1, 2)} | options
    y = targets(name)
    # Circle compares the examples of a batch, so only a window of one micro-batch can be equal.
    steps = 1 if name == "Circle" else 4
    # TensorFlow computes CTC in float32.
    close = 1e-6 if "float32" in options.values() or name == "CTC" else EXACT
    whole, found = (
        trained(number, BUILT_IN[name](**options), y, _shaped(name), examples=12)
        for number in (0, steps)
    )
    assert difference(found, whole) < close


def _shaped(name: str) -> Callable[[], keras.Model]:
    flat = name in ("Circle", "CategoricalGeneralizedCrossEntropy")
    return functools.partial(model, 12, (12,)) if flat else model


def mean_squared_error(y: Any, y_pred: Any) -> Any:
    """Not Keras' function of this name."""
    return 3 * ops.mean(ops.abs(y - y_pred) ** 3, axis=(1, 2))


def power(y: Any, y_pred: Any, exponent: float) -> Any:
    return ops.mean(ops.abs(y - y_pred) ** exponent, axis=(1, 2))


def closure(exponent: float) -> Callable[[Any, Any], Any]:
    def loss(y: Any, y_pred: Any) -> Any:
        return power(y, y_pred, exponent)

    return loss


class Holder:
    factor = 2.5

    def loss(self, y: Any, y_pred: Any) -> Any:
        return power(y, y_pred, self.factor)


class Own(keras.losses.Loss):
    """A loss without `get_config`, so that it cannot be rebuilt."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self.exponent = exponent

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return power(y_true, y_pred, self.exponent)


class OwnCall(Own):
    """A loss with its own `__call__`."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return 2 * super().__call__(y_true, y_pred, sample_weight)


@keras.saving.register_keras_serializable("losses")
class Annealed(keras.losses.Loss):
    """A registered loss with a variable that is not an argument."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.factor = keras.Variable(1.0)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.factor * power(y_true, y_pred, 2.0)


USER_LOSSES: dict[str, Callable[[], Any]] = {
    "named as in Keras": lambda: mean_squared_error,
    "closure": lambda: closure(3.0),
    "partial": lambda: functools.partial(power, exponent=3.0),
    "method": lambda: Holder().loss,
    "lambda": lambda: lambda y, y_pred: power(y, y_pred, 1.5),
    "class": lambda: Own(3.0),
    "class with __call__": lambda: OwnCall(3.0),
    "registered": Annealed,
    "name": lambda: "mse",
}


@pytest.mark.parametrize("kind", USER_LOSSES)
def test_losses_of_users(kind: str) -> None:
    """keras-team/keras#5916, keras-team/keras#3457."""
    assert_exact(USER_LOSSES[kind], SOFT)


def anneal(loss: Any) -> None:
    if isinstance(loss, Annealed):
        loss.factor.assign(loss.factor * 0.5)
    else:
        loss.exponent += 0.5


@pytest.mark.parametrize("make", [Annealed, lambda: Own(2.0)])
def test_annealed_loss(make: Callable[[], Any]) -> None:
    """keras-team/keras#13826: a callback changes a variable or an attribute of the loss."""
    found = []
    for steps in (0, 1, 4):
        loss = make()
        made = model() if steps == 0 else accumulate_gradients(model(), steps)
        # A compiled step contains attributes, but reads variables (on JAX, it contains both).
        eager = isinstance(loss, Own) or (EAGER and steps < 4)
        made.compile(keras.optimizers.SGD(0.5), loss, run_eagerly=eager)
        callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_, one=loss: anneal(one))
        options: dict[str, Any] = {"epochs": 2, "shuffle": False, "verbose": 0}
        made.fit(X, SOFT, batch_size=12 // max(steps, 1), callbacks=[callback], **options)
        found.append(made)
        assert "call" not in vars(loss)
    assert difference(found[1], found[0]) < EXACT
    assert difference(found[2], found[0]) < EXACT


def test_two_outputs_with_one_loss_object() -> None:
    def two() -> keras.Model:
        inner = model()
        inputs = inner.inputs[0]
        return keras.Model(inputs, [inner.outputs[0], keras.layers.Dense(2)(inputs)])

    y = [SOFT, X[:, :2]]
    huber = keras.losses.Huber(0.1)
    whole = trained(0, [huber, huber], y, two)
    assert difference(trained(4, [huber, huber], y, two), whole) < EXACT


@pytest.mark.skipif(BACKEND == "jax", reason="shapes on JAX do not depend on values")
def test_number_of_values_differs() -> None:
    """A loss over the positions of one class only divides by their number."""

    def filtered(y: Any, y_pred: Any) -> Any:
        errors, wanted = ops.mean((y - y_pred) ** 2, -1), y[..., 0] > 0
        if BACKEND == "torch":
            return errors[wanted]
        import tensorflow as tf

        return tf.boolean_mask(errors, wanted)

    whole = trained(0, filtered, SOFT)
    assert difference(trained(4, filtered, SOFT), whole) < EXACT


def test_saved_model_has_the_loss(tmp_path: Path) -> None:
    made = trained(4, keras.losses.CategoricalCrossentropy(label_smoothing=0.2), SOFT)
    config = made.get_compile_config()
    assert config["loss"]["config"]["label_smoothing"] == 0.2
    made.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for one in (made, loaded):
        one.fit(X, SOFT, batch_size=3, shuffle=False, verbose=0)
    assert difference(made, loaded) < 1e-12


class Summed(keras.layers.Layer):
    """A layer that adds one loss per example, which Keras sums, as Keras' captcha example does."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(ops.mean(inputs**2, axis=(1, 2)))
        return inputs


def summed() -> keras.Model:
    inner = model()
    return keras.Model(inner.inputs, Summed()(inner.outputs[0]))


@pytest.mark.parametrize("compiled", [False, True])
def test_one_added_loss_per_example_is_a_sum(compiled: bool) -> None:
    """keras-team/keras-io#1843; the model also has a regularizer, which counts once per update."""
    found = []
    for steps in (0, 4):
        made = accumulate_gradients(summed(), steps) if steps else summed()
        eager = not compiled or (EAGER and not steps)
        made.compile(keras.optimizers.Adam(0.01), None, run_eagerly=eager)
        size = 12 // max(steps, 1)
        # The last window is a partial one, of 8 examples in micro-batches of 3, 3 and 2.
        made.fit(X[:20], batch_size=size, epochs=2, shuffle=False, verbose=0)
        found.append(made)
    assert difference(*found) < EXACT
    losses = [one.history.history["loss"] for one in found]
    np.testing.assert_allclose(*losses, rtol=1e-6)


def of_features(y_true: Any, y_pred: Any) -> Any:
    return ops.mean((y_true - y_pred) ** 2, axis=(0, 2))


class OfFeatures(keras.layers.Layer):
    """A layer that adds a loss for each feature, a mean over the examples."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(of_features(1.0, inputs))
        return inputs


# On PyTorch, a vector that a loss returns may also consist of positions that the loss has selected.
@pytest.mark.parametrize("added", [True] if BACKEND == "torch" else [True, False])
def test_losses_of_features_are_means_over_the_examples(added: bool) -> None:
    found = []
    for steps in (0, 4):
        made = model()
        if added:
            made = keras.Model(made.inputs, OfFeatures()(made.outputs[0]))
        if steps:
            accumulate_gradients(made, steps)
        loss, y = (None, None) if added else (of_features, SOFT[:20])
        made.compile(keras.optimizers.SGD(0.5), loss, run_eagerly=EAGER and not steps)
        warned = pytest.warns(UserWarning, match="examples. If") if steps else nullcontext()
        with warned:
            # The last window has 8 examples, in micro-batches of 3, 3 and 2.
            size = 12 // max(steps, 1)
            made.fit(X[:20], y, batch_size=size, epochs=2, shuffle=False, verbose=0)
        found.append(made)
    assert difference(*found) < 1e-6


def test_sum_beside_a_mean_is_refused() -> None:
    class Mixed(Summed):
        def call(self, inputs: Any) -> Any:
            self.add_loss(ops.mean(inputs))
            return super().call(inputs)

    def mixed() -> keras.Model:
        inner = model()
        return keras.Model(inner.inputs, Mixed()(inner.outputs[0]))

    for make, loss in ((summed, "mse"), (mixed, None)):
        with pytest.raises(ValueError, match="one value per example to add_loss"):
            trained(4, loss, SOFT, make)
        # A window of one micro-batch needs no divisor.
        assert difference(trained(1, loss, SOFT, make), trained(0, loss, SOFT, make)) < EXACT


def test_logged_loss_of_a_masked_model() -> None:
    """It is that of the large batches, also with a partial window and validation."""
    x = RNG.normal(size=(47, 4, 5))
    x[np.arange(4) >= RNG.integers(1, 5, 47)[:, None]] = 0
    y = RNG.integers(0, 3, (47, 4))

    def masked() -> keras.Model:
        keras.utils.set_random_seed(0)
        layers = keras.layers
        inputs = keras.Input((4, 5))
        hidden = layers.Masking()(inputs)
        outputs = [
            layers.Dense(3, "softmax", kernel_regularizer="l2", name=name)(hidden)
            for name in ("one", "two")
        ]
        return keras.Model(inputs, outputs)

    logs = []
    for steps in (0, 4):
        made = accumulate_gradients(masked(), steps) if steps else masked()
        loss = keras.losses.SparseCategoricalCrossentropy()
        made.compile(keras.optimizers.SGD(0.1), [loss, loss])
        options: dict[str, Any] = {"epochs": 2, "shuffle": False, "verbose": 0}
        size = 20 // max(steps, 1)
        validation = {"validation_data": (x[:9], [y[:9]] * 2), "validation_batch_size": 4}
        logs.append(made.fit(x, [y, y], batch_size=size, **options, **validation).history)
    assert set(logs[0]) == {a + b for a in ("", "val_") for b in ("loss", "one_loss", "two_loss")}
    for name in logs[0]:
        np.testing.assert_allclose(logs[1][name], logs[0][name], rtol=1e-6)


def positives(y: Any, y_pred: Any) -> Any:
    """The sum of the errors, divided by the number of positive targets."""
    return ops.sum((y - y_pred) ** 2) / ops.sum(y[..., 0])


def number_of_positives(y: Any, y_pred: Any, sample_weight: Any) -> Any:
    # JAX traces a number that depends on the output inside of the differentiated function.
    return ops.sum(y[..., 0]) + 0 * ops.sum(y_pred)


def test_loss_weight_is_the_divisor(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="loss 'positives' returns one number for the whole batch"):
        unknown = trained(4, positives, SOFT)
    whole = trained(0, positives, SOFT)
    assert difference(unknown, whole) > 1e-3
    scope = keras.saving.custom_object_scope
    named = {one.__name__: one for one in (positives, number_of_positives)}
    with warnings.catch_warnings(), scope(named):
        warnings.simplefilter("error", UserWarning)
        options = {"loss_weight": number_of_positives}
        made = trained(4, positives, SOFT, accumulating=options)
        assert difference(made, whole) < EXACT
        made.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert loaded.get_config()["loss_weight"] == made.get_config()["loss_weight"]


def of_positives(y: Any, y_pred: Any) -> Any:
    """The mean of the errors of positive targets, which is 0 / 0 without any."""
    return ops.sum((y - y_pred)[..., 0] ** 2 * y[..., 0]) / ops.sum(y[..., 0])


def test_loss_weight_of_0_has_no_effect() -> None:
    y = np.where((np.arange(24) // 3 % 4 == 1)[:, None, None], [0.0, 1.0, 0.0], SOFT)
    options = {"loss_weight": number_of_positives}
    whole, made = (trained(steps, of_positives, y, accumulating=options) for steps in (0, 4))
    settings: dict[str, Any] = {"epochs": 2, "shuffle": False, "verbose": 0}
    logs = [one.fit(X, y, batch_size=b, **settings) for one, b in ((whole, 12), (made, 3))]
    np.testing.assert_allclose(*(one.history["loss"] for one in logs), rtol=1e-6)
    assert difference(made, whole) < EXACT


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow has sparse gradients")
def test_sparse_gradient_with_a_loss_weight_of_0_has_no_effect() -> None:
    import tensorflow as tf

    table, optimizer = keras.Variable(np.ones((3, 2))), AccumulatingOptimizer("sgd", 2)
    for weight, value in ((0.0, np.nan), (2.0, 1.0)):
        with micro_batch.micro_batch(4) as micro:
            micro.size, micro.weight_given = weight, True
            rows = tf.IndexedSlices(tf.constant([[value, value]], "float64"), [1], [3, 2])
            optimizer.apply([rows], [table])
    np.testing.assert_allclose(table.numpy(), [[1, 1], [0.99, 0.99], [1, 1]])


def weighted(steps: int, weights: Any, compiled: bool = False) -> keras.Model:
    """Train a model with two losses that are divided by the sums of their sample weights."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((5,))
    made = keras.Model(inputs, [keras.layers.Dense(2)(inputs), keras.layers.Dense(1)(inputs)])
    if steps:
        accumulate_gradients(made, steps)
    loss = keras.losses.MeanSquaredError("mean_with_sample_weight")
    made.compile(
        keras.optimizers.SGD(0.5), [loss, loss], run_eagerly=not compiled, jit_compile=compiled
    )
    settings: dict[str, Any] = {"batch_size": 12 // max(steps, 1), "shuffle": False, "verbose": 0}
    made.fit(X, [X[:, :2], X[:, 2:3]], sample_weight=weights, **settings)
    return made


def test_outputs_with_different_sample_weights_are_refused() -> None:
    weights, others = RNG.uniform(0.5, 2, (2, 24))
    jax = BACKEND == "jax"  # Single operations are slow.
    whole = weighted(0, weights, jax)
    for same in (weights, [weights, weights.copy()]):
        # On JAX, Keras computes parts of this loss in float32.
        assert difference(weighted(4, same, jax), whole) < 1e-6
    with pytest.raises(Exception, match="divided by the sums of different sample weights"):
        weighted(4, [weights, others], jax)
    if BACKEND == "tensorflow":  # XLA may drop the check.
        import tensorflow as tf

        try:
            found = weighted(4, [weights, others], compiled=True).get_weights()[0]
        except tf.errors.InvalidArgumentError as error:
            assert "sums of different sample weights" in str(error)
        else:
            assert np.isnan(found).all()


@pytest.mark.parametrize("name", ["Dice", "Tversky"])
def test_losses_of_a_whole_batch_warn(name: str) -> None:
    with pytest.warns(UserWarning, match="returns one number for the whole batch"):
        trained(4, BUILT_IN[name](), SOFT)


def test_loss_weight_without_compute_loss_is_refused() -> None:
    class OwnStep(keras.Sequential):
        def train_step(self, *args: Any) -> Any:
            if BACKEND == "jax":
                trained, others, own, metrics = args[0]
                ones = [ops.ones_like(v) for v in trained]
                trained, own = self.optimizer.stateless_apply(own, ones, trained)
                return {}, (trained, others, own, metrics)
            variables = self.trainable_variables
            self.optimizer.apply([ops.ones_like(v) for v in variables], variables)
            return {}

    def own() -> keras.Model:
        made = OwnStep(model().layers)
        made.build((None, 5))
        return made

    with pytest.raises(ValueError, match="OwnStep does not call compute_loss"):
        trained(4, "mse", SOFT, own, accumulating={"loss_weight": number_of_positives})


class Counting(keras.layers.Layer):
    def build(self, input_shape: Any) -> None:
        self.seen = self.add_weight(name="seen", shape=(), trainable=False)

    def count(self) -> None:
        self.seen.assign(self.seen + 1)

    def call(self, inputs: Any) -> Any:
        self.count()
        return inputs


class Constant(keras.layers.Layer):
    def build(self, input_shape: Any) -> None:
        self.table = self.add_weight(name="table", shape=(3,), trainable=False)
        self.table.assign([1.0, 2.0, 3.0])

    def call(self, inputs: Any) -> Any:
        return inputs * self.table

    def restore(self, table: Any) -> None:
        """Not a part of a training step."""
        self.table.assign(table)


class Teacher(keras.Sequential):
    """A model whose step moves the weights of another one (mean teacher)."""

    def train_step(self, *args: Any) -> Any:
        for variable in self.layers[0].non_trainable_variables:
            variable.assign(0.9 * variable)
        return super().train_step(*args)


def test_layers_that_change_their_state_warn() -> None:
    layers = keras.layers
    normalized = layers.SpectralNormalization(layers.Dense(3, name="dense"), name="spectral")
    parts = [keras.Input((3,)), normalized, Counting(name="counting"), Constant(name="constant")]
    usual = [layers.Dense(3), layers.Dropout(0.1), layers.Normalization(), layers.GaussianNoise(1)]
    state = r"by the train_step itself \(of spectral, of counting\)"
    with pytest.warns(UserWarning, match=state) as warned:
        accumulate_gradients(keras.Sequential(parts + usual), 4)
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match=r"\(of teacher\)"):
        accumulate_gradients(Teacher(usual, name="teacher"), 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accumulate_gradients(keras.Sequential([parts[0], parts[3], *usual]), 4)
        accumulate_gradients(Teacher(usual, name="teacher"), 1)


def test_summed_activity_regularizers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras 3.10 to 3.13 sums them over the batch; later versions take the mean."""

    def regularized() -> keras.Model:
        keras.utils.set_random_seed(0)
        layers = keras.layers
        dense = layers.Dense(12, "sigmoid", activity_regularizer="l2", name="active")
        return keras.Sequential([keras.Input((5,)), dense, layers.Reshape((4, 3))])

    if not _keras_compat.sums_activities():
        whole = trained(0, "mse", SOFT, regularized)
        assert difference(trained(4, "mse", SOFT, regularized), whole) < EXACT
    monkeypatch.setattr(keras, "__version__", "3.13.2")
    with pytest.raises(ValueError, match=r"sums activity regularizers \(active\)"):
        accumulate_gradients(regularized(), 4)
    accumulate_gradients(regularized(), 1)
