"""Low-rank adapters: small matrices whose product is added to a frozen kernel.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from bertaccum.bert.dropout import ExampleDropout, present_masks


class LowRank(tf_keras.layers.Layer):
    """A layer that maps rows [rows, inputs] to `scale` x A B, without a bias.

    Args:
      shape: Numbers of inputs and of outputs.
      rank: Number of columns of A and of rows of B.
      scale: Factor of the outputs.
      dropout: Dropout of the inputs.
      seed: Seed of the initial A, two integers.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        rank: int,
        scale: float,
        dropout: ExampleDropout,
        seed: tuple[int, int],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._shape, self._rank, self.scale = shape, rank, scale
        self._dropout, self._seed = dropout, seed

    def build(self, _: Any = None) -> None:
        """Create A [inputs, rank], drawn as in peft, and B [rank, outputs], which is zero."""
        inputs, outputs = self._shape
        bound = 1 / math.sqrt(inputs)  # Kaiming's uniform distribution for a slope of sqrt(5).
        # The layer has its own generator, so that other initial weights do not depend on it.
        drawn = np.random.default_rng(self._seed).uniform(-bound, bound, [inputs, self._rank])
        initial = tf_keras.initializers.Constant(drawn)
        self.lora_a = self.add_weight("lora_a", drawn.shape, initializer=initial)
        self.lora_b = self.add_weight("lora_b", [self._rank, outputs], initializer="zeros")
        super().build(_)

    def call(self, rows: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Return the outputs [rows, outputs]."""
        if training and self._dropout.rate:
            rows = self._dropped(rows)
        inner = tf.matmul(rows, tf.convert_to_tensor(self.lora_a)) * tf.cast(self.scale, rows.dtype)
        return tf.matmul(inner, tf.convert_to_tensor(self.lora_b))

    def _dropped(self, rows: tf.Tensor) -> tf.Tensor:
        """Apply dropout to rows [examples x length, inputs]."""
        masks, inputs = present_masks(), self._shape[0]
        assert masks is not None
        # A mask may be narrower than the rows, which are then cut into parts of equal width.
        parts = math.ceil(inputs / self._dropout.width)
        width = math.ceil(inputs / parts)
        padded = tf.pad(rows, [[0, 0], [0, parts * width - inputs]])
        cut = tf.reshape(padded, [tf.shape(masks.offsets)[0], -1, parts, width])
        cut = tf.reshape(self._dropout(cut, training=True), [-1, parts * width])
        return cut[:, :inputs]

    def product(self) -> np.ndarray:
        """Return `scale` x A B, [inputs, outputs] float32."""
        return np.float32(self.scale) * (self.lora_a.numpy() @ self.lora_b.numpy())
