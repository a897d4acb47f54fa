"""Scenarios of accumulation from public threads of users, with `bertaccum.keras3`.

Each scenario names its thread. Scenarios that other tests of this folder contain are not repeated.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops
from test_keras3 import BACKEND, EAGER, LOSS, assert_same, dense_data, dense_model
from test_keras_scenarios import several

from bertaccum.keras3 import AccumBatchNormalization, AccumulatingOptimizer, accumulate_gradients

pytestmark = pytest.mark.slow
Options = dict[str, Any]


def adam(**options: Any) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.01, **options)


def trained(
    steps: int,
    model: Callable[[], keras.Model] = dense_model,
    optimizer: Callable[[], Any] = adam,
    loss: Any = LOSS,
    examples: int = 60,
    on_partial: str = "apply",
    **fit: Any,
) -> keras.Model:
    """Train a model on windows of 32 examples; with one step, without accumulation."""
    made = model()
    if steps > 1:
        accumulate_gradients(made, steps, on_partial)
    made.compile(optimizer(), loss, run_eagerly=EAGER and steps == 1)
    x, y = dense_data(examples)
    settings = {"x": x, "y": y, "epochs": 3, "shuffle": False, "verbose": 0}
    made.fit(**settings | {"batch_size": 32 // steps} | fit)
    return made


def tagger() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((6, 4)),
            layers.Masking(),
            layers.GRU(5, return_sequences=True),
            layers.Dense(3),
        ]
    )


def tagged() -> Options:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 6, 4)).astype("float32")
    x[np.arange(6) >= rng.integers(1, 7, 60)[:, None]] = 0
    return {"x": x, "y": np.eye(3, dtype="float32")[rng.integers(0, 3, (60, 6))]}


def ignored_labels() -> Options:
    """Labels of which the first micro-batch has none."""
    x, y = dense_data(60)
    y[:8] = 2
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=2)
    return {"x": x, "y": y, "loss": loss}


class Penalty(layers.Layer):
    def call(self, inputs: Any) -> Any:
        self.add_loss(ops.mean(inputs**2))
        return inputs


def penalized() -> keras.Model:
    model = dense_model()
    return keras.Model(model.inputs, Penalty()(model.outputs[0]))


class Own(keras.optimizers.Optimizer):
    """An optimizer of the user, which rounds gradients, so that it depends on how they are cut."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rounded = ops.round(1000 * gradient) / 1000
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * rounded)


def siamese() -> keras.Model:
    """Two inputs through the same layers."""
    keras.utils.set_random_seed(0)
    encoder = keras.Sequential([layers.Dense(4, "tanh"), layers.Dense(3)])
    inputs = [keras.Input((5,)), keras.Input((5,))]
    return keras.Model(inputs, ops.sum((encoder(inputs[0]) - encoder(inputs[1])) ** 2, 1, True))


def constrained() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((5,)), layers.Dense(3, kernel_constraint="unit_norm")])


def adapted() -> keras.Model:
    """A model in int8 of which only an adapter (LoRA) is trained."""
    model = dense_model()
    model.quantize("int8")
    model.layers[0].enable_lora(2)
    return model


def tied() -> keras.Model:
    """An embedding that is also the output layer: its gradient has a sparse and a dense part."""
    keras.utils.set_random_seed(0)
    embedding = layers.ReversibleEmbedding(9, 4)
    inputs = keras.Input((3,), dtype="int32")
    return keras.Model(inputs, embedding(ops.mean(embedding(inputs), 1), reverse=True))


def rematerialized() -> keras.Model:
    with keras.RematScope(mode="activations"):
        return dense_model()


def scaled(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=64.0)


def without_decay() -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


RNG = np.random.default_rng(0)
PAIR = [RNG.normal(size=(60, 5)).astype("float32") for _ in range(2)]
WORDS = {"x": RNG.integers(0, 9, (60, 3)), "y": RNG.integers(0, 9, 60)}
SMOOTHED = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
DISTANCES = {"x": PAIR, "y": np.ones((60, 1), "float32"), "loss": "mse"}
SGD = keras.optimizers.SGD
EQUAL: dict[str, Options] = {
    "bojone/accum_optimizer_for_keras#2": {"optimizer": lambda: SGD(0.1, 0.9, nesterov=True)},
    "huggingface/transformers#46731": {"model": tagger, "loss": SMOOTHED} | tagged(),
    "karpathy/nanochat#623": ignored_labels(),
    "keras-team/keras#9173": {"model": penalized},
    "andreped/GradientAccumulator#30": {"model": penalized, "loss": None, "y": None},
    "keras-team/keras#20241": {"optimizer": lambda: Own(0.1)},
    "keras-team/keras#6472": {"model": siamese} | DISTANCES,
    "keras-team/keras#8360": {"model": constrained},
    "keras-team/keras#19356": {"model": adapted},
    "tensorflow/tensorflow#21243": {"model": tied} | WORDS,
    "keras-team/keras#20743": {"model": rematerialized},
    "keras-team/keras#22959": {"optimizer": lambda: scaled(several())},
    "tensorflow/addons#1903": {"optimizer": without_decay},
    "keras-team/keras#18978": {"optimizer": lambda: adam(use_ema=True)},
}


