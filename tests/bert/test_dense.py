"""Dense layers as matrix products, against tf_keras' einsum."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from gradients import output_and_gradients

from bertaccum.bert.dense import simplify_dense

EinsumDense = tf_keras.layers.EinsumDense


def model_of(layer: EinsumDense, inputs: list[int]) -> tf_keras.Model:
    model = tf_keras.Sequential([tf_keras.Input([None, *inputs]), layer])
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(size=weight.shape))
    return model


@pytest.mark.parametrize(
    ("equation", "output_shape", "bias_axes", "inputs"),
    [
        ("...x,xy->...y", (6,), "y", [5]),
        ("abc,cde->abde", (None, 2, 3), "de", [5]),
        ("abcd,cde->abe", (None, 6), "e", [2, 5]),
    ],
)
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 1e-5)])
def test_values_and_gradients_are_those_of_keras(
    equation: str,
    output_shape: tuple[int | None, ...],
    bias_axes: str,
    inputs: list[int],
    dtype: str,
    bound: float,
) -> None:
    layer = EinsumDense(equation, output_shape, bias_axes=bias_axes, activation="tanh", dtype=dtype)
    model = model_of(layer, inputs)
    x = tf.constant(np.random.default_rng(1).normal(size=[3, 4, *inputs]), dtype)
    theirs = output_and_gradients(model, x, model)
    simplify_dense(model)
    assert "call" in vars(layer)
    for one, other in zip(output_and_gradients(model, x, model), theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("equation", "output_shape", "bias_axes", "inputs"),
    [
        ("abc,cd->abd", (None, 6), None, [5]),  # no bias
        ("abc,dc->abd", (None, 6), "d", [5]),  # the kernel is the other way round
        ("abc,bcd->abd", (4, 6), "d", [5]),  # a kernel for each position
        ("abc,cd->abd", (4, 6), "bd", [5]),  # a bias for each position
        ("abc,cd->adb", (6, 4), "d", [5]),  # the result is turned
    ],
)
def test_what_is_no_matrix_product_is_left_alone(
    equation: str, output_shape: tuple[int | None, ...], bias_axes: str | None, inputs: list[int]
) -> None:
    layer = EinsumDense(equation, output_shape, bias_axes=bias_axes)
    model = tf_keras.Sequential([tf_keras.Input([4, *inputs]), layer])
    simplify_dense(model)
    assert "call" not in vars(layer)
