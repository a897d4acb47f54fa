"""The GELU against TensorFlow's own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bertaccum.bert.activations import gelu


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 2e-6)])
def test_values_and_gradients_are_those_of_the_formula(
    dtype: str, bound: float, traced: bool
) -> None:
    x = tf.constant(np.linspace(-12, 12, 2001), dtype)
    upstream = tf.constant(np.random.default_rng(0).normal(size=2001), dtype)

    def both(activation: object) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = activation(x)
        return y, tape.gradient(y, x, output_gradients=upstream)

    run = tf.function(both) if traced else both
    mine = run(gelu)
    # TensorFlow's own, with constants that are not rounded to float32 on the way.
    root, cube = (tf.constant(c, dtype) for c in (np.sqrt(2 / np.pi), 0.044715))
    theirs = run(lambda x: 0.5 * x * (1 + tf.tanh(root * (x + cube * x**3))))
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound * 12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_it_keeps_the_type(dtype: str) -> None:
    x = tf.constant([-3.0, 0.0, 3.0], dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gelu(x)
    assert (y.dtype, tape.gradient(y, x).dtype) == (x.dtype, x.dtype)
    np.testing.assert_allclose(tf.cast(y, tf.float32), [-0.0036, 0, 2.9964], atol=0.02)
