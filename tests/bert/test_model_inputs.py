"""Padding of tokens to lengths that are multiples of a number."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bertaccum.bert.packed_tokens import inputs_of_tokens
from bertaccum.bert.precision import length_multiple
from bertaccum.bert.tokenization import SEGMENT


@pytest.mark.parametrize(
    ("multiple", "most", "length"),
    [(1, None, 9), (8, None, 16), (8, 32, 16), (8, 12, 12), (3, 9, 9)],
)
def test_lengths_are_padded_to_a_multiple(multiple: int, most: int | None, length: int) -> None:
    tokens = tf.ragged.constant([[5, 6 + SEGMENT], [7] * 9], dtype=tf.int32)
    found = inputs_of_tokens(tokens, multiple, most)
    assert {name: value.shape for name, value in found.items()} == dict.fromkeys(found, (2, length))
    np.testing.assert_array_equal(found["input_mask"].numpy().sum(axis=1), [2, 9])
    np.testing.assert_array_equal(found["input_word_ids"][0, :3], [5, 6, 0])
    np.testing.assert_array_equal(found["input_type_ids"][0, :3], [0, 1, 0])


def test_only_16_bits_need_a_multiple() -> None:
    names = ("float32", "float64", "mixed_bfloat16", "bfloat16", "mixed_float16", "float16")
    assert [length_multiple(name) for name in names] == [1, 1, 8, 8, 8, 8]
