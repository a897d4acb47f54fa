"""The classifier as a TensorFlow SavedModel: from text to labels, its tokenizer inside."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf
import tf_keras

from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.tasks.classification import classify


def save_serving(
    model: tf_keras.Model, tokenizer: Tokenizer, names: list[str], folder: Path
) -> None:
    """Writes a SavedModel that plain TensorFlow loads, with tensorflow-text for its ops.

    Its signature `serving_default` takes `text` [batch] strings and gives `logits` and
    `probabilities` [batch, classes] float32, and `label` [batch] strings.

    Args:
      model: a classifier of `encoder_inputs`.
      tokenizer: what it was trained with.
      names: of the classes, by number.
      folder: where to write.
    """
    # Of the model only the weights: Keras would write functions of each layer, too.
    module = tf.Module()
    module.weights = list(model.weights)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def serve(text: tf.Tensor) -> dict[str, tf.Tensor]:
        logits = classify(model, tokenizer(text), training=False)
        return {
            "logits": logits,
            "probabilities": tf.nn.softmax(logits),
            "label": tf.gather(tf.constant(names), tf.argmax(logits, axis=-1)),
        }

    module.serve = serve
    # It is for answers; the layers' own gradients need not be told.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    signatures = {tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: serve}
    tf.saved_model.save(module, str(folder), signatures=signatures, options=options)
