"""Layer normalization against that of tf_keras."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from bertaccum.bert.layer_norm import simplify_norms


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 3e-5)])
@pytest.mark.parametrize("epsilon", [1e-12, 0.1])
def test_values_and_gradients_are_those_of_keras(dtype: str, bound: float, epsilon: float) -> None:
    rng = np.random.default_rng(0)
    model = tf_keras.Sequential(
        [tf_keras.Input([5, 16]), tf_keras.layers.LayerNormalization(epsilon=epsilon, dtype=dtype)]
    )
    for weight in model.trainable_variables:
        weight.assign(rng.normal(size=weight.shape))
    x = tf.constant(3 + 2 * rng.normal(size=(4, 5, 16)), dtype)
    upstream = tf.constant(rng.normal(size=(4, 5, 16)), dtype)

    def outputs() -> list[np.ndarray]:
        @tf.function
        def run() -> tuple[tf.Tensor, list[tf.Tensor]]:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = model(x)
            sources = [x, *model.trainable_variables]
            return y, tape.gradient(y, sources, output_gradients=upstream)

        y, gradients = run()
        return [y.numpy(), *(g.numpy() for g in gradients)]

    theirs = outputs()
    simplify_norms(model)
    for one, other in zip(outputs(), theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound)


def test_in_mixed_precision_it_is_computed_in_float32() -> None:
    layer = tf_keras.layers.LayerNormalization(dtype="mixed_bfloat16", epsilon=1e-12)
    model = tf_keras.Sequential([tf_keras.Input([512]), layer])
    x = 100 + tf.random.stateless_normal([8, 512], [0, 1])
    theirs = tf.cast(model(x), tf.float32)
    simplify_norms(model)
    mine = model(x)
    assert mine.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(mine, tf.float32), theirs, rtol=0, atol=0.02)
