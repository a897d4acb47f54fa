"""The encoder of BERT and its relatives: embeddings, transformer layers and pooler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf
import tf_keras
from official.nlp.modeling import layers

from bertaccum.bert.dropout import ExampleDropout
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.layers import (
    Activation,
    Initializer,
    LayerNorm,
    Projection,
    gelu,
    gelu_erf,
    rows_of,
    sizes_of,
)
from bertaccum.bert.transformer_layer import OutputTokens, TransformerLayer

ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "linear": tf.identity,
}
# Name of the pooler in an encoder.
POOLER = "pooler_transform"
# Dropout sites of a classifier. Masks depend on these numbers, so they must never change.
_EMBEDDING_SITE, _FIRST_LAYER_SITE, _SITES_OF_LAYER = 0, 1, 3


@dataclass(frozen=True)
class Frozen:
    """The weights of an encoder that are never trained, and how their kernels are stored.

    Args:
      layers: Number of the first transformer layers whose kernels are frozen.
      embeddings: Whether the embeddings are.
      dtype: Dtype of frozen kernels and word embeddings; None for that of other weights.
    """

    layers: int = 0
    embeddings: bool = False
    dtype: str | None = None


class Encoder(tf_keras.Model):
    """An encoder that maps the result of `encoder_inputs` to hidden states.

    Its outputs are `sequence_output` and `pooled_output`, [batch, hidden]. The layers have the same
    place in checkpoints as in tf-models' `BertEncoder`.

    Args:
      config: Dimensions.
      dropout: Dropout rate.
      output_tokens: Tokens that the last layer computes and `sequence_output` contains: "all",
        [batch, length, hidden]; the "first" one, [batch, 1, hidden], which is all that the pooled
        output needs; or those at given "positions", [batch, count, hidden]. The positions are
        another input, and the pooled output is that of the first of them.
      initializer: Function that returns an initializer of the kernels and embeddings; None for
        random weights, as `random_initializer` draws them.
      frozen: Weights that are never trained.
    """

    def __init__(
        self,
        config: EncoderConfig,
        dropout: float = 0.0,
        output_tokens: OutputTokens = "all",
        initializer: Initializer | None = None,
        frozen: Frozen | None = None,
    ) -> None:
        frozen = frozen or Frozen()
        initializer = initializer or partial(random_initializer, config)
        names = ["input_word_ids", "input_mask", "input_type_ids"]
        names += ["output_positions"] if output_tokens == "positions" else []
        inputs = [tf_keras.layers.Input([None], dtype=tf.int32, name=name) for name in names]
        word_ids, padding_mask, segment_ids, *positions = inputs
        stored = frozen.dtype if frozen.embeddings else None
        hidden = _embeddings(config, dropout, initializer, word_ids, segment_ids, stored)
        mask = layers.SelfAttentionMask()(hidden, padding_mask)
        last = config.num_hidden_layers - 1
        hidden_layers = [
            TransformerLayer(
                config,
                dropout,
                first_site=_FIRST_LAYER_SITE + _SITES_OF_LAYER * number,
                output_tokens=output_tokens if number == last else "all",
                initializer=initializer,
                activation=ACTIVATIONS[config.hidden_act],
                kernel_dtype=frozen.dtype if number < frozen.layers else None,
                name=f"transformer/layer_{number}",
            )
            for number in range(config.num_hidden_layers)
        ]
        for layer in hidden_layers:
            hidden = layer([hidden, [mask, *positions] if positions else mask])
        first, family = hidden[:, 0, :], config.family
        if family.drops_first:
            first = ExampleDropout(dropout, _head_site(config) + 1, config.mask_width)(first)
        pooler = tf_keras.layers.Dense(
            config.hidden_size,
            activation=ACTIVATIONS[family.pooler],
            kernel_initializer=initializer(),
            name=POOLER,
        )
        outputs = {"sequence_output": hidden, "pooled_output": pooler(first)}
        super().__init__(inputs, outputs, name="bert_encoder")
        self.config, self.hidden_layers = config, hidden_layers


def _embeddings(
    config: EncoderConfig,
    dropout: float,
    initializer: Initializer,
    word_ids: tf.Tensor,
    segment_ids: tf.Tensor,
    stored: str | None,
) -> tf.Tensor:
    """Return the embeddings [batch, length, hidden] of tokens, given as [batch, length].

    Args:
      stored: Dtype of the largest weights if they are never trained, else None.
    """
    width = config.embedding_width
    table = WordEmbedding(config.vocab_size, width, initializer(), stored, name="word_embeddings")
    words = table(word_ids)
    places = layers.PositionEmbedding(
        config.max_position_embeddings, initializer(), name="position_embedding"
    )(words)
    parts = [words, places]
    if types := config.type_vocab_size:
        segments = layers.OnDeviceEmbedding(
            types, width, initializer(), use_one_hot=True, name="type_embeddings"
        )
        # With a single segment, it is that of all tokens, as in transformers.
        parts.append(segments(tf.zeros_like(segment_ids) if types == 1 else segment_ids))
    embeddings = tf_keras.layers.Add()(parts)
    norm = LayerNorm(name="embeddings/layer_norm", epsilon=config.layer_norm_eps, dtype=tf.float32)
    dropped = ExampleDropout(dropout, _EMBEDDING_SITE, config.mask_width, name="embeddings/dropout")
    embeddings = dropped(norm(embeddings))
    if config.embedding_size is None:
        return embeddings
    name = "embedding_projection"
    projection = Projection((config.hidden_size,), None, initializer(), stored, name=name)
    batch, length, _ = sizes_of(embeddings)
    return tf.reshape(projection(rows_of(embeddings)), [batch, length, config.hidden_size])


def build_encoder(
    config: EncoderConfig,
    dropout: float = 0.0,
    output_tokens: OutputTokens = "all",
    initializer: Initializer | None = None,
    frozen: Frozen | None = None,
) -> Encoder:
    """Build an `Encoder`."""
    return without_autograph(Encoder)(config, dropout, output_tokens, initializer, frozen)


def set_recompute(encoder: Encoder, recompute: bool) -> None:
    """Turn recomputation in transformer layers on or off for functions traced after this call."""
    for layer in encoder.hidden_layers:
        layer.recompute = recompute


def freeze(encoder: Encoder, train_layers: int | None, embeddings: bool) -> None:
    """Exclude weights of an encoder from training.

    Args:
      train_layers: Number of last transformer layers to train; None for all. If it is a number,
        the embeddings are frozen as well.
    """
    count = len(encoder.hidden_layers)
    frozen = [] if train_layers is None else encoder.hidden_layers[: count - train_layers]
    if embeddings or train_layers is not None:
        frozen = [*frozen, *(layer for layer in encoder.layers if "embedding" in layer.name)]
    for layer in frozen:
        layer.trainable = False


def random_initializer(config: EncoderConfig) -> tf_keras.initializers.Initializer:
    """Return a new initializer (truncated normal, drawn from the global seed) for a weight."""
    return tf_keras.initializers.TruncatedNormal(stddev=config.initializer_range)


def without_autograph(build: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that builds a model without AutoGraph.

    AutoGraph would convert the source of every layer, which takes half of the time to build a
    BERT. None of our layers has a loop or condition that depends on a tensor.
    """
    return tf.autograph.experimental.do_not_convert(build)


