"""Long texts become overlapping passages, and packed tokens give them back."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from bertaccum.bert.packed_tokens import example_shapes, split_passages, unpack
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary

WORDS = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(60))]
CLS, SEP = WORDS.index("[CLS]"), WORDS.index("[SEP]")
VOCABULARY = Vocabulary(WORDS)


def passages_by_hand(ids: list[int], room: int, stride: int, most: int) -> list[list[int]]:
    """Return the passages of a text that is not truncated, by an independent implementation."""
    found = [ids[:room]]
    while len(found) < most and (len(found) - 1) * stride + room < len(ids):
        found.append(ids[len(found) * stride :][:room])
    return [[CLS, *passage, SEP] for passage in found]


@pytest.mark.parametrize(
    ("length", "most", "stride"), [(8, 3, 4), (8, 3, 6), (5, 4, 1), (10, 2, None)]
)
@pytest.mark.parametrize("head_fraction", [1.0, 0.0, 0.25])
def test_passages_cover_a_text_and_overlap(
    length: int, most: int, stride: int | None, head_fraction: float
) -> None:
    room = length - 2
    step = stride or math.ceil(0.75 * room)
    capacity = room + (most - 1) * step
    texts, expected = [], []
    for count in range(capacity + 9):
        ids = [len(SPECIAL_TOKENS) + number % 60 for number in range(count)]
        texts.append(" ".join(WORDS[number] for number in ids))
        if count > capacity:
            head = math.ceil(head_fraction * capacity)
            ids = ids[:head] + ids[count - capacity + head :]
        expected.append(passages_by_hand(ids, room, step, most))
    tokenizer = Tokenizer(Tokenization(VOCABULARY, length, head_fraction, most, stride))
    tokens, lengths = tokenizer.with_lengths(tf.constant(texts))
    assert lengths.numpy().tolist() == [count + 2 for count in range(capacity + 9)]
    passages = split_passages(tokens)
    ids, segments = unpack(passages.flat_values)
    assert passages.with_flat_values(ids).to_list() == expected
    assert not segments.numpy().any()
    shapes = example_shapes(tokens.flat_values.numpy(), tokens.row_splits.numpy())
    assert shapes.tolist() == [[len(p), max(map(len, p))] for p in expected]
    assert shapes.max(axis=0).tolist() == [most, length]
    # A micro-batch is a slice of a window.
    some = split_passages(tokens[3:6])
    assert some.with_flat_values(unpack(some.flat_values)[0]).to_list() == expected[3:6]


def test_texts_of_one_passage_have_the_same_tokens_as_without_windows() -> None:
    texts = tf.constant(["", "w1", "w1 w2 w3 w4 w5 w6"])
    several, one = (
        Tokenizer(Tokenization(VOCABULARY, 8, passages=passages))(texts) for passages in (3, 1)
    )
    assert several.to_list() == one.to_list()


def test_shapes_of_no_examples_are_empty() -> None:
    assert example_shapes(np.zeros(0, np.int32), np.zeros(1, np.int64)).shape == (0, 2)
