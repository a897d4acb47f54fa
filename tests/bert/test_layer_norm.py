"""Tests that layer normalization matches tf_keras."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from bertaccum.bert.layers import LayerNorm


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 3e-5)])
@pytest.mark.parametrize("epsilon", [1e-12, 0.1])
def test_values_and_gradients_match_keras(dtype: str, bound: float, epsilon: float) -> None:
    rng = np.random.default_rng(0)
    x = tf.constant(3 + 2 * rng.normal(size=(4, 5, 16)), dtype)
    upstream = tf.constant(rng.normal(size=(4, 5, 16)), dtype)
    weights = [rng.normal(size=16) for _ in ("gamma", "beta")]

    def outputs(layer: tf_keras.layers.Layer) -> list[np.ndarray]:
        layer.build(x.shape)
        layer.set_weights(weights)

        @tf.function
        def run() -> tuple[tf.Tensor, list[tf.Tensor]]:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
            sources = [x, *layer.trainable_variables]
            return y, tape.gradient(y, sources, output_gradients=upstream)

        y, gradients = run()
        return [y.numpy(), *(g.numpy() for g in gradients)]

    theirs = outputs(tf_keras.layers.LayerNormalization(epsilon=epsilon, dtype=dtype))
    ours = outputs(LayerNorm(epsilon=epsilon, dtype=dtype))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound)


def test_mixed_precision_computes_in_float32() -> None:
    x = 100 + tf.random.stateless_normal([8, 512], [0, 1])
    theirs = tf_keras.layers.LayerNormalization(dtype="mixed_bfloat16", epsilon=1e-12)(x)
    mine = LayerNorm(dtype="mixed_bfloat16", epsilon=1e-12)(x)
    assert mine.dtype == theirs.dtype == tf.bfloat16
    mine, theirs = tf.cast(mine, tf.float32), tf.cast(theirs, tf.float32)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=0.02)
