"""Keras 3, with the argument `gradient_accumulation_steps` of its optimizers."""

from __future__ import annotations

import functools
from typing import Any

import keras

from exactness_cases import training
from exactness_cases.cases import Case


def large_batch(case: Case) -> Any:
    return training.large_batch(keras, case)


def optimizer(case: Case) -> Any:
    if case.accumulator_dtype:
        raise training.NotSupportedError("no such option")
    return training.accumulated(keras, case, lambda: with_optimizer(case))


def with_optimizer(case: Case) -> Any:
    inner = training.make_optimizer(keras, case, gradient_accumulation_steps=len(case.micro))
    if case.loss_scale:
        inner = training.scaled(keras, inner)
    return training.compiled(training.make_model(keras, case), inner)


TRAININGS = {"large batch": large_batch, "optimizer": optimizer}
start = functools.partial(training.start, keras, TRAININGS)
