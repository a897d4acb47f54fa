"""The model: tf-models-official's BERT encoder and classifier, built from our configuration."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras
from official.nlp.modeling import networks

from bertaccum.bert.activations import gelu, gelu_erf
from bertaccum.bert.attention import simplify_attention
from bertaccum.bert.dense import simplify_dense
from bertaccum.bert.embedding import WordEmbedding
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.layer_norm import simplify_norms

_ACTIVATIONS = {
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "linear": tf.identity,
}


def build_encoder(
    config: EncoderConfig, dropout: float = 0.0, first_token_only: bool = False
) -> networks.BertEncoder:
    """A BERT encoder with random weights (truncated normal, drawn from the global seed).

    Args:
      config: its dimensions.
      dropout: rate for embeddings, attention and layer outputs alike.
      first_token_only: the last layer computes no more than the pooled output is made of,
        which is the same: its other tokens are only looked at.

    Returns:
      A model of `encoder_inputs` with `sequence_output` [batch, length or 1, hidden] and
      `pooled_output` [batch, hidden].
    """
    encoder = networks.BertEncoder(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        max_sequence_length=config.max_position_embeddings,
        type_vocab_size=config.type_vocab_size,
        inner_dim=config.intermediate_size,
        inner_activation=_ACTIVATIONS[config.hidden_act],
        output_dropout=dropout,
        attention_dropout=dropout,
        initializer=initializer(config),
        embedding_layer=WordEmbedding(
            vocab_size=config.vocab_size,
            embedding_width=config.hidden_size,
            initializer=initializer(config),
            name="word_embeddings",
        ),
        output_range=1 if first_token_only else None,
        dict_outputs=True,
    )
    simplify_dense(encoder)
    simplify_attention(encoder)
    simplify_norms(encoder)
    _activate_in_compute_type(encoder)
    return encoder


def encoder_inputs(token_ids: tf.Tensor, padding_mask: tf.Tensor) -> dict[str, Any]:
    """The encoder's inputs for single texts: every token in segment 0.

    Args:
      token_ids: [batch, length] int32.
      padding_mask: [batch, length] int32, 1 for tokens and 0 for padding.
    """
    return {
        "input_word_ids": token_ids,
        "input_mask": padding_mask,
        "input_type_ids": tf.zeros_like(token_ids),
    }


def _activate_in_compute_type(encoder: networks.BertEncoder) -> None:
    """tf-models-official's bfloat16 activations are float32; `gelu` sees to that itself."""
    for layer in encoder.transformer_layers:
        layer._intermediate_activation_layer._autocast = False


def initializer(config: EncoderConfig) -> tf_keras.initializers.Initializer:
    return tf_keras.initializers.TruncatedNormal(stddev=config.initializer_range)
