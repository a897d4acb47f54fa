"""Tests of texts whose words get tags: their pieces, passages, and words of running text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bertaccum.bert.packed_tokens import split_passages, tags_of, unpack
from bertaccum.bert.tokenization import MAX_TAGS, TAG, Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.data.tokenizing import with_tags
from bertaccum.data.word_splitting import split_words
from data_prep.tables.words import SplitText, word_spans

WORDS = [*SPECIAL_TOKENS, "a", "##b", "##c", "d", ".", "##e"]


def tokens_of(text: str, length: int = 20, **options: Any) -> tf.RaggedTensor:
    tokenization = Tokenization(Vocabulary(WORDS), length, **{"words": "first"} | options)
    return Tokenizer(tokenization)(tf.constant([text]))


def pieces_and_tags(tokens: tf.RaggedTensor) -> tuple[list[str], list[int]]:
    ids, _ = unpack(tokens.flat_values)
    return [WORDS[n] for n in ids.numpy()], tags_of(tokens.flat_values).numpy().tolist()


def test_first_piece_of_each_word_is_read() -> None:
    pieces, tags = pieces_and_tags(tokens_of("abc . \ufffd d.a q"))
    assert pieces == ["[CLS]", "a", "##b", "##c", ".", "[UNK]", "d", ".", "a", "[UNK]", "[SEP]"]
    assert tags == [-1, 0, -1, -1, 0, 0, 0, -1, -1, 0, -1]


def test_ids_are_those_of_the_same_text_without_tags() -> None:
    text = "abc a.d . d"
    plain = tokens_of(text, words=None)
    np.testing.assert_array_equal(unpack(tokens_of(text).values)[0], unpack(plain.values)[0])


@pytest.mark.parametrize(("length", "stride"), [(7, None), (6, 1), (9, 5)])
def test_word_is_read_in_the_passage_where_it_has_the_most_context(
    length: int, stride: int | None
) -> None:
    words = 23
    tokens = tokens_of(" ".join(["a"] * words), length, passages=40, stride=stride)
    step = stride or -(-3 * (length - 2) // 4)
    found: list[int] = []
    for number, passage in enumerate(split_passages(tokens).to_list()[0]):
        for place, tag in enumerate(tags_of(tf.constant(passage)).numpy().tolist(), -1):
            if tag >= 0:
                found.append(number * step + place)
                contexts = {
                    other: min(found[-1] - other * step, other * step + length - 3 - found[-1])
                    for other in range(-(-max(words - length + 2, 0) // step) + 1)
                }
                assert contexts[number] == max(contexts.values())
    assert found == [*range(words)]


def test_tags_are_set_by_word() -> None:
    rows = [tokens_of("abc d", words="all"), tokens_of(""), tokens_of("a ab", words="all")]
    tokens = tf.concat(rows, axis=0)
    tags = np.array([[3, 1, -1], [-1, -1, -1], [MAX_TAGS - 1, 2, -1]])
    continued = np.arange(MAX_TAGS)
    continued[3] = 4
    values = with_tags(tokens.values.numpy(), tokens.row_splits.numpy(), tags, continued)
    found = tokens.with_values(tags_of(tf.constant(values))).to_list()
    last = MAX_TAGS - 1
    assert found == [[-1, 3, 4, 4, 1, -1], [-1, -1], [-1, last, 2, 2, -1]]
    assert (values % TAG == tokens.values.numpy() % TAG).all()


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def assert_splits_alike(texts: list[str]) -> None:
    words, starts, ends = (part.to_list() for part in split_words(tf.constant(texts)))
    for text, found, start, end in zip(texts, words, starts, ends, strict=True):
        spans = word_spans(text)
        assert [*zip(start, end, strict=True)] == spans, repr(text)
        assert [word.decode() for word in found] == [text[a:b] for a, b in spans]


def test_graphs_split_texts_as_python_does() -> None:
    characters = "ab .,($){}-'\n\t\u4e2d\u00a0\u2003\u200b\u00e9\u0301\U0001f600\U00020000"
    draw = random.Random(0)
    drawn = ["".join(draw.choices(characters, k=draw.randrange(12))) for _ in range(500)]
    assert_splits_alike(["", " ", "\u200b", *drawn])
    assert split_words(tf.constant([], tf.string))[0].to_list() == []


def test_graphs_split_odd_texts_as_python_does(shared: Path) -> None:
    golden = [json.loads((shared / f"golden/{n}.json").read_text()) for n in ("tokens", "pairs")]
    assert_splits_alike([text for text in strings(golden) if text.isprintable() or True])


def test_words_of_split_texts_keep_their_places() -> None:
    text = SplitText.of(["a b", "", "(c)"])
    assert [text[start:end] for start, end in word_spans(text)] == ["a\u00a0b", "\ufffd", "(c)"]
