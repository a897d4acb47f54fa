"""bertaccum's model wrapper for Keras 3, and the large batch in Keras 3."""

from __future__ import annotations

import functools
from typing import Any

import keras

from bertaccum.keras3 import accumulate_gradients
from exactness_cases import training
from exactness_cases.cases import Case


class DenseGradients(keras.layers.Embedding):
    """An embedding whose gradient is dense; on TensorFlow, Keras adds up sparse ones wrongly."""

    def call(self, inputs: Any) -> Any:
        one_hot = keras.ops.one_hot(inputs, self.input_dim, dtype=self.compute_dtype)
        return keras.ops.matmul(one_hot, self.embeddings)


def large_batch(case: Case) -> Any:
    return training.large_batch(keras, case, embedding=DenseGradients)


def model(case: Case) -> Any:
    if case.accumulator_dtype:
        raise training.NotSupportedError("no such option")

    def make() -> Any:
        model = accumulate_gradients(training.make_model(keras, case), len(case.micro))
        optimizer = training.make_optimizer(keras, case)
        inner = training.scaled(keras, optimizer) if case.loss_scale else optimizer
        return training.compiled(model, inner)

    return training.accumulated(keras, case, make)


TRAININGS = {"large batch": large_batch, "model": model}
start = functools.partial(training.start, keras, TRAININGS)
