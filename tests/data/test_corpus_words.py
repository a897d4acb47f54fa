"""The most frequent words that a vocabulary splits are found in a corpus."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.data import corpus_words
from bertaccum.data.corpus_words import frequent_split_words
from bertaccum.system.progress import silent
from data_prep.tables.corpus import Corpus, find_corpus

VOCABULARY = Vocabulary([*SPECIAL_TOKENS, "pain", "##killer", "##s", "1", "##2", "a", "##b", "日"])


@pytest.fixture
def read(tmp_path: Path) -> Corpus:
    lines = ["12 12 12 12, pain! Pain", "ab AB painkillers", "pains ab", "日本 unknown 日", "pains"]
    (tmp_path / "a.txt").write_text("\n".join(lines * 3))
    return find_corpus([tmp_path / "a.txt"])


def test_frequent_split_words_come_first(read: Corpus) -> None:
    words = ["ab", "pains", "painkillers"]
    for count in (1, 2, 3, 9):
        assert frequent_split_words(read, VOCABULARY, count, silent) == words[:count]


def test_words_with_the_same_frequency_are_sorted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("pains\nabb\npainb\nab\n")
    corpus = find_corpus([tmp_path / "a.txt"])
    assert frequent_split_words(corpus, VOCABULARY, 9, silent) == ["ab", "abb", "painb", "pains"]


def test_words_that_are_too_long_for_an_entry_are_left_out(tmp_path: Path) -> None:
    words = ["a" + "b" * count for count in (257, 256, 255, 1)]
    (tmp_path / "a.txt").write_text("\n".join(words))
    vocabulary = dataclasses.replace(VOCABULARY, longest_word=300)
    corpus = find_corpus([tmp_path / "a.txt"])
    assert frequent_split_words(corpus, vocabulary, 9, silent) == ["ab", "a" + "b" * 255]


def test_rare_words_are_forgotten(read: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_words, "_MOST_WORDS", 5)
    assert frequent_split_words(read, VOCABULARY, 9, silent) == ["ab", "pains"]
