"""Tests that both GELUs match their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bertaccum.bert.layers import Activation, for_inference, gelu, gelu_erf


def by_tanh(x: tf.Tensor) -> tf.Tensor:
    # TensorFlow's formula, without rounding the constants to float32.
    root, cube = (tf.constant(c, x.dtype) for c in (np.sqrt(2 / np.pi), 0.044715))
    return 0.5 * x * (1 + tf.tanh(root * (x + cube * x**3)))


def by_erf(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * x * (1 + tf.math.erf(x / tf.constant(np.sqrt(2), x.dtype)))


BOTH = [(gelu, by_tanh), (gelu_erf, by_erf)]


@pytest.mark.parametrize(("activation", "formula"), BOTH)
@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 2e-6)])
def test_values_and_gradients_match_the_formula(
    activation: Activation, formula: Activation, dtype: str, bound: float, traced: bool
) -> None:
    x = tf.constant(np.linspace(-12, 12, 2001), dtype)
    upstream = tf.constant(np.random.default_rng(0).normal(size=2001), dtype)

    def both(activation: Activation) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = activation(x)
        return y, tape.gradient(y, x, output_gradients=upstream)

    run = tf.function(both) if traced else both
    for one, other in zip(run(activation), run(formula), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound * 12)


@pytest.mark.parametrize("activation", [gelu, gelu_erf, tf.tanh])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_inference_computes_the_same_values(activation: Activation, dtype: str) -> None:
    x = tf.constant(np.linspace(-12, 12, 2001), dtype)
    one, other = (tf.cast(f(x), tf.float64) for f in (activation, for_inference(activation)))
    np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 if dtype == "float32" else 0)


@pytest.mark.parametrize("activation", [gelu, gelu_erf])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_value_and_gradient_keep_the_input_type(activation: Activation, dtype: str) -> None:
    x = tf.constant([-3.0, 0.0, 3.0], dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = activation(x)
    assert (y.dtype, tape.gradient(y, x).dtype) == (x.dtype, x.dtype)
    np.testing.assert_allclose(tf.cast(y, tf.float32), [-0.0036, 0, 2.9964], atol=0.02)
