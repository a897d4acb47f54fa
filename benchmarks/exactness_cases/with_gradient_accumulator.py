"""gradient-accumulator, used as described in its documentation.

Its optimizer wrapper is for legacy optimizers, but both kinds are tried. Clipping arguments are
passed to the wrapper instead of the optimizer. Its model wrapper accepts all optimizers; with mixed
precision it requires `mixed_precision=True` and an optimizer inside a `LossScaleOptimizer`. Models
are saved in the recommended SavedModel format.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf
from gradient_accumulator import GradientAccumulateModel, GradientAccumulateOptimizer

from exactness_cases import training
from exactness_cases.cases import Case

keras = tf.keras
SAVED_MODEL = ""


def large_batch(case: Case) -> Any:
    return training.large_batch(keras, case)


def legacy_large_batch(case: Case) -> Any:
    return training.large_batch(keras, case, legacy=True)


def optimizer(case: Case) -> Any:
    return accumulated(case, lambda: with_optimizer(case, legacy=False))


def legacy_optimizer(case: Case) -> Any:
    return accumulated(case, lambda: with_optimizer(case, legacy=True))


def model(case: Case) -> Any:
    return accumulated(case, lambda: with_model(case))


def accumulated(case: Case, make: Any) -> Any:
    if case.accumulator_dtype:
        raise training.NotSupportedError("no such option")
    return training.accumulated(keras, case, make, SAVED_MODEL)


def with_optimizer(case: Case, legacy: bool) -> Any:
    clips = {k: v for k, v in case.options.items() if k in ("clipnorm", "global_clipnorm")}
    others = {k: v for k, v in case.options.items() if k not in clips}
    inner = training.make_optimizer(keras, dataclasses.replace(case, options=others), legacy)
    wrapped = GradientAccumulateOptimizer(inner, accum_steps=len(case.micro), **clips)
    if case.loss_scale:
        wrapped = training.scaled(keras, wrapped)
    return training.compiled(training.make_model(keras, case), wrapped)


def with_model(case: Case) -> Any:
    network = training.make_model(keras, case)
    inner = training.make_optimizer(keras, case)
    scaled = case.loss_scale or case.mixed
    wrapped = GradientAccumulateModel(
        accum_steps=len(case.micro),
        mixed_precision=scaled,
        inputs=network.input,
        outputs=network.output,
    )
    return training.compiled(wrapped, training.scaled(keras, inner) if scaled else inner)


TRAININGS = {
    "large batch": large_batch,
    "legacy large batch": legacy_large_batch,
    "optimizer": optimizer,
    "legacy optimizer": legacy_optimizer,
    "model": model,
}
start = functools.partial(training.start, keras, TRAININGS)
