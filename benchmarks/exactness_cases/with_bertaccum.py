"""bertaccum's optimizer and its model wrapper, and the large batch in tf_keras."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.accumulation import AccumulatingOptimizer, accumulate_gradients
from exactness_cases import training
from exactness_cases.cases import LEARNING_RATES, Case, data, windows

keras = tf_keras

THERE = {
    name
    for name, value in vars(keras.optimizers).items()
    if isinstance(value, type) and issubclass(value, keras.optimizers.Optimizer)
}
if THERE - {"Optimizer"} != set(LEARNING_RATES):
    raise AssertionError(f"tf_keras has other optimizers than LEARNING_RATES: {THERE}")


def large_batch(case: Case) -> tf_keras.Model:
    return training.large_batch(keras, case)


def float32_large_batch(case: Case) -> tf_keras.Model:
    """Train the large batch of a case with mixed precision in float32 instead."""
    keras.mixed_precision.set_global_policy("float32")
    return training.large_batch(keras, dataclasses.replace(case, mixed=False, loss_scale=True))


def optimizer(case: Case) -> tf_keras.Model:
    """Train with `fit`, or with a custom loop if the sizes of micro-batches vary.

    An optimizer in `fit` does not receive the number of examples, or of tokens, of a micro-batch.
    """
    if case.sizes_vary:
        return explicit_loop(case)

    def make() -> tf_keras.Model:
        return training.compiled(training.make_model(keras, case), accumulating(case))

    return training.accumulated(keras, case, make)


def model(case: Case) -> tf_keras.Model:
    def make() -> tf_keras.Model:
        model = accumulate_gradients(training.make_model(keras, case), len(case.micro))
        plain = case.accumulator_dtype is None
        return training.compiled(model, inner(case) if plain else accumulating(case))

    return training.accumulated(keras, case, make)


def inner(case: Case) -> Any:
    optimizer = training.make_optimizer(keras, case)
    return training.scaled(keras, optimizer) if case.loss_scale else optimizer


def accumulating(case: Case) -> AccumulatingOptimizer:
    return AccumulatingOptimizer(
        inner(case), len(case.micro), accumulator_dtype=case.accumulator_dtype
    )


def explicit_loop(case: Case) -> tf_keras.Model:
    features, targets, _ = data(case, keras.backend.floatx())
    model = training.make_model(keras, case)
    optimizer = accumulating(case)

    @tf.function(reduce_retracing=True)
    def micro_step(features: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            losses = (model(features, training=True) - targets) ** 2
            read = features != 0 if case.model == "tags" else tf.ones_like(losses[:, 0], tf.bool)
            loss = tf.reduce_sum(tf.boolean_mask(losses, read))
        gradients = tape.gradient(loss, model.trainable_variables)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        optimizer.accumulate(pairs, weight=tf.math.count_nonzero(read))

    apply = tf.function(optimizer.apply)
    for _ in range(case.epochs):
        for window in windows(case):
            for rows in window:
                micro_step(tf.constant(features[rows]), tf.constant(targets[rows]))
            apply()
    return model


TRAININGS = {
    "large batch": large_batch,
    "float32 large batch": float32_large_batch,
    "optimizer": optimizer,
    "model": model,
}
start = functools.partial(training.start, keras, TRAININGS)
