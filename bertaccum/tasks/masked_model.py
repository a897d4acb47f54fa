"""The model of masked language modelling: an encoder and a head that shares its word embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.bert import encoder as bert_encoder
from bertaccum.bert.encoder import Initializer
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.layers import LayerNorm, Projection, rows_of, sizes_of
from bertaccum.bert.packed_tokens import PaddedTexts, inputs_of_padded, inputs_of_tokens

# Name of the head, as in Google's checkpoints.
MASKED_HEAD = "cls/predictions"


class VocabularyHead(tf_keras.layers.Layer):
    """A layer that maps outputs of the encoder to vectors, and vectors to logits of all entries.

    It has the weights of google-research/bert's `get_masked_lm_output`: a dense layer, a
    normalization, and a bias for each entry. The matrix of the logits is the encoder's embedding of
    words, and both uses contribute to its gradient.

    Args:
      table: Returns the word embeddings [entries, width].
    """

    def __init__(
        self, config: EncoderConfig, table: Callable[[], tf.Variable], initialize: Initializer
    ) -> None:
        super().__init__(name=MASKED_HEAD)
        self._table, self._entries = table, config.vocab_size
        self._activation = bert_encoder.ACTIVATIONS[
            config.family.masked_activation or config.hidden_act
        ]
        width, epsilon = config.embedding_width, config.layer_norm_eps
        self.dense = Projection((width,), None, initialize(), name="transform/dense")
        self.norm = LayerNorm(name="transform/LayerNorm", epsilon=epsilon, dtype=tf.float32)

    def build(self, input_shape: tf.TensorShape) -> None:
        """Create the bias of the logits."""
        self.bias = self.add_weight("output_bias/bias", [self._entries], initializer="zeros")
        super().build(input_shape)

    def call(self, outputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Return vectors [batch, positions, width] for outputs [batch, positions, hidden]."""
        rows = self.dense(rows_of(outputs), training, self._activation)
        batch, positions, _ = sizes_of(outputs)
        return tf.reshape(self.norm(rows), [batch, positions, rows.shape[-1]])

    def logits(self, vectors: tf.Tensor) -> tf.Tensor:
        """Return the logits [rows, entries] float32 of vectors [rows, width]."""
        return _logits(*self._factors(vectors))

    def losses(self, vectors: tf.Tensor, entries: tf.Tensor) -> tf.Tensor:
        """Return the losses [rows] float32 of vectors [rows, width] for entries [rows]."""
        return _losses(*self._factors(vectors), entries)

    def _factors(self, vectors: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        table = tf.cast(self._table().read_value(), self.compute_dtype)
        return tf.cast(vectors, self.compute_dtype), table, tf.cast(self.bias, tf.float32)


class MaskedLanguageModel(tf_keras.Model):
    """A model that maps the result of `encoder_inputs` to vectors [batch, positions, width]."""

    def __init__(
        self,
        encoder: bert_encoder.Encoder,
        config: EncoderConfig,
        initializer: Initializer | None = None,
    ) -> None:
        initialize = initializer or (lambda: bert_encoder.random_initializer(config))
        words = encoder.get_layer("word_embeddings")
        # A function, because an attribute that is a variable would be a weight of the head.
        head = VocabularyHead(config, lambda: words.embeddings, initialize)
        encoder.get_layer(bert_encoder.POOLER).trainable = False  # No output depends on the pooler.
        outputs = head(encoder(encoder.inputs)["sequence_output"])
        super().__init__(inputs=encoder.inputs, outputs=outputs)

    @property
    def checkpoint_items(self) -> dict[str, Any]:
        """The encoder, as in tf-models' `BertClassifier`."""
        return {"encoder": next(layer for layer in self.layers if hasattr(layer, "hidden_layers"))}

    @property
    def head(self) -> VocabularyHead:
        """The head."""
        return self.get_layer(MASKED_HEAD)

    def masked_losses(self, texts: PaddedTexts, labels: tf.Tensor) -> tf.Tensor:
        """Return the mean loss of the masked tokens of each sequence in training, [rows] float32.

        Args:
          labels: Labels [rows, masked, 2], as in `MaskedLM`.
        """
        inputs = inputs_of_padded(texts.tokens, texts.lengths, labels[..., 0])
        vectors = rows_of(self(inputs, training=True))
        losses = self.head.losses(vectors, tf.reshape(labels[..., 1], [-1]))
        losses = tf.reshape(losses, tf.shape(labels)[:2])
        read = tf.cast(labels[..., 0] > 0, tf.float32)
        return tf.math.divide_no_nan(
            tf.reduce_sum(losses * read, axis=1), tf.reduce_sum(read, axis=1)
        )

    def evaluated(self, tokens: tf.RaggedTensor, labels: tf.Tensor) -> tf.Tensor:
        """Return the loss of each masked token, and 1 if the model predicts it, else 0.

        Returns:
          Floats [batch, masked, 2] without dropout; those of places that fill up have no meaning.
        """
        vectors = self(inputs_of_tokens(tokens, positions=labels[..., 0]), training=False)
        losses, logits = self._of_tokens(vectors, labels)
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        correct = tf.cast(tf.reshape(best, tf.shape(losses)) == labels[..., 1], tf.float32)
        return tf.stack([losses, correct], axis=-1)

    def fillers(
        self, tokens: tf.RaggedTensor, places: tf.Tensor, count: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the most probable entries for masked tokens, and their probabilities.

        Args:
          places: Places of the masked tokens, [batch, masked] int32.
          count: Number of entries for each.

        Returns:
          IDs [batch, masked, count] int32, the most probable first, and floats of the same shape.
        """
        vectors = self(inputs_of_tokens(tokens, positions=places), training=False)
        probabilities = tf.nn.softmax(self.head.logits(rows_of(vectors)))
        best, entries = tf.math.top_k(probabilities, count)
        shape = tf.concat([tf.shape(places), [count]], axis=0)
        return tf.reshape(entries, shape), tf.reshape(best, shape)

    def _of_tokens(self, vectors: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the losses [batch, masked] and the logits [batch x masked, entries]."""
        logits = self.head.logits(rows_of(vectors))
        ids = tf.reshape(labels[..., 1], [-1])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits)
        return tf.reshape(losses, tf.shape(labels)[:2]), logits


def _logits(vectors: tf.Tensor, table: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.matmul(vectors, table, transpose_b=True), tf.float32) + bias


@tf.custom_gradient
def _losses(
    vectors: tf.Tensor, table: tf.Tensor, bias: tf.Tensor, entries: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor | None, ...]]]:
    """Return the losses [rows] of logits.

    TensorFlow's own function keeps four arrays of the size of the logits if operations are
    deterministic. Here, each operation can write over its input.
    """
    logits = _logits(vectors, table, bias)
    logits -= tf.reduce_max(logits, axis=1, keepdims=True)
    places = tf.stack([tf.range(tf.size(entries)), entries], axis=1)
    wanted = tf.gather_nd(logits, places)
    with tf.control_dependencies([wanted]):
        exponentials = tf.exp(logits)
    sums = tf.reduce_sum(exponentials, axis=1)

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
        with tf.control_dependencies([sums]):  # Not before the logits.
            right = tf.one_hot(entries, table.shape[0])
        slopes = exponentials * (upstream / sums)[:, tf.newaxis]
        slopes -= right * upstream[:, tf.newaxis]
        factors = tf.cast(slopes, table.dtype)
        of_table = tf.matmul(factors, vectors, transpose_a=True)
        of_bias = tf.reduce_sum(slopes, axis=0)
        # The backward pass of the encoder starts when the slopes are no longer needed.
        with tf.control_dependencies([of_table, of_bias]):
            return tf.matmul(factors, table), of_table, of_bias, None

    return tf.math.log(sums) - wanted, gradient


def build_masked_model(
    encoder: bert_encoder.Encoder, config: EncoderConfig, initializer: Initializer | None = None
) -> MaskedLanguageModel:
    """Build a model with a head on the encoder's outputs at positions, as `build_tagger` does."""
    return bert_encoder.without_autograph(MaskedLanguageModel)(encoder, config, initializer)
