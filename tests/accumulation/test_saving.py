"""Tests that a model saved in the middle of a window resumes with identical weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fitting
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from official.modeling.optimization.lars import LARS
from official.nlp.optimization import LAMB, AdamWeightDecay, create_optimizer

from bertaccum.accumulation import AccumulatingOptimizer, ClipByGlobalNorm, accumulate_gradients

STEPS, MICRO_STEPS = 2, 6
OPTIMIZERS = {
    name: kind
    for name, kind in vars(tf_keras.optimizers).items()
    if isinstance(kind, type) and issubclass(kind, tf_keras.optimizers.Optimizer)
} | {"loss scale around Lion": lambda: fitting.LossScale(tf_keras.optimizers.Lion())}
del OPTIMIZERS["Optimizer"]
NOT_DECAYED = {"weight_decay_rate": 0.1, "exclude_from_weight_decay": ["bias"]}
LEGACY: dict[str, Callable[[], Any]] = {
    "AdamWeightDecay": lambda: AdamWeightDecay(0.05, gradient_clip_norm=0.1, **NOT_DECAYED),
    "LAMB": lambda: LAMB(0.05, **NOT_DECAYED),
    "LARS": lambda: LARS(0.05, **NOT_DECAYED),
    "SGD": lambda: tf_keras.optimizers.legacy.SGD(0.05, momentum=0.9),
    "loss scale around SGD": lambda: fitting.LossScale(tf_keras.optimizers.legacy.SGD(0.05)),
}
CLASSES = {"AdamWeightDecay": AdamWeightDecay, "LAMB": LAMB, "LARS": LARS}


def accumulating(face: str, optimizer: Any) -> tf_keras.Model:
    """Return a compiled accumulating model.

    It runs eagerly, because tracing takes most of the time of these tests, except for Nadam,
    which requires tracing.
    """
    network = fitting.model()
    if face == "model":
        network = accumulate_gradients(network, STEPS)
    else:
        optimizer = AccumulatingOptimizer(optimizer, STEPS)
    network.compile(optimizer, "mse")
    innermost = network.optimizer._innermost
    network.run_eagerly = not isinstance(innermost, tf_keras.optimizers.Nadam)
    return network


def run(network: tf_keras.Model, micro_steps: range) -> None:
    features, targets = fitting.data()
    for start in micro_steps:
        rows = slice(4 * start, 4 * start + 4)
        network.train_on_batch(features[rows], targets[rows])


def difference_after_loading(
    make: Callable[[], tf_keras.Model], stop: int, path: Path, **options: Any
) -> float:
    """Resume from a saved model; return the largest difference to uninterrupted training."""
    whole = make()
    start = [v.numpy() for v in whole.trainable_variables]
    run(whole, range(stop))
    if path.suffix:
        whole.save(path)
        again = tf_keras.models.load_model(path, **options)
        again.run_eagerly = whole.run_eagerly
    else:
        saved = tf.train.Checkpoint(model=whole, optimizer=whole.optimizer).save(str(path))
        again = make()
        tf.train.Checkpoint(model=again, optimizer=again.optimizer).restore(saved)
    for network in (whole, again):
        run(network, range(stop, MICRO_STEPS))
        assert int(network.optimizer.iterations.numpy()) == MICRO_STEPS // STEPS
    moved = zip(whole.trainable_variables, start, strict=True)
    assert max(np.abs(variable.numpy() - value).max() for variable, value in moved) > 1e-3
    pairs = zip(again.variables, whole.variables, strict=True)
    return max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b in pairs)


# Every optimizer in one format and with one face, in the middle of a window. Adam, whose state is
# usual, in all pairs of these, also between windows.
CASES = [
    (name, (".keras", ".h5")[number % 2], ("optimizer", "model")[number // 2 % 2], 3)
    for number, name in enumerate(OPTIMIZERS)
]
CASES += [("Adam", ".keras", "optimizer", 3), ("Adam", ".keras", "model", 4)]
CASES += [("Adam", ".h5", "optimizer", 4), ("Adam", ".h5", "model", 3)]


@pytest.mark.parametrize(("name", "suffix", "face", "stop"), dict.fromkeys(CASES))
def test_optimizer_resumes_with_identical_weights(
    name: str, suffix: str, face: str, stop: int, tmp_path: Path
) -> None:
    def make() -> tf_keras.Model:
        optimizer = OPTIMIZERS[name]()
        optimizer.learning_rate = 1.0 if name == "Adadelta" else 0.01
        return accumulating(face, optimizer)

    difference = difference_after_loading(make, stop, tmp_path / f"model{suffix}")
    # Nadam in tf_keras depends on how often its step was traced, which cannot be saved.
    assert difference <= (1e-4 if name == "Nadam" else 0)


# Every optimizer, each format with each face.
@pytest.mark.parametrize(
    ("name", "face", "suffix"),
    [
        ("AdamWeightDecay", "model", ".keras"),
        ("AdamWeightDecay", "optimizer", ".h5"),
        ("LAMB", "model", ".h5"),
        ("LAMB", "optimizer", ""),
        ("LARS", "model", ""),
        ("SGD", "optimizer", ".keras"),
        ("loss scale around SGD", "model", ".keras"),
        ("loss scale around SGD", "optimizer", ".h5"),
    ],
)
def test_legacy_optimizer_resumes_with_identical_weights(
    name: str, face: str, suffix: str, tmp_path: Path
) -> None:
    make = lambda: accumulating(face, LEGACY[name]())  # noqa: E731
    path = tmp_path / f"model{suffix}"
    assert difference_after_loading(make, 3, path, custom_objects=CLASSES) == 0


def test_optimizer_of_tf_models_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    """Its warmup schedule cannot be loaded from a model file, with or without accumulation."""
    make = lambda: accumulating("optimizer", create_optimizer(0.05, 8, 2))  # noqa: E731
    assert difference_after_loading(make, 3, tmp_path / "checkpoint") == 0


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_gradient_transform_is_saved(suffix: str, tmp_path: Path) -> None:
    def make() -> tf_keras.Model:
        network = fitting.model()
        transform = ClipByGlobalNorm(0.1)
        optimizer = AccumulatingOptimizer("sgd", STEPS, gradient_transform=transform)
        network.compile(optimizer, "mse", run_eagerly=True)
        return network

    assert difference_after_loading(make, 3, tmp_path / f"model{suffix}") == 0


def test_optimizer_can_be_passed_as_a_config() -> None:
    for kind in (tf_keras.optimizers.Lion, tf_keras.optimizers.Adam):
        config = tf_keras.optimizers.serialize(kind(0.5))
        assert type(AccumulatingOptimizer(config).inner) is kind
    short = {"class_name": "Adam", "config": {"learning_rate": 0.5, "is_legacy_optimizer": False}}
    assert type(AccumulatingOptimizer(short).inner) is tf_keras.optimizers.Adam


@pytest.mark.parametrize("flush", ["flush", "traced_flush"])
def test_variable_without_gradient_does_not_change_after_loading(flush: str) -> None:
    used, unused = tf.Variable(1.0), tf.Variable(1.0)
    store: dict[str, np.ndarray] = {}

    def optimizer() -> AccumulatingOptimizer:
        made = AccumulatingOptimizer(tf_keras.optimizers.AdamW(0.1, weight_decay=0.1), 4)
        made.build([used, unused])
        return made

    first, loaded = optimizer(), optimizer()
    first.accumulate([(tf.constant(1.0), used), (None, unused)])
    first.save_own_variables(store)
    loaded.load_own_variables(store)
    assert getattr(loaded, flush)()
    assert used.numpy() < 1.0
    assert unused.numpy() == 1.0


@pytest.mark.parametrize("kind", ["plain", "one step", "more steps"])
def test_weights_of_a_model_with_another_optimizer_are_loaded(kind: str, tmp_path: Path) -> None:
    def make(steps: int) -> tf_keras.Model:
        network = fitting.model()
        if steps:
            accumulate_gradients(network, steps)
        network.compile("adam", "mse", run_eagerly=True)
        run(network, range(2))
        return network

    saved_steps, loaded_steps = {"plain": (0, 2), "one step": (1, 2), "more steps": (2, 1)}[kind]
    saved, loaded = make(saved_steps), make(loaded_steps)
    run(saved, range(1))
    saved.save_weights(tmp_path / "model.weights.h5")
    before = [variable.numpy() for variable in loaded.optimizer._own_variables()]
    with pytest.warns(UserWarning, match="is not loaded, because the file contains"):
        loaded.load_weights(tmp_path / "model.weights.h5")
    for own, other in zip(loaded.get_weights(), saved.get_weights(), strict=True):
        np.testing.assert_array_equal(own, other)
    for variable, value in zip(loaded.optimizer._own_variables(), before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
