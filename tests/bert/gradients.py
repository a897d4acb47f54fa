"""Outputs and gradients, for comparing a faster layer with the original."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tf_keras


def output_and_gradients(
    model: tf_keras.Model, x: tf.Tensor, call: Callable[[tf.Tensor], tf.Tensor]
) -> list[np.ndarray]:
    """Return the output of `call`, and the gradients of inputs and weights, in float64."""

    @tf.function(autograph=False)
    def run(x: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
            loss = tf.reduce_sum(tf.sin(y))
        return y, tape.gradient(loss, [x, *model.trainable_variables])

    y, gradients = run(x)
    return [np.asarray(y, np.float64), *(np.asarray(g, np.float64) for g in gradients)]
