"""bertaccum's model wrapper for Keras 3, and the large batch in Keras 3."""

from __future__ import annotations

import functools
from typing import Any

import keras

from bertaccum.keras3 import accumulate_gradients
from exactness_cases import training
from exactness_cases.cases import Case


def large_batch(case: Case) -> Any:
    return training.large_batch(keras, case)


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
