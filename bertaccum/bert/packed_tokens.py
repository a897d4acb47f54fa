"""Tokens as numbers that hold a vocabulary ID, a segment and the start of a passage.

A token is the ID of its vocabulary entry plus, in the bits above, its segment (0 for the first text
of a pair, 1 for the second), and 1 if it starts another passage of its text. One array therefore
holds all three, in token stores and in windows.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_SEGMENT_BITS = 24
SEGMENT = 2**_SEGMENT_BITS
NEXT_PASSAGE = 2 * SEGMENT


def unpack(tokens: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the vocabulary IDs and the segments of tokens, with the shape of `tokens`, int32."""
    ids = tf.bitwise.bitwise_and(tokens, SEGMENT - 1)
    segments = tf.bitwise.bitwise_and(tf.bitwise.right_shift(tokens, _SEGMENT_BITS), 1)
    return ids, segments


def split_passages(tokens: tf.RaggedTensor) -> tf.RaggedTensor:
    """Return the passages [batch, (passages), (length)] of tokens [batch, (length)]."""
    is_start = tf.tensor_scatter_nd_update(
        tokens.values >= NEXT_PASSAGE, tokens.row_starts()[:, None], tf.fill([tokens.nrows()], True)
    )
    starts = tf.where(is_start)[:, 0]
    passages = tf.RaggedTensor.from_row_starts(tokens.values, starts, validate=False)
    of_text = tf.searchsorted(starts, tokens.row_splits, out_type=tf.int64)
    return tf.RaggedTensor.from_row_splits(passages, of_text, validate=False)


def example_shapes(token_ids: np.ndarray, row_splits: np.ndarray) -> np.ndarray:
    """Return each example's passages, and the tokens of its longest one, [examples, 2] int32."""
    starts = np.union1d(np.flatnonzero(token_ids >= NEXT_PASSAGE), row_splits[:-1])
    lengths = np.diff(starts, append=row_splits[-1])
    first = np.searchsorted(starts, row_splits[:-1])
    counts = np.diff(first, append=len(starts))
    return np.stack([counts, np.maximum.reduceat(lengths, first)], axis=1).astype(np.int32)
