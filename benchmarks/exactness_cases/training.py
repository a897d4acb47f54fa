"""The small Keras model and its training, for tf_keras, tf.keras and Keras 3.

TensorFlow is imported where it is used, because the environments of the other backends lack it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from exactness_cases.cases import (
    FEATURES,
    KERAS_3_LEARNING_RATES,
    LEARNING_RATES,
    STOP_AFTER,
    TOKENS,
    WORDS,
    Case,
    NotSupportedError,
    data,
    start_weights,
    windows,
)


def make_model(keras: Any, case: Case, embedding: Any = None) -> Any:
    """Return the case's functional model with its start weights; all packages can wrap it.

    Args:
      keras: The Keras module.
      case: The case.
      embedding: Class of the embedding, if it is not that of Keras.
    """
    regularizer = keras.regularizers.L2(0.01) if case.model == "regularized" else None
    dense = keras.layers.Dense
    if case.model in ("embedding", "tags"):
        inputs = keras.Input((TOKENS,), dtype="int32")
        layer, masks = embedding or keras.layers.Embedding, case.model == "tags"
        hidden = layer(WORDS, 4, mask_zero=masks)(inputs)
        hidden = hidden if masks else keras.layers.GlobalAveragePooling1D()(hidden)
    else:
        inputs = hidden = keras.Input((FEATURES,))
    hidden = dense(8, activation="tanh", kernel_regularizer=regularizer)(hidden)
    # Keras recommends float32 outputs with mixed precision.
    options = {"dtype": "float32"} if case.mixed else {}
    outputs = dense(1, kernel_regularizer=regularizer, **options)(hidden)
    model = keras.Model(inputs, outputs)
    model.set_weights(start_weights([w.shape for w in model.get_weights()]))
    return model


def make_optimizer(keras: Any, case: Case, legacy: bool = False, **more: Any) -> Any:
    """Return the case's optimizer, which accumulates only if options in `more` enable it.

    Raises:
      NotSupportedError: The optimizer is missing or rejects an argument.
    """
    optimizers = keras.optimizers.legacy if legacy else keras.optimizers
    rate: Any = (LEARNING_RATES | KERAS_3_LEARNING_RATES)[case.optimizer]
    if case.schedule:
        rate = keras.optimizers.schedules.ExponentialDecay(rate, 2, 0.7)
    if not hasattr(optimizers, case.optimizer):
        raise NotSupportedError("not available")
    try:
        return getattr(optimizers, case.optimizer)(rate, **case.options, **more)
    except (TypeError, ValueError) as error:
        raise NotSupportedError("not supported") from error


def scaled(keras: Any, optimizer: Any) -> Any:
    return keras.mixed_precision.LossScaleOptimizer(optimizer)


def compiled(model: Any, optimizer: Any) -> Any:
    # XLA takes longer to compile than the model to train, but JAX is slow without it.
    model.compile(optimizer, "mse", jit_compile=backend() == "jax")
    return model


def backend() -> str:
    """Return the backend of Keras 3; other frameworks use TensorFlow."""
    return os.environ["KERAS_BACKEND"]


def large_batch(keras: Any, case: Case, legacy: bool = False, embedding: Any = None) -> Any:
    """Train with plain `fit` and the whole window as the batch: the reference of all columns."""
    optimizer = make_optimizer(keras, case, legacy)
    if case.loss_scale:
        optimizer = scaled(keras, optimizer)
    model = compiled(make_model(keras, case, embedding), optimizer)
    fit(model, case, data(case, keras.backend.floatx()), case.window)
    return model


def accumulated(keras: Any, case: Case, make: Callable[[], Any], suffix: str = ".keras") -> Any:
    """Train an accumulating model on the micro-batches.

    Args:
      keras: The Keras module.
      case: The case.
      make: Returns a new compiled model that accumulates.
      suffix: Suffix of the path that a model is saved to, which selects the format.
    """
    if case.stop:
        return interrupted(keras, case, make, suffix)
    model = make()
    if len(set(case.micro)) == 1:
        fit(model, case, data(case, keras.backend.floatx()), case.micro[0])
    else:
        model.fit(ragged_batches(keras, case), epochs=case.epochs, shuffle=False, verbose=0)
    return model


def fit(model: Any, case: Case, examples: Any, batch: int) -> None:
    features, targets, weights = examples
    model.fit(
        features,
        targets,
        sample_weight=weights,
        batch_size=batch,
        epochs=case.epochs,
        shuffle=False,
        verbose=0,
    )


def micro_batches(keras: Any, case: Case) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the micro-batches of one epoch."""
    features, targets, _ = data(case, keras.backend.floatx())
    for window in windows(case):
        for rows in window:
            yield features[rows], targets[rows]


