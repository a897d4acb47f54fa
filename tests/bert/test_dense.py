"""Tests that projections by matrix products match tf_keras' einsum."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from gradients import output_and_gradients

from bertaccum.bert.layers import Projection


@pytest.mark.parametrize(
    ("equation", "bias_axes", "outputs", "inputs"),
    [
        ("...x,xy->...y", "y", (6,), [5]),
        ("abc,cde->abde", "de", (2, 3), [5]),
        ("abcd,cde->abe", "e", (6,), [2, 5]),
    ],
)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 1e-5)])
def test_values_and_gradients_match_keras(
    equation: str,
    bias_axes: str,
    outputs: tuple[int, ...],
    inputs: list[int],
    dtype: str,
    bound: float,
    training: bool,
) -> None:
    output_shape = outputs if "..." in equation else (None, *outputs)
    theirs = tf_keras.layers.EinsumDense(equation, output_shape, bias_axes=bias_axes, dtype=dtype)
    ours = Projection(outputs, tuple(inputs), dtype=dtype)
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=[3, 4, *inputs]), dtype)
    for layer, shape in ((ours, [12, prod(inputs)]), (theirs, x.shape)):
        layer.build(tf.TensorShape(shape))
    theirs.set_weights([rng.normal(size=weight.shape) for weight in theirs.weights])
    ours.set_weights(theirs.get_weights())

    def on_rows(x: tf.Tensor) -> tf.Tensor:
        found = ours(tf.reshape(x, [12, prod(inputs)]), training=training)
        return tf.reshape(found, [3, 4, *outputs])

    pairs = zip(
        output_and_gradients(ours, x, on_rows), output_and_gradients(theirs, x, theirs), strict=True
    )
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=0, atol=bound)
