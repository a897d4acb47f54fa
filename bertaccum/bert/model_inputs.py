"""The inputs of encoders, made from tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from bertaccum.bert.packed_tokens import unpack


@dataclass(frozen=True)
class PaddedTexts:
    """The passages of texts, padded to the same length.

    There may be more passages than the texts have, to fill up a shape: each of these is a text.
    """

    tokens: tf.Tensor  # Tokens of the passages, [passages, length] int32, 0 for padding.
    lengths: tf.Tensor  # Number of tokens of each passage, [passages] int32.
    texts: tf.Tensor  # Index of each passage's text, [passages] int32.
    numbers: tf.Tensor  # Number of each passage in its text, counted from 0, [passages] int32.


def encoder_inputs(
    token_ids: tf.Tensor, padding_mask: tf.Tensor, segments: tf.Tensor | None = None
) -> dict[str, Any]:
    """Return the encoder's inputs, each [batch, length] int32.

    Args:
      padding_mask: 1 for tokens and 0 for padding.
      segments: 1 for tokens of a pair's second text and 0 for all others; None for single texts.
    """
    return {
        "input_word_ids": token_ids,
        "input_mask": padding_mask,
        "input_type_ids": tf.zeros_like(token_ids) if segments is None else segments,
    }


def inputs_of_tokens(
    tokens: tf.RaggedTensor, multiple: int = 1, most: int | None = None
) -> dict[str, Any]:
    """Return the encoder's inputs for tokens that a `Tokenizer` returned.

    Args:
      multiple: The padded length is a multiple of this number,
      most: unless it would be greater than this number; None for no limit.
    """
    padded = tokens.to_tensor()  # padded with 0, which is masked
    if multiple > 1:
        more = -tf.shape(padded)[1] % multiple
        if most is not None:
            more = tf.minimum(more, most - tf.shape(padded)[1])
        padded = tf.pad(padded, [[0, 0], [0, more]])
    return inputs_of_padded(padded, tokens.row_lengths())


def inputs_of_padded(tokens: tf.Tensor, lengths: tf.Tensor) -> dict[str, Any]:
    """Return the encoder's inputs for `tokens` [batch, length] int32 and `lengths` [batch]."""
    token_ids, segments = unpack(tokens)
    padding_mask = tf.sequence_mask(lengths, tf.shape(tokens)[1], dtype=tf.int32)
    return encoder_inputs(token_ids, padding_mask, segments)