if BACKEND == "jax":  # It compiles for seconds; the arithmetic of optimizers is the same there.
    EQUAL = {name: given for name, given in EQUAL.items() if given.keys() != {"optimizer"}}


@pytest.mark.parametrize("thread", EQUAL)
def test_equals_the_large_batch(thread: str) -> None:
    assert_same(trained(4, **EQUAL[thread]), trained(1, **EQUAL[thread]))


def test_one_micro_step_equals_the_plain_optimizer() -> None:
    """OpenNMT/OpenNMT-tf#686."""
    ours = accumulate_gradients(dense_model(), 1)
    ours.compile(adam(), LOSS)
    ours.fit(*dense_data(60), batch_size=32, epochs=3, shuffle=False, verbose=0)
    assert_same(ours, trained(1), atol=1e-6)


def test_history_is_that_of_the_large_batch() -> None:
    """Lightning-AI/pytorch-lightning#2569, espnet/espnet#1388: also with a partial window."""
    kinds = [trained(s, validation_data=dense_data(20)).history.history for s in (4, 1)]
    assert set(kinds[0]) == {"loss", "val_loss"}
    for name, values in kinds[0].items():
        np.testing.assert_allclose(values, kinds[1][name], rtol=1e-5)


def test_epoch_shorter_than_the_window() -> None:
    """Lightning-AI/pytorch-lightning#21808."""
    applied, carried, dropped = (
        trained(4, examples=16, on_partial=choice, epochs=4)
        for choice in ("apply", "carry", "drop")
    )
    assert [int(m.optimizer.iterations) for m in (applied, carried, dropped)] == [4, 2, 0]
    assert_same(applied, trained(2, batch_size=16, examples=16, epochs=4))
    x, y = dense_data(16)
    twice = np.concatenate([x, x]), np.concatenate([y, y])
    assert_same(carried, trained(1, x=twice[0], y=twice[1], epochs=2))


class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 5:
            raise KeyboardInterrupt


@pytest.mark.parametrize("on_partial", ["apply", "carry"])
def test_fit_after_an_interrupted_fit(on_partial: str) -> None:
    """Nerogar/OneTrainer#1465."""
    x, y = dense_data(64)
    model = accumulate_gradients(dense_model(), 4, on_partial)
    model.compile(adam(), LOSS)
    settings = {"batch_size": 8, "shuffle": False, "verbose": 0}
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, callbacks=[Interrupt()], **settings)
    rest = slice(48, 64) if on_partial == "carry" else slice(32, 64)
    model.fit(x[rest], y[rest], **settings)
    assert_same(model, trained(1, examples=64, epochs=1))


def test_other_number_of_steps_after_loading(tmp_path: Path) -> None:
    """vllm-project/speculators#859: the window that was saved ends with the next micro-step."""
    x, y = dense_data(32)
    model = trained(4, x=x[:24], y=y[:24], on_partial="carry", epochs=1)
    model.save_weights(tmp_path / "model.weights.h5")
    other = accumulate_gradients(dense_model(), 3, "carry")
    other.compile(adam(), LOSS)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "model.weights.h5")
    other.fit(x[24:], y[24:], batch_size=8, verbose=0)
    assert_same(other, trained(1, examples=32, epochs=1))


def test_checkpoint_in_the_middle_of_a_window(tmp_path: Path) -> None:
    """openvla/openvla#202."""
    path = str(tmp_path / "{batch}.keras")
    saving = keras.callbacks.ModelCheckpoint(path, save_freq=6)
    whole = trained(4, examples=64, on_partial="carry", epochs=1, callbacks=[saving])
    loaded = keras.saving.load_model(tmp_path / "6.keras")
    assert loaded.optimizer.pending
    x, y = dense_data(64)
    loaded.fit(x[48:], y[48:], batch_size=8, shuffle=False, verbose=0)
    assert_same(loaded, whole, atol=1e-7)


