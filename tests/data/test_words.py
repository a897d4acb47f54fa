"""Tests of texts whose words get tags: their pieces, passages, and words of running text."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bertaccum.bert.packed_tokens import split_passages, tags_of, unpack
from bertaccum.bert.tokenization import MAX_TAGS, TAG, Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.tokenizer_files import read_tokenizer
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.data.tokenizing import with_tags
from bertaccum.data.word_splitting import split_words
from bertaccum.options.task_names import TOKEN_CLASSIFICATION
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.token_classification import TokenClassification
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


# Strings that Python and TensorFlow could read differently: spaces, controls, private use.
ODD = [
    "a\x00b \x00 c",
    "a\x1cb\x85c\u2028d\u3000e",
    "\x0b\x0ca\u180e\u200b \u200b",
    "\x01\x02 \x03",
    "\U000f0000 a\U00100000 \ue000",
    "\ufffd \ufeff\ufeffa",
    "İstanbul ǅ ß ﬁ e\u0301 \u0301",
    "x" * 300,
]
ADDED = {"New York": False, "[MASK]": False, "dance": True, "!": True}
CLEANING: dict[str, dict[str, Any]] = {
    "vocab.txt": {},
    "vocab_cased.txt": {},
    "vocab_chinese.txt": {},
    "accents stay": {"strip_accents": False, "split_chinese": False},
    "added": {"added": ADDED},
    "added, as transformers": {"added": ADDED, "as_transformers": True},
}


@pytest.fixture(scope="module")
def odd_texts(shared: Path) -> list[str]:
    names = ("tokens", "tokens_more", "pairs")
    golden = [json.loads((shared / f"golden/{name}.json").read_text("utf-8")) for name in names]
    return sorted({*strings(golden), *ODD})


def test_words_of_odd_texts_are_all_that_is_no_space(odd_texts: list[str]) -> None:
    assert_splits_alike(odd_texts)
    assert len(odd_texts) > 400
    for text in odd_texts:
        spans = word_spans(text)
        places = [at for span in spans for at in range(*span)]
        assert all(start < end for start, end in spans)
        assert places == [at for at, character in enumerate(text) if not character.isspace()]


@pytest.mark.parametrize("cleaning", CLEANING)
def test_tags_of_odd_texts_are_those_of_the_same_words(
    shared: Path, odd_texts: list[str], cleaning: str
) -> None:
    """Cleaning drops and splits characters, but each word has one tag, also in exported models."""
    known = (shared / "data/vocab" / cleaning).exists()
    vocabulary = read_tokenizer(shared / "data/vocab" / (cleaning if known else "vocab.txt"))
    if added := CLEANING[cleaning].get("added"):
        vocabulary = dataclasses.replace(
            vocabulary, entries=[*dict.fromkeys([*vocabulary.entries, *added])]
        )
    vocabulary = dataclasses.replace(vocabulary, **CLEANING[cleaning])
    tokenizer = Tokenizer(Tokenization(vocabulary, 512, words="first"))
    given = [SplitText.of(text[a:b] for a, b in word_spans(text)) for text in odd_texts]
    pieces = tokenizer.pieces(tf.constant(given))
    exported = tf.strings.reduce_join(split_words(tf.constant(odd_texts))[0], 1, separator=" ")
    assert pieces.to_list() == tokenizer.pieces(exported).to_list()
    for text, row in zip(odd_texts, pieces, strict=True):
        assert int(tf.reduce_sum(tf.cast(tags_of(row) >= 0, tf.int32))) == len(word_spans(text))


def test_entities_of_odd_texts_are_parts_of_them(odd_texts: list[str]) -> None:
    form = {"separator": " ", "scheme": "BIO"}
    names = ["O", "B-X", "I-X"]
    task = make_task(Labels(["0", "1", "2"], names, task=TOKEN_CLASSIFICATION, format=form))
    assert isinstance(task, TokenClassification)
    for text in odd_texts:
        spans = word_spans(text)
        tags = [("B-X", "I-X", "O")[number % 3] for number in range(len(spans))]
        found = task.in_text(text, spans, tags, [0.5] * len(tags))["entities"]
        assert len(found) == -(-len(spans) // 3)
        assert all(one["text"] == text[one["start"] : one["end"]] for one in found)
        assert all(a["end"] <= b["start"] for a, b in pairwise(found))


def test_words_of_split_texts_keep_their_places() -> None:
    text = SplitText.of(["a b", "", "(c)"])
    assert [text[start:end] for start, end in word_spans(text)] == ["a\u00a0b", "\ufffd", "(c)"]
