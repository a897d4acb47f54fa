"""Tests that a micro-batch is weighted by the divisor of its loss, for all kinds of masks."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fitting
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from forked import output

from bertaccum import AccumulatingOptimizer
from bertaccum.accumulation import accumulate_gradients

pytestmark = pytest.mark.usefixtures("built_optimizers")
layers = tf_keras.layers
WORDS, LENGTH = 6, 5
IGNORED = -1
RNG = np.random.default_rng(0)
# The micro-batches of two examples have different numbers of words; the last has only two.
LENGTHS = np.array([5, 5, 1, 2, 4, 1, 1, 1])
TOKENS = np.where(np.arange(LENGTH) < LENGTHS[:, None], RNG.integers(1, WORDS, (8, LENGTH)), 0)
LABELS = np.where(TOKENS > 0, RNG.integers(0, WORDS, TOKENS.shape), IGNORED)
# The first two rows ignore all labels but the first, even at positions with a word.
FEWER_LABELS = np.where(np.arange(LENGTH) < [[1]] * 2 + [[5]] * 6, LABELS, IGNORED)
# The second micro-batch ignores all labels.
NO_LABELS = np.where((np.arange(8) // 2 == 1)[:, None], IGNORED, LABELS)
SparseCrossentropy = tf_keras.losses.SparseCategoricalCrossentropy


def differing(
    build: Callable[[], tf_keras.Model], x: Any, y: Any, loss: Any, **options: Any
) -> Any:
    """Return the largest difference between a large batch of 8 and 4 micro-batches of 2.

    The weights are compared, and the values in the logs.
    """
    one, other = (fitted(build, x, y, loss, steps, **options) for steps in (None, 4))
    logs = ([*model.history.history.values()] for model in (one, other))
    pairs = [*zip(one.get_weights(), other.get_weights(), strict=True), tuple(logs)]
    # Unlike Python's max, NumPy's is NaN if one of the numbers is.
    return np.max([np.abs(np.subtract(a, b)).max() for a, b in pairs])


def fitted(
    build: Callable[[], tf_keras.Model],
    x: Any,
    y: Any,
    loss: Any,
    steps: int | None,
    settings: dict[str, Any] | None = None,
    **compiled: Any,
) -> tf_keras.Model:
    tf_keras.utils.set_random_seed(0)
    model = build()
    if steps is not None:
        accumulate_gradients(model, steps, **(settings or {}))
    # Tracing takes longer than the three steps of a large batch.
    compiled = {"run_eagerly": steps is None} | compiled
    model.compile(tf_keras.optimizers.SGD(0.5, momentum=0.9), loss, **compiled)
    model.fit(x, y, batch_size=8 // (steps or 1), epochs=3, shuffle=False, verbose=0)
    return model


def language_model(mask_zero: bool = False) -> tf_keras.Model:
    inputs = layers.Input((LENGTH,))
    hidden = layers.Embedding(WORDS, 4, mask_zero=mask_zero)(inputs)
    return tf_keras.Model(inputs, layers.Dense(WORDS)(hidden))


def segmentation() -> tf_keras.Model:
    inputs = layers.Input((4, 4, 3))
    return tf_keras.Model(inputs, layers.Conv2D(3, 3, padding="same")(inputs))


IMAGES = RNG.normal(size=(8, 4, 4, 3)).astype(np.float32)
VOID = RNG.random((8, 4, 4)) < np.linspace(0.05, 0.9, 8)[:, None, None]
PIXELS = np.where(VOID, 255, RNG.integers(0, 3, (8, 4, 4)))


class Filtered(tf_keras.losses.Loss):
    """A loss that returns only the values of real words, so that the mean is over these."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        real = tf.not_equal(y_true, IGNORED)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y_true[real], y_pred[real])


def masked_by_itself(y_true: Any, y_pred: Any) -> Any:
    losses = tf.reduce_sum((tf.one_hot(y_true, WORDS) - y_pred) ** 2, axis=-1)
    losses._keras_mask = tf.not_equal(y_true, IGNORED)
    return losses


def of_unknown_shape(y_true: Any, y_pred: Any) -> Any:
    errors = tf.one_hot(y_true, WORDS) - y_pred
    return tf.py_function(lambda errors: tf.reduce_mean(errors**2), [errors], tf.float32)


def scalar(y_true: Any, y_pred: Any) -> Any:
    """Return the mean over real words as a scalar, which hides the divisor."""
    real = tf.cast(tf.not_equal(y_true, IGNORED), tf.float32)
    losses = tf.reduce_sum((tf.one_hot(y_true, WORDS) - y_pred) ** 2, axis=-1)
    return tf.reduce_sum(losses * real) / tf.reduce_sum(real)