def test_backup_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """keras-team/keras#19389: a new program continues with the partial window."""

    def fit(callbacks: list[keras.callbacks.Callback]) -> keras.Model:
        backup = keras.callbacks.BackupAndRestore(str(tmp_path))
        options: Options = {"examples": 40, "on_partial": "carry", "epochs": 4}
        return trained(4, callbacks=[backup, *callbacks], **options)

    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit([Stop()])
    assert_same(fit([]), trained(4, examples=40, on_partial="carry", epochs=4), atol=1e-6)


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_overflow_of_one_micro_batch_skips_its_window(bad: int) -> None:
    """espnet/espnet#3283."""
    x, y = np.ones((64, 1), "float32"), np.zeros((64, 1), "float32")
    y[8 * bad] = -60000
    found = []
    for steps in (4, 1):

        def model() -> keras.Model:
            dense = layers.Dense(1, use_bias=False, kernel_initializer="ones")
            return keras.Sequential([keras.Input((1,)), dense])

        keras.config.set_dtype_policy("mixed_float16")
        try:
            optimizer = keras.optimizers.LossScaleOptimizer(SGD(0.1), initial_scale=4096.0)
            trained(steps, model, lambda s=optimizer: s, "mse", x=x, y=y, epochs=1)
        finally:
            keras.config.set_dtype_policy("float32")
        found.append((float(optimizer.dynamic_scale), int(optimizer.iterations)))
    assert found[0] == found[1] == (2048.0, 1)


def test_infinite_gradient_reaches_the_weights_as_with_the_large_batch() -> None:
    """google-deepmind/optax#828: without a loss scale, nothing hides the wrong value."""
    x, y = dense_data(32)
    x[3] = np.nan
    for model in (trained(steps, x=x, y=y) for steps in (4, 1)):
        assert np.isnan(model.get_weights()[0]).all()


def test_sums_of_bfloat16_have_all_digits() -> None:
    """deepspeedai/DeepSpeed#2768: in bfloat16, 256 + 1 is 256."""
    variable = keras.Variable(np.zeros(1), dtype="bfloat16")
    optimizer = AccumulatingOptimizer(SGD(1.0), 16)
    for gradient in (256, *[1] * 15):
        optimizer.apply([ops.full((1,), gradient, "bfloat16")], [variable])
    found = ops.convert_to_numpy(ops.cast(variable, "float32"))
    np.testing.assert_allclose(found, -271 / 16, rtol=4e-3)  # 256 / 16 differs by 6e-2.


def test_float8() -> None:
    """keras-team/keras#19488."""

    def model() -> keras.Model:
        made = dense_model()
        made.quantize("float8")
        return made

    ours = trained(2, model, epochs=9)
    losses = ours.history.history["loss"]
    assert losses[-1] < losses[0]
    assert int(ours.optimizer.iterations) == 18


@pytest.mark.parametrize(("rank", "axis"), [(4, -1), (4, 1), (5, -1)])
def test_batch_normalization_of_images(rank: int, axis: int) -> None:
    """andreped/GradientAccumulator#75."""
    x = np.random.default_rng(0).normal(2, 3, (24, *range(2, rank + 1))).astype("float32")
    layer = AccumBatchNormalization(3, axis=axis, momentum=0.5)
    for part in np.split(x, 3):
        layer(part, training=True)
    whole = layers.BatchNormalization(axis=axis, momentum=0.5)
    whole(x, training=True)
    np.testing.assert_allclose(*(ops.convert_to_numpy(n.moving_mean) for n in (layer, whole)), 1e-5)
    variances = (ops.convert_to_numpy(n.moving_variance) for n in (layer, whole))
    np.testing.assert_allclose(*variances, 1e-5)


