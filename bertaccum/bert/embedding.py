"""The word embeddings, looked up in a way that leaves their memory alone."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras
from official.nlp.modeling import layers


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class WordEmbedding(layers.OnDeviceEmbedding):
    """tf-models-official's embedding, the same weights and outputs.

    A lookup straight from a variable tells TensorFlow that the variable is sparse: from then
    on every dense read and every optimizer step copies all of it, the largest of BERT's
    variables. Reading it first and looking up in what was read copies nothing, and the
    gradient is still one of the rows in use (IndexedSlices).
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """[batch, length] token ids to [batch, length, hidden]."""
        # Of a variable that mixed precision casts, the one inside: only rows are to be cast.
        variable: Any = getattr(self.embeddings, "_variable", self.embeddings)
        return tf.cast(tf.gather(variable.read_value(), inputs), self.compute_dtype)