def real_words(y_true: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
    return tf.math.count_nonzero(tf.not_equal(y_true, IGNORED))


def communicating(y_true: Any, y_pred: Any) -> Any:
    """Return the losses of words, times a mean over the replicas, which is 1."""
    context = tf.distribute.get_replica_context()
    one = context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.constant(1.0))
    return one * tf.reduce_sum((tf.one_hot(y_true, WORDS) - y_pred) ** 2, axis=-1)


class OwnStep(tf_keras.Model):
    """A model whose step calls `compiled_loss`, as tf_keras documented before `compute_loss`."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compiled_loss(y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {metric.name: metric.result() for metric in self.metrics}


def with_own_step() -> tf_keras.Model:
    model = language_model()
    return OwnStep(model.inputs, model.outputs)


IGNORING = SparseCrossentropy(from_logits=True, ignore_class=IGNORED)
VOIDS = SparseCrossentropy(from_logits=True, ignore_class=255)
CASES: dict[str, tuple[Any, ...]] = {
    # Among them are all words of a micro-batch.
    "ignored words": (language_model, TOKENS, NO_LABELS, IGNORING),
    "ignored words and a step of its own": (with_own_step, TOKENS, LABELS, IGNORING),
    "ignored pixels": (segmentation, IMAGES, PIXELS, VOIDS),
    "ignored words and a mask": (lambda: language_model(True), TOKENS, FEWER_LABELS, IGNORING),
    "filtered": (language_model, TOKENS, LABELS.astype(np.int32), Filtered()),
    "a function with its own mask": (language_model, TOKENS, LABELS, masked_by_itself),
    "a number of unknown shape": (language_model, TOKENS, LABELS, of_unknown_shape),
}


@pytest.mark.parametrize("case", CASES)
def test_micro_batch_is_weighted_by_the_divisor_of_its_loss(case: str) -> None:
    assert differing(*CASES[case]) < 1e-6


def test_loss_weight_sets_the_divisor_of_a_scalar_loss() -> None:
    """One micro-batch has no label, so that its loss is NaN and its weight 0."""
    settings = {"loss_weight": real_words}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert differing(language_model, TOKENS, NO_LABELS, scalar, settings=settings) < 1e-6


def test_scalar_loss_without_loss_weight_warns() -> None:
    with pytest.warns(UserWarning, match="loss 'scalar' returns one number .* `loss_weight`"):
        assert differing(language_model, TOKENS, LABELS, scalar) > 0.01


def test_logs_start_again_when_the_metrics_are_reset() -> None:
    model = accumulate_gradients(language_model(), 2, "carry")
    model.compile(tf_keras.optimizers.SGD(0.0), IGNORING)
    halves = [slice(0, 4), slice(4, 8)]
    expected = [model.test_on_batch(TOKENS[half], LABELS[half]) for half in halves]
    for _ in range(2):
        logged = [model.train_on_batch(TOKENS[h], LABELS[h], reset_metrics=True) for h in halves]
        assert logged == pytest.approx(expected, rel=1e-5)
    fitted = model.fit(TOKENS[:4], LABELS[:4], batch_size=4, epochs=3, verbose=0)
    assert fitted.history["loss"] == pytest.approx([expected[0]] * 3, rel=1e-5)


@pytest.mark.parametrize("on_partial", ["apply", "drop"])
def test_logs_of_a_partial_window_equal_those_of_a_large_batch(on_partial: str) -> None:
    # Three examples per micro-batch: windows of 6 and 2.
    whole = language_model()
    model = accumulate_gradients(language_model(), 2, on_partial)
    model.set_weights(whole.get_weights())
    model.compile(tf_keras.optimizers.SGD(0.0), IGNORING)
    whole.compile(tf_keras.optimizers.SGD(0.0), IGNORING, run_eagerly=True)
    logs = [
        one.fit(TOKENS, LABELS, batch_size=size, epochs=2, shuffle=False, verbose=0).history["loss"]
        for one, size in ((model, 3), (whole, 6))
    ]
    assert logs[0] == pytest.approx(logs[1], rel=1e-6)
    values = [one.evaluate(TOKENS, LABELS, batch_size=3, verbose=0) for one in (model, whole)]
    assert values[0] == values[1]  # Evaluation has no windows.


# --- Losses that are sums -------------------------------------------------------------


class Energies(layers.Layer):
    """A layer that adds one loss for each example, as the CTC layer of Keras' examples does."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        self.add_loss(tf.reduce_sum(inputs**2, axis=-1))
        return inputs


