"""Words that are added to a vocabulary become single tokens, in every format."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from bertaccum.bert import added_words
from bertaccum.bert.added_words import pieces_of, read_words, with_words
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.tokenizer_files import read_tokenizer, write_tokenizer
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.errors import BertAccumError, InputError

ENTRIES = [*SPECIAL_TOKENS, "pain", "##killer", "##s", "ibu", "##prof", "##en", "a", "##b", "-"]
VOCABULARY = Vocabulary(ENTRIES)


def tokens(vocabulary: Vocabulary, text: str) -> list[str]:
    ids = Tokenizer(Tokenization(vocabulary, 32))(tf.constant([text])).numpy()[0]
    return [vocabulary.entries[number] for number in ids[1:-1]]


def test_added_words_are_single_tokens(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("Ibuprofen\n\npain\npainkiller\r\nibuprofen\n")
    words = read_words(file, VOCABULARY)
    assert words == ["ibuprofen", "pain", "painkiller", "ibuprofen"]
    extended, pieces = with_words(VOCABULARY, words)
    assert extended.entries == [*ENTRIES, "ibuprofen", "painkiller"]
    assert pieces == [(8, 9, 10), (5, 6)] == pieces_of(VOCABULARY, words[::2])
    text = "Ibuprofen, painkillers, pain-killer and ibuprofén"
    assert tokens(VOCABULARY, "ibuprofen painkillers") == [
        *("ibu", "##prof", "##en", "pain", "##killer", "##s")
    ]
    assert tokens(extended, text) == [
        *("ibuprofen", "[UNK]", "painkiller", "##s", "[UNK]", "pain", "-", "[UNK]", "[UNK]"),
        "ibuprofen",
    ]
    assert with_words(extended, words) == (extended, [])


@pytest.mark.parametrize(
    "vocabulary",
    [
        VOCABULARY,
        Vocabulary(ENTRIES, lower_case=False, strip_accents=False),
        Vocabulary([*ENTRIES, "<drug>"], added={"<drug>": True}, as_transformers=True),
        Vocabulary(
            ENTRIES,
            added=dict.fromkeys(SPECIAL_TOKENS, False),
            longest_word=100,
            as_transformers=True,
        ),
        VOCABULARY.padded(20),
    ],
)
def test_extended_vocabularies_stay_the_same_in_files(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    extended, _ = with_words(vocabulary, ["ibuprofen", "painkiller"])
    assert extended.entries[: len(vocabulary)] == vocabulary.entries
    write_tokenizer(tmp_path, extended)
    assert read_tokenizer(tmp_path / "vocab.txt") == extended
    for text in ("ibuprofen <drug> painkiller", "a [MASK] pain"):
        assert tokens(read_tokenizer(tmp_path / "vocab.txt"), text) == tokens(extended, text)
    assert "ibuprofen" in tokens(extended, "a ibuprofen")


def test_special_tokens_are_known_words(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("[MASK]\nab\n")
    words = read_words(tmp_path / "words.txt", VOCABULARY)
    assert with_words(VOCABULARY, words)[0].entries == [*ENTRIES, "ab"]


@pytest.mark.parametrize("in_cleaned", [True, False])
def test_added_entries_are_known_words(tmp_path: Path, in_cleaned: bool) -> None:
    vocabulary = Vocabulary([*ENTRIES, "FooBar"], added={"FooBar": in_cleaned})
    (tmp_path / "words.txt").write_text("foobar\nFooBar\nab\n")
    words = read_words(tmp_path / "words.txt", vocabulary)
    assert words == ["FooBar" if in_cleaned else "foobar", "FooBar", "ab"]
    extended, _ = with_words(vocabulary, words)
    assert tokens(extended, "FooBar ab") == ["FooBar", "ab"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("pain\ncovid-19\n", "row 2: 'covid-19' is 3 words for the tokenizer; write one word per"),
        ("two words\n", "row 1: 'two words' is 2 words"),
        ("\u0301\n", "row 1: '\u0301' is 0 words"),
        (f"{'x' * 201}\n", "row 1: has a word of more than 200 characters; remove it"),
        (f"a\n{'ж' * 129}\n", "row 2: has a word of more than 256 bytes; remove it"),
        ("\n\n", "words.txt: contains no words; write one word per line"),
    ],
)
def test_bad_lines_are_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "words.txt").write_text(content)
    with pytest.raises(InputError) as error:
        read_words(tmp_path / "words.txt", VOCABULARY)
    assert said in str(error.value)


def test_longest_words_are_added(tmp_path: Path) -> None:
    word = "ж" * 128
    (tmp_path / "words.txt").write_text(word)
    extended, _ = with_words(VOCABULARY, read_words(tmp_path / "words.txt", VOCABULARY))
    assert tokens(extended, f"{word.upper()} a") == [word, "a"]


def test_too_many_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(added_words, "ID_BITS", 4)
    with pytest.raises(BertAccumError, match="17 entries, more than 16"):
        with_words(VOCABULARY, ["x", "y", "z"])
    assert len(with_words(VOCABULARY, ["x", "y"])[0]) == 16
