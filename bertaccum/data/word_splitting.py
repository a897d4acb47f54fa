"""Splits texts into words as `data_prep.tables.words` does, with operations of TensorFlow."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import tensorflow as tf

from data_prep.tables.words import is_ideograph, is_punctuation


def split_words(texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
    """Return the words of texts, and where each starts and ends.

    Args:
      texts: Strings [batch].

    Returns:
      Three ragged tensors [batch, (words)]: the words as strings, and their start and end in
      characters, int64.
    """
    characters, bytes_before = tf.strings.unicode_decode_with_offsets(texts, "UTF-8")
    codes, rows = characters.flat_values, characters.value_rowids()
    place = tf.range(tf.size(codes, tf.int64), dtype=tf.int64)
    in_text = place - tf.gather(characters.row_starts(), rows)
    space, ideograph = _is_in(codes, "isspace"), _is_in(codes, "ideograph")
    core = ~space & ~_is_in(codes, "punctuation")
    after = tf.concat([[True], space[:-1] | ideograph[:-1]], 0)
    begins_chunk = ~space & (after | ideograph | (in_text == 0))
    chunk = tf.cumsum(tf.cast(begins_chunk, tf.int64))
    count, none = tf.size(codes, tf.int64) + 1, tf.constant(-1, tf.int64)
    first = tf.math.unsorted_segment_min(tf.where(core, place, place.dtype.max), chunk, count)
    last = tf.math.unsorted_segment_max(tf.where(core, place, none), chunk, count)
    begins = ~space & ((place <= tf.gather(first, chunk)) | (place > tf.gather(last, chunk)))
    starts = tf.boolean_mask(place, begins)
    word = tf.cumsum(tf.cast(begins, tf.int64)) - 1
    ends = 1 + tf.math.unsorted_segment_max(
        tf.where(space, none, place), tf.maximum(word, 0), tf.size(starts, tf.int64)
    )
    of_text = tf.gather(rows, starts)
    size = tf.concat([bytes_before.flat_values, [0]], 0)
    row_bytes = tf.cast(tf.strings.length(tf.gather(texts, of_text)), tf.int64)
    is_last = ends == tf.gather(characters.row_limits(), of_text)
    end_bytes = tf.where(is_last, row_bytes, tf.gather(size, ends))
    begin_bytes = tf.gather(size, starts)
    words = tf.strings.substr(tf.gather(texts, of_text), begin_bytes, end_bytes - begin_bytes)
    offset = tf.gather(characters.row_starts(), of_text)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(of_text), of_text, characters.nrows())
    split = functools.partial(tf.RaggedTensor.from_row_lengths, row_lengths=counts, validate=False)
    return split(words), split(starts - offset), split(ends - offset)


_KINDS: dict[str, Callable[[str], bool]] = {
    "isspace": str.isspace,
    "punctuation": is_punctuation,
    "ideograph": is_ideograph,
}


@functools.cache
def _borders(kind: str) -> list[int]:
    """Return the code points at which characters of a kind begin and end."""
    holds, result, before = _KINDS[kind], list[int](), False
    for code in range(sys.maxunicode + 1):
        if (now := holds(chr(code))) != before:
            result.append(code)
            before = now
    return result


def _is_in(codes: tf.Tensor, kind: str) -> tf.Tensor:
    borders = tf.constant(_borders(kind), tf.int32)
    return tf.searchsorted(borders, codes, side="right") % 2 == 1