def test_batch_normalization_in_float16() -> None:
    """andreped/GradientAccumulator#73."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        layer = AccumBatchNormalization(2)
        layer(np.full((4, 3), 2.0, "float16"), training=True)
        layer(np.full((4, 3), 4.0, "float16"), training=True)
    finally:
        keras.config.set_dtype_policy("float32")
    assert {str(weight.dtype) for weight in layer.weights} == {"float32"}
    np.testing.assert_allclose(ops.convert_to_numpy(layer.moving_mean), 0.03, rtol=1e-5)


def test_plain_batch_normalization_warns() -> None:
    """mosaicml/composer#1207."""
    plain = layers.BatchNormalization(name="plain")
    model = keras.Sequential([keras.Input((5,)), plain, AccumBatchNormalization(2, name="pooled")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accumulate_gradients(keras.Sequential([keras.Input((5,)), layers.BatchNormalization()]), 1)
    with pytest.warns(UserWarning, match=r"BatchNormalization \(plain\)"):
        accumulate_gradients(model, 2)


def test_unfrozen_batch_normalization_warns_once() -> None:
    norm = layers.BatchNormalization(name="norm", trainable=False)
    model = keras.Sequential([keras.Input((5,)), norm, layers.Dense(1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accumulate_gradients(model, 2)
        model.compile("sgd", "mse")
    norm.trainable = True
    with pytest.warns(UserWarning, match=r"BatchNormalization \(norm\)"):
        model.compile("sgd", "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.compile("sgd", "mse")


class OwnStep(keras.Sequential):
    """A model with a `train_step` as in Keras' guides."""

    def train_step(self, *args: Any) -> Any:
        if BACKEND == "jax":
            return self.on_jax(*args)
        x, y = args[0]
        if BACKEND == "torch":
            self.zero_grad()
            loss = self.compute_loss(x, y, self(x, training=True))
            loss.backward()
            gradients = [v.value.grad for v in self.trainable_weights]
        else:
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        return {"loss": loss}

    def on_jax(self, state: Any, data: Any) -> Any:
        """Check that each gradient belongs to a variable."""
        import jax

        trained, others, own, metrics = state
        differentiated = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        options = {"training": True, "optimizer_variables": own}
        (loss, aux), gradients = differentiated(trained, others, metrics, *data, None, **options)
        gradients = [g for g, _ in zip(gradients, self.trainable_weights, strict=True)]
        trained, own = self.optimizer.stateless_apply(own, gradients, trained)
        return {"loss": loss}, (trained, *aux[2:3], own, *aux[3:])


def with_own_step() -> keras.Model:
    made = OwnStep(dense_model().layers)
    made.build((None, 5))
    return made


def test_own_train_step() -> None:
    """tensorflow/tensorflow#47578."""
    assert_same(trained(4, with_own_step), trained(1, with_own_step))


def test_own_train_step_that_does_not_scale_its_loss() -> None:
    def optimizer() -> keras.optimizers.Optimizer:
        return keras.optimizers.LossScaleOptimizer(SGD(0.1), initial_scale=2.0)

    keras.config.set_dtype_policy("mixed_float16")
    try:
        ours, whole = (trained(steps, with_own_step, optimizer) for steps in (4, 1))
    finally:
        keras.config.set_dtype_policy("float32")
    assert_same(ours, whole, atol=1e-3)


@pytest.mark.parametrize("scaling", [False, True])
def test_loop_that_scales_its_loss_itself(scaling: bool) -> None:
    variable = keras.Variable(1.0)
    scaled = keras.optimizers.LossScaleOptimizer(SGD(1.0), initial_scale=2.0)
    optimizer = AccumulatingOptimizer(scaled, 4)
    for _ in range(4):
        factor = float(optimizer.scale_loss(ops.ones(()))) if scaling else 2.0
        optimizer.apply([ops.full((), 0.5 * factor)], [variable])
    assert float(variable) == pytest.approx(0.5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.function is TensorFlow's")
def test_loop_in_a_function_that_is_traced_twice() -> None:
    """huggingface/transformers#3036."""
    import tensorflow as tf

    model, optimizer = dense_model(), AccumulatingOptimizer(adam(), 4)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor, last: bool) -> None:
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x, training=not last)) + sum(model.losses)
        optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)

    x, y = dense_data(64)
    optimizer.build(model.trainable_variables)
    for begin in range(0, 64, 8):
        # The last argument is different at the end, so that the function is traced once more.
        step(tf.constant(x[begin : begin + 8]), tf.constant(y[begin : begin + 8]), begin == 56)
    for mine, whole in zip(
        model.get_weights(), trained(1, examples=64, epochs=1).get_weights(), strict=True
    ):
        np.testing.assert_allclose(mine, whole, atol=3e-5)
    assert int(optimizer.iterations) == 2
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


@pytest.mark.skipif(BACKEND != "jax", reason="stateless_apply is JAX's")
def test_loop_with_a_compiled_stateless_apply() -> None:
    """keras-team/keras#18923."""
    import jax

    def trained_by_hand(optimizer: Any, batch: int) -> list[Any]:
        model = dense_model()
        optimizer.build(model.trainable_variables)
        weights = [v.value for v in model.trainable_variables]
        state = [v.value for v in optimizer.variables]

        def loss(weights: Any, x: Any, y: Any) -> Any:
            outputs, _ = model.stateless_call(weights, [], x)
            return LOSS(y, outputs)

        @jax.jit
        def step(state: Any, weights: Any, x: Any, y: Any) -> Any:
            return optimizer.stateless_apply(state, jax.grad(loss)(weights, x, y), weights)

        x, y = dense_data(64)
        for begin in range(0, 64, batch):
            part = slice(begin, begin + batch)
            weights, state = step(state, weights, x[part], y[part])
        return weights

    ours = trained_by_hand(AccumulatingOptimizer(adam(), 4), 8)
    for mine, theirs in zip(ours, trained_by_hand(adam(), 32), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=3e-5)


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution is for JAX")
def test_model_parallel() -> None:
    """young-geng/EasyLM#36: sums lie on the devices of their variables."""

    def model() -> keras.Model:
        keras.utils.set_random_seed(0)
        first = layers.Dense(8, "tanh", name="first")
        return keras.Sequential([keras.Input((5,)), first, layers.Dense(3)])

    whole, distribution = trained(1, model), keras.distribution
    mesh = distribution.DeviceMesh((1, 4), ["data", "model"], distribution.list_devices())
    layout = distribution.LayoutMap(mesh)
    layout[".*first/kernel"] = (None, "model")
    distribution.set_distribution(distribution.ModelParallel(layout_map=layout))
    try:
        spread = trained(4, model)
        variables = spread.optimizer.variables
        total = next(v.value for v in variables if v.path.endswith("first_kernel_gradient_sum"))
        assert total.sharding.shard_shape(total.shape) == (5, 2)
    finally:
        distribution.set_distribution(None)
    assert_same(spread, whole)


def test_endless_data_in_batches_of_changing_size() -> None:
    """Lightning-AI/pytorch-lightning#20330: epochs of 5 batches in windows of 3."""
    x, y = dense_data(60)
    cuts = [slice(3 * i, 3 * i + 4 + i % 3) for i in range(15)]
    batches = [(x[cut], y[cut]) for cut in cuts]
    endless = (batch for batch in itertools.cycle(batches))
    ours = trained(3, x=endless, y=None, batch_size=None, steps_per_epoch=5)
    whole = dense_model()
    whole.compile(adam(), LOSS, run_eagerly=EAGER)
    for begin, end in ((0, 3), (3, 5), (5, 8), (8, 10), (10, 13), (13, 15)):
        window = zip(*batches[begin:end], strict=True)
        whole.train_on_batch(*map(np.concatenate, window))
    assert_same(ours, whole)


def test_layers_unfrozen_later() -> None:
    """keras-team/keras#9940: trained after another `compile`."""
    models = []
    for steps in (4, 1):

        def frozen() -> keras.Model:
            model = dense_model()
            model.layers[0].trainable = False
            return model

        model = trained(steps, frozen)
        model.layers[0].trainable = True
        model.compile(adam(), LOSS, run_eagerly=EAGER and steps == 1)
        model.fit(*dense_data(60), batch_size=32 // steps, shuffle=False, verbose=0)
        models.append(model)
    assert_same(*models)


def test_averaged_weights_are_validated() -> None:
    """keras-team/keras#22959: also with a loss scale around the optimizer."""
    found = []
    for steps in (4, 1):

        def averaging() -> keras.optimizers.Optimizer:
            return scaled(adam(use_ema=True, ema_momentum=0.5))

        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        data = dense_data(20)
        model = trained(steps, optimizer=averaging, callbacks=[swap], validation_data=data)
        found.append((model, model.history.history["val_loss"]))
    assert_same(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5)


@pytest.mark.skipif(BACKEND == "torch", reason="Keras' stateful layers fail on PyTorch")
def test_state_of_a_recurrent_layer_between_micro_batches() -> None:
    """keras-team/keras#8945: one update from a long sequence in chunks (truncated BPTT)."""
    x = np.random.default_rng(0).normal(size=(2, 4, 5, 2)).astype("float32")  # [chunk, batch, ...]

    def model() -> keras.Model:
        keras.utils.set_random_seed(0)
        lstm = layers.LSTM(3, stateful=True)
        return keras.Sequential([keras.Input(batch_shape=(4, 5, 2)), lstm, layers.Dense(1)])

    ours, y = accumulate_gradients(model(), 2), np.ones((4, 1), "float32")
    ours.compile(SGD(0.1), "mse")
    for chunk in x:
        ours.train_on_batch(chunk, y)
    # The second chunk starts from the state after the first one, before the weights change.
    apart = []
    for number in range(2):
        one = model()
        one.compile(SGD(0.1), "mse", run_eagerly=EAGER)
        if number:
            one.predict_on_batch(x[0])
        one.train_on_batch(x[number], y)
        apart.append(one.get_weights())
    for mine, first, second in zip(ours.trainable_weights, *apart, strict=False):
        np.testing.assert_allclose(ops.convert_to_numpy(mine), (first + second) / 2, atol=1e-6)