def ragged_batches(keras: Any, case: Case) -> Any:
    """Return a dataset of the micro-batches of an epoch."""
    if backend() != "tensorflow":
        return listed(keras, list(micro_batches(keras, case)))
    import tensorflow as tf

    dtype = keras.backend.floatx()
    shapes = tf.TensorSpec((None, FEATURES), dtype), tf.TensorSpec((None, 1), dtype)
    return tf.data.Dataset.from_generator(
        lambda: micro_batches(keras, case), output_signature=shapes
    )


def listed(keras: Any, batches: list[tuple[np.ndarray, np.ndarray]]) -> Any:
    """Return a Keras 3 dataset of these batches."""

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(batches)

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            return batches[index]

    return Batches()


def interrupted(keras: Any, case: Case, make: Callable[[], Any], suffix: str) -> Any:
    """Train up to the middle of a window, save, and resume training from the saved files."""
    batches = [*micro_batches(keras, case)] * case.epochs
    model = make()
    for batch in batches[:STOP_AFTER]:
        model.train_on_batch(*batch)
    with tempfile.TemporaryDirectory() as folder:
        if case.stop == "checkpoint":
            model = restored(model, make(), f"{folder}/checkpoint")
        else:
            model.save(f"{folder}/model{suffix}")
            model = keras.models.load_model(f"{folder}/model{suffix}")
    for batch in batches[STOP_AFTER:]:
        model.train_on_batch(*batch)
    return model


def restored(model: Any, fresh: Any, path: str) -> Any:
    """Return `fresh` after saving a checkpoint of `model` and restoring it into `fresh`."""
    if backend() != "tensorflow":
        raise NotSupportedError("needs TensorFlow")
    import tensorflow as tf

    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(path)
    if hasattr(fresh.optimizer, "build"):  # Legacy optimizers have no `build`.
        fresh.optimizer.build(fresh.trainable_variables)
    tf.train.Checkpoint(model=fresh, optimizer=fresh.optimizer).restore(path).expect_partial()
    return fresh


def weights_of(model: Any) -> list[list[float]]:
    """Return the values of each trainable variable as a flat list."""
    return [v.numpy().astype(np.float64).ravel().tolist() for v in model.trainable_variables]


def start(
    keras: Any, trainings: dict[str, Callable[[Case], Any]], placement: str, dtype: str
) -> Callable[[str, Case], list[list[float]]]:
    """Set up devices and precision, and return a function that trains a case."""
    strategy = make_strategy(keras, placement)
    keras.backend.set_floatx(dtype)

    def train(name: str, case: Case) -> list[list[float]]:
        keras.backend.clear_session()  # In Keras 3 this also resets the policy.
        keras.mixed_precision.set_global_policy("mixed_float16" if case.mixed else dtype)
        with strategy.scope() if strategy else contextlib.nullcontext():
            return weights_of(trainings[name](case))

    return train


def make_strategy(keras: Any, placement: str) -> Any:
    """Return the strategy, or None for one device and on JAX, where it is a setting of Keras."""
    count, _, of = placement.partition(" ")
    if not of:
        return None
    if backend() == "jax" and of == "replicas":
        devices = keras.distribution.list_devices()[: int(count)]
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
        return None
    if backend() != "tensorflow":
        return _Unsupported()
    import tensorflow as tf

    if of == "workers":
        return tf.distribute.MultiWorkerMirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * int(count)
    tf.config.set_logical_device_configuration(cpu, logical)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(int(count))])


class _Unsupported:
    """A strategy that the backend does not have."""

    def scope(self) -> Any:
        raise NotSupportedError("not available")
