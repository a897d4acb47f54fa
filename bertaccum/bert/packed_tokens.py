"""Tokens as numbers that hold an ID, a segment, the start of a passage and a tag; their inputs.

A token is the ID of its vocabulary entry plus, in the bits above, its segment (0 for the first text
of a pair, 1 for the second), 1 if it starts another passage of its text, and, for token
classification, its tag counted from 1, or 0 if the head does not read it. One array therefore holds
all four, in token stores and in windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.bert.tokenization import ID_BITS, NEXT_PASSAGE, SEGMENT, TAG_BIT


def unpack(tokens: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the vocabulary IDs and the segments of tokens, with the shape of `tokens`, int32."""
    ids = tf.bitwise.bitwise_and(tokens, SEGMENT - 1)
    segments = tf.bitwise.bitwise_and(tf.bitwise.right_shift(tokens, ID_BITS), 1)
    return ids, segments


def starts_passage(tokens: Any) -> Any:
    """Return whether each token starts another passage of its text, for a tensor or an array."""
    return (tokens & NEXT_PASSAGE) != 0


def tags_of(tokens: tf.Tensor) -> tf.Tensor:
    """Return the tags of tokens from 0, int32; -1 for tokens that the head does not read."""
    return tf.bitwise.right_shift(tokens, TAG_BIT) - 1


def split_passages(tokens: tf.RaggedTensor) -> tf.RaggedTensor:
    """Return the passages [batch, (passages), (length)] of tokens [batch, (length)]."""
    is_start = tf.tensor_scatter_nd_update(
        starts_passage(tokens.values), tokens.row_starts()[:, None], tf.fill([tokens.nrows()], True)
    )
    starts = tf.where(is_start)[:, 0]
    passages = tf.RaggedTensor.from_row_starts(tokens.values, starts, validate=False)
    of_text = tf.searchsorted(starts, tokens.row_splits, out_type=tf.int64)
    return tf.RaggedTensor.from_row_splits(passages, of_text, validate=False)


def example_shapes(token_ids: np.ndarray, row_splits: np.ndarray) -> np.ndarray:
    """Return each example's passages, and the tokens of its longest one, [examples, 2] int32."""
    starts = np.union1d(np.flatnonzero(starts_passage(token_ids)), row_splits[:-1])
    lengths = np.diff(starts, append=row_splits[-1])
    first = np.searchsorted(starts, row_splits[:-1])
    counts = np.diff(first, append=len(starts))
    return np.stack([counts, np.maximum.reduceat(lengths, first)], axis=1).astype(np.int32)


@dataclass(frozen=True)
class PaddedTexts:
    """The passages of texts, padded to the same length.

    There may be more passages than the texts have, to fill up a shape: each of these is a text.
    """

    tokens: tf.Tensor  # Tokens of the passages, [passages, length] int32, 0 for padding.
    lengths: tf.Tensor  # Number of tokens of each passage, [passages] int32.
    texts: tf.Tensor  # Index of each passage's text, [passages] int32.
    numbers: tf.Tensor  # Number of each passage in its text, counted from 0, [passages] int32.
    # Positions of the tokens that the head reads, and after them of others to fill up the rows,
    # [passages, count] int32; None for a head that reads the pooled output.
    read: tf.Tensor | None = None


def encoder_inputs(
    token_ids: tf.Tensor,
    padding_mask: tf.Tensor,
    segments: tf.Tensor | None = None,
    positions: tf.Tensor | None = None,
) -> dict[str, Any]:
    """Return the encoder's inputs, each [batch, length] int32.

    Args:
      padding_mask: 1 for tokens and 0 for padding.
      segments: 1 for tokens of a pair's second text and 0 for all others; None for single texts.
      positions: Positions that the last layer computes, [batch, count] int32, for an encoder whose
        `output_tokens` are "positions".
    """
    inputs = {
        "input_word_ids": token_ids,
        "input_mask": padding_mask,
        "input_type_ids": tf.zeros_like(token_ids) if segments is None else segments,
    }
    return inputs if positions is None else inputs | {"output_positions": positions}


def first_positions(chosen: tf.Tensor, count: Any) -> tf.Tensor:
    """Return the positions of chosen tokens, followed by those of others, [batch, count] int32.

    A token's index in its row depends neither on the other rows nor on `count`, so dropout masks do
    not either.

    Args:
      chosen: Whether a token is chosen, booleans [batch, length].
      count: Number of positions, at least that of the chosen tokens of any row.
    """
    return tf.argsort(tf.cast(~chosen, tf.int32), stable=True)[:, :count]


def inputs_of_tokens(
    tokens: tf.RaggedTensor,
    multiple: int = 1,
    most: int | None = None,
    positions: tf.Tensor | None = None,
) -> dict[str, Any]:
    """Return the encoder's inputs for tokens that a `Tokenizer` returned.

    Args:
      multiple: The padded length is a multiple of this number,
      most: unless it would be greater than this number; None for no limit.
      positions: As for `encoder_inputs`.
    """
    padded = tokens.to_tensor()  # padded with 0, which is masked
    if multiple > 1:
        more = -tf.shape(padded)[1] % multiple
        if most is not None:
            more = tf.minimum(more, most - tf.shape(padded)[1])
        padded = tf.pad(padded, [[0, 0], [0, more]])
    return inputs_of_padded(padded, tokens.row_lengths(), positions)


def inputs_of_padded(
    tokens: tf.Tensor, lengths: tf.Tensor, positions: tf.Tensor | None = None
) -> dict[str, Any]:
    """Return the encoder's inputs for `tokens` [batch, length] int32 and `lengths` [batch].

    `positions` are those of `encoder_inputs`.
    """
    token_ids, segments = unpack(tokens)
    padding_mask = tf.sequence_mask(lengths, tf.shape(tokens)[1], dtype=tf.int32)
    return encoder_inputs(token_ids, padding_mask, segments, positions)
