"""BERT's encoder: tf-models' `EncoderScaffold` with our embeddings and transformer layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf
import tf_keras
from official.nlp.modeling import layers, networks

from bertaccum.bert.dropout import ExampleDropout
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.layers import Activation, Initializer, LayerNorm, gelu, gelu_erf
from bertaccum.bert.transformer_layer import EPSILON, OutputTokens, TransformerLayer
from bertaccum.errors import ConfigError
from bertaccum.system.phrases import counted

ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "linear": tf.identity,
}
# Dropout sites of a classifier. Masks depend on these numbers, so they must never change.
_EMBEDDING_SITE, _FIRST_LAYER_SITE, _SITES_OF_LAYER = 0, 1, 3


def build_encoder(
    config: EncoderConfig,
    dropout: float = 0.0,
    output_tokens: OutputTokens = "all",
    initializer: Initializer | None = None,
) -> networks.EncoderScaffold:
    """Build a BERT encoder, from `encoder_inputs` to `sequence_output` and `pooled_output`.

    Args:
      output_tokens: Tokens that the last layer computes and `sequence_output` contains: "all",
        [batch, length, hidden]; the "first" one, [batch, 1, hidden], which is all that the pooled
        output needs; or those at given "positions", [batch, count, hidden]. The positions are
        another input, and the pooled output is that of the first of them.
      initializer: Function that returns an initializer of the kernels and embeddings; None for
        random weights, as `random_initializer` draws them.
    """
    last = config.num_hidden_layers - 1
    initializer = initializer or partial(random_initializer, config)
    return without_autograph(networks.EncoderScaffold)(
        pooled_output_dim=config.hidden_size,
        pooler_layer_initializer=initializer(),
        embedding_cls=_Embeddings(config, dropout, initializer, output_tokens == "positions"),
        num_hidden_instances=config.num_hidden_layers,
        hidden_cls=[
            TransformerLayer(
                config,
                dropout,
                first_site=_FIRST_LAYER_SITE + _SITES_OF_LAYER * number,
                output_tokens=output_tokens if number == last else "all",
                initializer=initializer,
                activation=ACTIVATIONS[config.hidden_act],
                name=f"transformer/layer_{number}",
            )
            for number in range(config.num_hidden_layers)
        ],
        dict_outputs=True,
        name="bert_encoder",
    )


def set_recompute(encoder: networks.EncoderScaffold, recompute: bool) -> None:
    """Turn recomputation in transformer layers on or off for functions traced after this call."""
    for layer in encoder.hidden_layers:
        layer.recompute = recompute


def freeze(encoder: networks.EncoderScaffold, train_layers: int | None, embeddings: bool) -> None:
    """Exclude weights of an encoder from training.

    Args:
      train_layers: Number of last transformer layers to train; None for all. If it is a number,
        the embeddings are frozen as well.
    """
    count = len(encoder.hidden_layers)
    if train_layers is not None and train_layers > count:
        raise ConfigError(
            f"`train_layers` is {train_layers}, but the model has {counted(count, 'layer')}",
            f"use at most {count}",
        )
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
    site = _FIRST_LAYER_SITE + _SITES_OF_LAYER * config.num_hidden_layers
    return ExampleDropout(rate, site, config.mask_width)


def checkpoint_name(name: str) -> str:
    """Return the name under which checkpoints store a variable.

    Only the pooler's name differs: tf-models calls the pooler `cls_transform` in
    `EncoderScaffold`, but `pooler_transform` in `BertEncoder` and its checkpoint converters. Our
    checkpoints use the second name.
    """
    return name.replace("cls_transform", "pooler_transform")


class _Embeddings:
    """BERT's embeddings, in the form that `EncoderScaffold` accepts as `embedding_cls`.

    This class is not a Keras layer. The layers that it creates therefore become layers of the
    encoder itself, with the same place in checkpoints as in tf-models' `BertEncoder`.
    """

    def __init__(
        self, config: EncoderConfig, dropout: float, initializer: Initializer, positions: bool
    ) -> None:
        self._config, self._dropout, self._initializer = config, dropout, initializer
        names = ["input_word_ids", "input_mask", "input_type_ids"]
        names += ["output_positions"] if positions else []
        self.inputs = [
            tf_keras.layers.Input(shape=(None,), dtype=tf.int32, name=name) for name in names
        ]

    def __call__(self, inputs: list[tf.Tensor]) -> tuple[tf.Tensor, Any]:
        """Return embeddings [batch, length, hidden] and what the transformer layers get with them.

        These are a mask [batch, length, length] and, if there are any, the positions.
        """
        word_ids, padding_mask, segment_ids, *positions = inputs
        config, width, initializer = self._config, self._config.hidden_size, self._initializer
        words = WordEmbedding(config.vocab_size, width, initializer(), name="word_embeddings")(
            word_ids
        )
        places = layers.PositionEmbedding(
            config.max_position_embeddings, initializer(), name="position_embedding"
        )(words)
        segments = layers.OnDeviceEmbedding(
            config.type_vocab_size, width, initializer(), use_one_hot=True, name="type_embeddings"
        )(segment_ids)
        embeddings = tf_keras.layers.Add()([words, places, segments])
        norm = LayerNorm(name="embeddings/layer_norm", epsilon=EPSILON, dtype=tf.float32)
        dropout = ExampleDropout(
            self._dropout, _EMBEDDING_SITE, config.mask_width, name="embeddings/dropout"
        )
        embeddings = dropout(norm(embeddings))
        mask = layers.SelfAttentionMask()(embeddings, padding_mask)
        return embeddings, [mask, *positions] if positions else mask


class WordEmbedding(tf_keras.layers.Layer):
    """An embedding layer with the weights and outputs of tf-models' `OnDeviceEmbedding`.

    A lookup directly in a variable marks the variable as sparse. From then on, TensorFlow copies
    the whole variable, the largest one in BERT, for every dense read and every optimizer step.
    Reading the variable first and looking up rows in the result copies nothing. The gradient
    still contains only the rows in use (IndexedSlices).
    """

    def __init__(
        self, words: int, width: int, initializer: tf_keras.initializers.Initializer, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._shape, self._initializer = (words, width), initializer

    def build(self, input_shape: tf.TensorShape) -> None:
        """Create the table without autocasting, because `call` casts only the rows in use."""
        self.embeddings = self.add_weight(
            "embeddings", self._shape, initializer=self._initializer, experimental_autocast=False
        )
        super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the embeddings [batch, length, width] of `inputs` [batch, length] int32."""
        return tf.cast(tf.gather(self.embeddings.read_value(), inputs), self.compute_dtype)