def head_dropout(config: EncoderConfig, rate: float) -> ExampleDropout:
    """Return the dropout layer of a classifier's head."""
    return ExampleDropout(rate, _head_site(config), config.mask_width)


def _head_site(config: EncoderConfig) -> int:
    return _FIRST_LAYER_SITE + _SITES_OF_LAYER * config.num_hidden_layers


class WordEmbedding(tf_keras.layers.Layer):
    """An embedding layer with the weights and outputs of tf-models' `OnDeviceEmbedding`.

    A lookup directly in a variable marks the variable as sparse. From then on, TensorFlow copies
    the whole variable, the largest one in BERT, for every dense read and every optimizer step.
    Reading the variable first and looking up rows in the result copies nothing. The gradient
    still contains only the rows in use (IndexedSlices).
    """

    def __init__(
        self,
        words: int,
        width: int,
        initializer: tf_keras.initializers.Initializer,
        stored: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._shape, self._initializer, self._stored = (words, width), initializer, stored

    def build(self, input_shape: tf.TensorShape) -> None:
        """Create the table without autocasting, because `call` casts only the rows in use."""
        self.embeddings = self.add_weight(
            "embeddings", self._shape, self._stored, self._initializer, experimental_autocast=False
        )
        super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the embeddings [batch, length, width] of `inputs` [batch, length] int32."""
        return tf.cast(tf.gather(self.embeddings.read_value(), inputs), self.compute_dtype)