@pytest.mark.parametrize(
    ("functional", "how"), [(True, "model"), (False, "optimizer"), (True, "bfloat16")]
)
def test_losses_of_examples_that_keras_adds_up_are_added_up(functional: bool, how: str) -> None:
    def fit(steps: int | None) -> list[np.ndarray]:
        tf_keras.utils.set_random_seed(0)
        model = tf_keras.Sequential([layers.Dense(3), Energies()])
        if functional:
            inputs = layers.Input((4,))
            outputs = layers.Dense(3)(inputs)
            model = tf_keras.Model(inputs, outputs)
            model.add_loss(tf.reduce_sum(outputs**2, axis=-1))
        optimizer: Any = tf_keras.optimizers.SGD(0.01, momentum=0.9)
        if steps and how == "model":
            accumulate_gradients(model, steps)
        elif steps:
            dtype = None if how == "optimizer" else how
            optimizer = AccumulatingOptimizer(optimizer, steps, accumulator_dtype=dtype)
        model.compile(optimizer, run_eagerly=not steps)
        model.fit(IMAGES[:, 0, :, 0], batch_size=8 // (steps or 1), epochs=3, verbose=0)
        return model.get_weights()

    for own, other in zip(fit(4), fit(None), strict=True):
        np.testing.assert_allclose(own, other, atol=5e-3 if how == "bfloat16" else 1e-6)


def of_features(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_mean((y_true - y_pred) ** 2, axis=0)


@pytest.mark.parametrize(("added", "features"), [(True, 1), (True, 3), (False, 3)])
def test_losses_of_features_are_means_over_the_examples(added: bool, features: int) -> None:
    """Micro-batches of 3, 3 and 2 examples equal a batch of 8."""
    x = IMAGES[:, 0, :, 0]

    def fit(steps: int | None) -> list[np.ndarray]:
        tf_keras.utils.set_random_seed(0)
        inputs = layers.Input((4,))
        outputs = layers.Dense(features)(inputs)
        model = tf_keras.Model(inputs, outputs)
        if added:
            model.add_loss(of_features(1.0, outputs))
        if steps:
            accumulate_gradients(model, steps)
        sgd = tf_keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(sgd, None if added else of_features, run_eagerly=not steps)
        y = None if added else x[:, :features]
        model.fit(x, y, batch_size=3 if steps else 8, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    warned = nullcontext() if features == 1 else pytest.warns(UserWarning, match="examples. If")
    with warned:
        accumulated = fit(3)
    for own, other in zip(accumulated, fit(None), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-6)


def test_optimizer_forgets_that_an_earlier_loss_was_a_sum() -> None:
    variable = tf.Variable([0.0])
    optimizer = AccumulatingOptimizer(tf_keras.optimizers.SGD(1.0), 2)
    for _ in range(2):
        optimizer.minimize(lambda: variable * [1.0, 2.0], [variable])
    assert float(variable[0]) == -6
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    assert float(variable[0]) == -7
    for _ in range(2):
        optimizer.minimize(lambda: 2.0 * variable, [variable])
    assert float(variable[0]) == -9


@pytest.mark.parametrize("minimize", [True, False])
def test_step_that_takes_the_mean_of_the_losses_of_examples_is_a_mean(minimize: bool) -> None:
    class Mean(tf_keras.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                self(data, training=True)
                loss = tf.reduce_mean(self.compute_loss(data))
            variables = self.trainable_variables
            if minimize:
                self.optimizer.minimize(loss, variables, tape=tape)
            else:
                gradients = tape.gradient(loss, variables)
                self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return {"loss": loss}

    def fit(steps: int | None) -> list[np.ndarray]:
        tf_keras.utils.set_random_seed(0)
        model = Mean([layers.Dense(3), Energies()])
        if steps:
            accumulate_gradients(model, steps)
        model.compile(tf_keras.optimizers.SGD(0.1), run_eagerly=not steps)
        features = tf.data.Dataset.from_tensor_slices(IMAGES[:, 0, :, 0]).batch(8 // (steps or 1))
        model.fit(features, epochs=3, verbose=0)
        return model.get_weights()

    for own, other in zip(fit(4), fit(None), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-6)


class ValuesAndMean(tf_keras.Model):
    """A model whose step differentiates one loss per example, as Keras' guides do, and a mean.

    The mean is a gradient penalty, which differentiates values of examples by the inputs.
    """

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.parts, self.other = [layers.Dense(3), layers.Dense(1)], other

    def train_step(self, data: Any) -> dict[str, Any]:
        first, second = self.parts
        scaled = hasattr(self.optimizer, "get_scaled_loss")
        with tf.GradientTape(persistent=True) as tape:
            losses = tf_keras.losses.mean_squared_error(1.0, first(data))
            losses = self.optimizer.get_scaled_loss(losses) if scaled else losses
            with tf.GradientTape() as inner:
                inner.watch(data)
                outputs = second(data) ** 2
            mean = tf.reduce_mean(inner.gradient(outputs, data) ** 2)
        gradients = tape.gradient(losses, first.trainable_variables)
        gradients = self.optimizer.get_unscaled_gradients(gradients) if scaled else gradients
        self.optimizer.apply_gradients(zip(gradients, first.trainable_variables, strict=True))
        variables = second.trainable_variables
        self.other.apply_gradients(zip(tape.gradient(mean, variables), variables, strict=True))
        return {"loss": mean}


@pytest.mark.parametrize("scaled", [True, False])
def test_step_that_differentiates_the_losses_of_examples_adds_them_up(scaled: bool) -> None:
    """Micro-batches of 3, 3 and 2 examples equal a batch of 8."""

    def fit(steps: int | None) -> list[np.ndarray]:
        tf_keras.utils.set_random_seed(0)
        other: Any = tf_keras.optimizers.SGD(0.1)
        model = ValuesAndMean(AccumulatingOptimizer(other, steps) if steps else other)
        if steps:
            accumulate_gradients(model, steps)
        sgd = tf_keras.optimizers.SGD(0.01, momentum=0.9)
        model.compile(fitting.LossScale(sgd) if scaled else sgd, run_eagerly=not steps or scaled)
        features = tf.data.Dataset.from_tensor_slices(IMAGES[:, 0, :, 0])
        model.fit(features.batch(3 if steps else 8), epochs=2, verbose=0)
        return model.get_weights()

    for own, other in zip(fit(3), fit(None), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-6)


def test_step_that_differentiates_a_sum_and_a_mean_warns() -> None:
    class Both(tf_keras.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            with tf.GradientTape(persistent=True) as tape:
                losses = tf.reduce_sum(self(data[0]) ** 2, axis=-1)
                penalty = tf.reduce_mean(self.trainable_variables[0] ** 2)
            variables = self.trainable_variables
            gradients = [tape.gradient(one, variables[:1])[0] for one in (losses, penalty)]
            self.optimizer.apply_gradients([(tf.add_n(gradients), variables[0])])
            return {}

    model = accumulate_gradients(Both([layers.Dense(2)]), 2)
    model.compile("sgd", run_eagerly=True)
    with pytest.warns(UserWarning, match=r"a sum, and a mean for .* 'SGD'.*reduce_mean\(loss\)"):
        model.train_on_batch(np.ones((4, 3), np.float32))


def test_differentiated_values_of_unknown_shape_are_refused() -> None:
    variable = tf.Variable(0.0)
    optimizer = AccumulatingOptimizer(tf_keras.optimizers.SGD(1.0), 2)
    optimizer.build([variable])

    @tf.function
    def step(values: Any) -> None:
        factor = tf.py_function(tf.identity, [values], tf.float32)
        optimizer.minimize(lambda: variable * factor, [variable])

    step(tf.constant(3.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"several values; call its set_shape"):
        step(tf.constant([1.0, 2.0]))


def test_loss_weight_is_saved_with_the_model(tmp_path: Path) -> None:
    settings = {"loss_weight": real_words}
    model = fitted(language_model, TOKENS, LABELS, scalar, 4, settings, run_eagerly=True)
    model.save(tmp_path / "model.keras")
    functions = {"scalar": scalar, "real_words": real_words}
    again = tf_keras.models.load_model(tmp_path / "model.keras", custom_objects=functions)
    assert again._accumulation.loss_weight is not None
    assert again.get_config() == model.get_config()


def test_loss_weight_with_a_step_that_ignores_it_raises() -> None:
    class Own(tf_keras.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
            self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
            return {}

    model = accumulate_gradients(Own([layers.Dense(1)]), 2, loss_weight=real_words)
    model.compile("sgd")
    with pytest.raises(ValueError, match="does not call compute_loss"):
        model.train_on_batch(np.ones((2, 3)), np.ones((2, 1)))


# --- Several outputs ------------------------------------------------------------------

OTHER = np.where(np.arange(LENGTH) < LENGTHS[::-1, None], RNG.integers(1, WORDS, (8, LENGTH)), 0)
PAIRS = {"left": TOKENS, "right": OTHER}
TARGETS = {
    "left": RNG.normal(size=(8, LENGTH, 1)).astype(np.float32),
    "right": RNG.normal(size=(8, LENGTH, 1)).astype(np.float32),
    "both": RNG.normal(size=(8, 1)).astype(np.float32),
}


def two_masks(mask_zero: bool = True) -> tf_keras.Model:
    """Return a model with two masked outputs and one unmasked output that share a layer."""
    embedding = layers.Embedding(WORDS, 4, mask_zero=mask_zero)
    trunk = layers.Dense(3, "tanh", kernel_regularizer=tf_keras.regularizers.l2(0.1))
    inputs = {key: layers.Input((LENGTH,), name=f"{key}_tokens") for key in ("left", "right")}
    hidden = {key: trunk(embedding(tokens)) for key, tokens in inputs.items()}
    pooled = layers.GlobalAveragePooling1D()(hidden["left"])
    outputs = {key: layers.Dense(1, name=key)(part) for key, part in hidden.items()}
    return tf_keras.Model(inputs, outputs | {"both": layers.Dense(1, name="both")(pooled)})


TWO = (two_masks, PAIRS, TARGETS, "mse")


@pytest.mark.parametrize("eager", [True, False])
def test_outputs_with_different_masks_are_refused(eager: bool) -> None:
    with pytest.raises(ValueError, match=r"means over different numbers.*sample weights of 0"):
        fitted(*TWO, steps=4, run_eagerly=eager)


def test_sample_weights_of_zero_replace_different_masks() -> None:
    """Micro-batches of 3, 3 and 2 examples equal a batch of 8."""

    def train(steps: int) -> list[np.ndarray]:
        tf_keras.utils.set_random_seed(0)
        model = accumulate_gradients(two_masks(mask_zero=False), steps)
        model.compile(tf_keras.optimizers.SGD(0.5, momentum=0.9), "mse", run_eagerly=True)
        real = {key: (tokens != 0).astype(np.float32) for key, tokens in PAIRS.items()}
        settings = {"batch_size": -(-8 // steps), "epochs": 3, "shuffle": False, "verbose": 0}
        model.fit(PAIRS, TARGETS, sample_weight=real | {"both": np.ones(8)}, **settings)
        return model.get_weights()

    for own, other in zip(train(3), train(1), strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-6)


def test_outputs_with_the_same_mask_accumulate() -> None:
    def build() -> tf_keras.Model:
        inputs = layers.Input((LENGTH,))
        hidden = layers.Embedding(WORDS, 4, mask_zero=True)(inputs)
        return tf_keras.Model(inputs, [layers.Dense(1)(hidden), layers.Dense(1)(hidden)])

    targets = [TARGETS["left"], TARGETS["right"]]
    assert differing(build, TOKENS, targets, "mse") < 1e-6


@pytest.mark.slow
def test_two_replicas_equal_one_device() -> None:
    differences = json.loads(output("import test_loss_weights as t; t.on_two_replicas()"))
    assert len(differences) == 2
    assert max(differences) < 1e-6


def test_losses_with_different_numbers_of_values_raise() -> None:
    def build() -> tf_keras.Model:
        inputs = layers.Input((LENGTH,))
        hidden = layers.Embedding(WORDS, 4)(inputs)
        pooled = layers.GlobalAveragePooling1D()(hidden)
        return tf_keras.Model(inputs, [layers.Dense(WORDS)(hidden), layers.Dense(1)(pooled)])

    targets = [LABELS.astype(np.int32), TARGETS["both"]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="different numbers of values"):
        fitted(build, TOKENS, targets, [Filtered(), "mse"], 4, run_eagerly=True)


def on_two_replicas() -> None:
    """Print the weight differences between one device and two accumulating replicas."""
    strategy = fitting.make_strategy(2)
    differences = []
    own = (language_model, TOKENS, LABELS, communicating)
    for case in (CASES["ignored words"], own):
        with tf.device("CPU:0"), tf.distribute.OneDeviceStrategy("CPU:0").scope():
            whole = fitted(*case, steps=None).get_weights()
        with strategy.scope():
            cut = fitted(*case, steps=4).get_weights()
        differences.append(max(float(np.abs(a - b).max()) for a, b in zip(whole, cut, strict=True)))
    print(json.dumps(differences))
