"""The tokenizer returns the same ids as the original BERT tokenizer for any text."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from official.nlp.tools.tokenization import FullTokenizer

from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, read_vocabulary

# Assigned characters: Python and the ops may have different versions of the Unicode tables.
ASSIGNED = st.characters(exclude_categories=["Cs", "Cn"])
VOCABULARY = [
    *SPECIAL_TOKENS,
    *("a", "##a", "b", "##b", "e", "##e", "i", "##i", "ss", "ß", "##ß", "…", "™", "中", "я", "##я"),
    *(".", ",", "'", "-", "!", "$", "5", "##5", "x", "##x", "the", "##ing", "good", "food"),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> FullTokenizer:
    """Return the original algorithm, from tf-models-official, with the original word limit."""
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    tokenizer = FullTokenizer(str(path), do_lower_case=True)
    tokenizer.wordpiece_tokenizer.max_input_chars_per_word = 200
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(VOCABULARY, max_seq_length=8)


def test_ids_match_golden_ids(shared: Path) -> None:
    golden = json.loads((shared / "golden/tokens.json").read_text(encoding="utf-8"))
    vocabulary = read_vocabulary(shared / "data/vocab/vocab.txt")
    pieces = Tokenizer(vocabulary, 128).pieces(tf.constant([case["text"] for case in golden]))
    assert len(golden) == 147
    for case, ids in zip(golden, pieces.to_list(), strict=True):
        assert ids == case["ids"], case["text"]


@settings(max_examples=300, deadline=None)
@given(st.text(st.one_of(st.sampled_from("abei ßя中.$5'\t…é"), ASSIGNED), max_size=40))
@example("İstanbul IŞIK ß ẞ ﬁne ﬀ ½ ™ № “quotes” — dash…")
@example("a" * 200 + " " + "a" * 201 + " " + "я" * 200 + " " + "я" * 201)
@example("a" * 150 + "." + "a" * 150 + "中" + "a" * 150)
@example("nul\x00 bell\x07 soft\u00adhyphen zero\u200bwidth line\u2028separator \ufffd")
def test_any_text_matches_the_original(
    original: FullTokenizer, tokenizer: Tokenizer, text: str
) -> None:
    decomposed = unicodedata.normalize("NFD", text.lower())
    if any(unicodedata.category(character) == "Cn" for character in decomposed):
        return
    expected = original.convert_tokens_to_ids(original.tokenize(text))
    assert tokenizer.pieces(tf.constant([text])).to_list() == [expected]


def test_rows_are_truncated_between_cls_and_sep(tokenizer: Tokenizer) -> None:
    cls, sep = VOCABULARY.index("[CLS]"), VOCABULARY.index("[SEP]")
    good = VOCABULARY.index("good")
    rows = tokenizer(tf.constant(["", "good", "good " * 20])).to_list()
    assert rows == [[cls, sep], [cls, good, sep], [cls, *[good] * 6, sep]]


def test_lengths_are_counted_before_truncation(tokenizer: Tokenizer) -> None:
    texts = tf.constant(["", "good", "good " * 20])
    tokens, lengths = tokenizer.with_lengths(texts)
    assert tokens.to_list() == tokenizer(texts).to_list()
    assert lengths.numpy().tolist() == [2, 3, 22]
