"""The tokenizer returns the same ids as the original BERT tokenizer for any text."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import plain_tokenizer
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from official.nlp.tools.tokenization import FullTokenizer

from bertaccum.bert.packed_tokens import unpack
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.tokenizer_files import read_tokenizer
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary

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
    return Tokenizer(Tokenization(Vocabulary(VOCABULARY), 8))


def test_ids_match_golden_ids(shared: Path) -> None:
    golden = json.loads((shared / "golden/tokens.json").read_text(encoding="utf-8"))
    check(golden, 147, google(shared, "uncased"))


GOOGLE = {"uncased": "vocab.txt", "cased": "vocab_cased.txt", "chinese": "vocab_chinese.txt"}


def google(shared: Path, kind: str) -> Vocabulary:
    """Return Google's vocabulary, with the cleaning that its entries suggest."""
    return read_tokenizer(shared / "data/vocab" / GOOGLE[kind])


def check(golden: list[dict[str, Any]], count: int, vocabulary: Vocabulary) -> None:
    assert len(golden) == count
    texts = [case["text"] for case in golden]
    pieces = Tokenizer(Tokenization(vocabulary, 128)).pieces(tf.constant(texts)).to_list()
    for case, ids in zip(golden, pieces, strict=True):
        assert ids == case["ids"], case["text"]
    assert plain_tokenizer.ids(texts, vocabulary) == pieces


@pytest.mark.parametrize(("kind", "count"), [("cased", 85), ("chinese", 105), ("uncased", 25)])
def test_ids_match_golden_ids_of_other_vocabularies(shared: Path, kind: str, count: int) -> None:
    golden = json.loads((shared / "golden/tokens_more.json").read_text(encoding="utf-8"))
    vocabulary = google(shared, kind)
    assert vocabulary.lower_case == vocabulary.strip_accents == (kind != "cased")
    check(golden[kind], count, vocabulary)


# Characters of the scripts and blocks that models are trained on, and all others, rarely.
BLOCKS = ["a-z", "A-Z", "0-9", " -~", "\u00a0-\u024f", "\u0300-\u036f", "\u0370-\u04ff"]
BLOCKS += ["\u0590-\u06ff", "\u0900-\u097f", "\u1100-\u11ff", "\u2000-\u206f", "\u3040-\u30ff"]
BLOCKS += ["\u4e00-\u9fff", "\uac00-\ud7a3", "\uf900-\ufaff", "\U0001f300-\U0001f64f", "  "]


def drawn_texts(count: int) -> list[str]:
    """Return random texts in several scripts, without characters that Unicode has not assigned.

    Python and the ops may have different versions of Unicode's tables.
    """
    rng, texts = np.random.default_rng(0), []
    for _ in range(count):
        block = BLOCKS[rng.integers(len(BLOCKS))]
        letters = []
        for _ in range(rng.integers(1, 40)):
            if rng.random() < 0.3:
                block = BLOCKS[rng.integers(len(BLOCKS))]
            first, last = (ord(block[0]), ord(block[-1])) if rng.random() < 0.97 else (0, 0x2FFFF)
            letters.append(chr(rng.integers(first, last + 1)))
        kept = [c for c in letters if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
        texts.append("".join(kept))
    return texts


@pytest.mark.parametrize("kind", GOOGLE)
def test_ids_of_drawn_texts_follow_the_rules(shared: Path, kind: str) -> None:
    texts, vocabulary = drawn_texts(10_000), google(shared, kind)
    pieces = Tokenizer(Tokenization(vocabulary, 128)).pieces(tf.constant(texts)).to_list()
    known = sum(len(ids) for ids in pieces)
    for text, ids, own in zip(texts, plain_tokenizer.ids(texts, vocabulary), pieces, strict=True):
        assert own == ids, [text, ascii(text)]
    assert known > 50_000


SETTINGS = [
    {"lower_case": lower, "strip_accents": strip, "split_chinese": chinese}
    for lower in (False, True)
    for strip in (False, True)
    for chinese in (False, True)
]


@pytest.mark.parametrize("cleaning", SETTINGS, ids=str)
def test_each_setting_follows_the_rules(shared: Path, cleaning: dict[str, bool]) -> None:
    vocabulary = dataclasses.replace(google(shared, "cased"), **cleaning)
    texts = [*drawn_texts(300), "Ünïcödé 中文 ÉCOLE naïve", "x" * 200 + " " + "X" * 201]
    pieces = Tokenizer(Tokenization(vocabulary, 128)).pieces(tf.constant(texts)).to_list()
    for text, ids, own in zip(texts, plain_tokenizer.ids(texts, vocabulary), pieces, strict=True):
        assert own == ids, [text, ascii(text)]


def test_tokenizer_is_saved_as_a_graph(shared: Path, tmp_path: Path) -> None:
    vocabulary = dataclasses.replace(google(shared, "cased"), split_chinese=False)
    tokenizer, texts = saved(vocabulary, tmp_path), tf.constant(drawn_texts(200))
    again = tf.saved_model.load(str(tmp_path)).ids(texts)
    np.testing.assert_array_equal(again, tokenizer.pieces(texts).to_tensor(-1))


def saved(vocabulary: Vocabulary, folder: Path) -> Tokenizer:
    """Save a graph that returns the IDs of texts, and return its tokenizer."""
    tokenizer, module = Tokenizer(Tokenization(vocabulary, 128)), tf.Module()
    module.ids = tf.function(
        lambda texts: tokenizer.pieces(texts).to_tensor(-1),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, str(folder))
    return tokenizer


# Prints what the op makes of a capital by itself, and the IDs of a tokenizer and of a saved graph.
IN_LOCALE = """
import json, sys
import tensorflow as tf
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.vocabulary import Vocabulary
capital, texts, vocabulary, folder = json.load(sys.stdin)
own = Tokenizer(Tokenization(Vocabulary(**vocabulary), 128)).pieces(tf.constant(texts))
graph = tf.saved_model.load(folder).ids(tf.constant(texts))
lowered = tf.strings.lower(capital, encoding="utf-8").numpy().decode()
print(json.dumps([lowered, own.to_tensor(-1).numpy().tolist(), graph.numpy().tolist()]))
"""


@pytest.mark.parametrize(
    ("language", "capital", "lowered", "strip_accents"),
    [
        ("tr_TR.UTF-8", "I", "\u0131", True),
        pytest.param("lt_LT.UTF-8", "Ì", "i\u0307\u0300", False, marks=pytest.mark.slow),
    ],
)
def test_ids_do_not_depend_on_the_language_of_the_environment(
    tmp_path: Path, language: str, capital: str, lowered: str, strip_accents: bool
) -> None:
    texts = ["I LOVE THIS, It IS", "İstanbul I\u0307 IŞIK", "Ì Í Ĩ JĮ Į\u0301 J\u0301 I\u0301"]
    letters = {letter for text in texts for letter in text.lower() if letter not in " ,"}
    pieces = [*letters, *(f"##{letter}" for letter in letters)]
    vocabulary = Vocabulary([*SPECIAL_TOKENS, ",", *pieces], strip_accents=strip_accents)
    saved(vocabulary, tmp_path)
    others = {name: value for name, value in os.environ.items() if not name.startswith("LC_")}
    done = subprocess.run(
        [sys.executable, "-c", IN_LOCALE],
        input=json.dumps([capital, texts, dataclasses.asdict(vocabulary), str(tmp_path)]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=others | {"LANG": language},
    )
    op, *found = json.loads(done.stdout)
    assert op == lowered  # Otherwise, this test could not fail.
    expected = tf.ragged.constant(plain_tokenizer.ids(texts, vocabulary)).to_tensor(-1)
    for ids in found:
        np.testing.assert_array_equal(ids, expected)


def test_added_entries_are_matched_before_words_are_split() -> None:
    entries = [*VOCABULARY, "<url>", "New-Food", "good.food"]
    added = {"<url>": False, "New-Food": True, "good.food": False}
    tokenizer = Tokenizer(Tokenization(Vocabulary(entries, added=added), 16))
    url, new, good = len(entries) - 3, len(entries) - 2, len(entries) - 1
    the, x = entries.index("the"), entries.index("x")
    found = tokenizer.pieces(
        tf.constant(["the<url>x", "NEW-food", "good.food", "<URL>", "\U000f0000 good-food"])
    ).to_list()
    unknown = entries.index("[UNK]")
    assert found[:3] == [[the, url, x], [new], [good]]
    assert url not in found[3] and len(found[3]) == 3
    assert found[4] == [unknown, *(entries.index(e) for e in ("good", "-", "food"))]


@settings(max_examples=300)
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


@pytest.mark.parametrize("fraction", [1.0, 0.0, 0.25, 0.5])
def test_truncation_keeps_the_beginning_the_end_or_both(fraction: float) -> None:
    """A list of numbers is cut as the definition tells; in pairs, the longer text first."""
    letters = [VOCABULARY.index(letter) for letter in "abeix"]

    def part(ids: list[int], count: int) -> list[int]:
        head = math.ceil(fraction * count) if count < len(ids) else count
        return ids[:head] + ids[len(ids) - count + head :]

    rng = np.random.default_rng(0)
    rows = [rng.choice(letters, rng.integers(0, 14)).tolist() for _ in range(60)]
    texts = [" ".join(VOCABULARY[number] for number in row) for row in rows]
    tokenizer = Tokenizer(Tokenization(Vocabulary(VOCABULARY), 10, fraction))
    singles = tokenizer(tf.constant(texts)).to_list()
    assert singles == [[2, *part(row, min(len(row), 8)), 3] for row in rows]

    pairs = tokenizer(tf.constant(texts[:30]), tf.constant(texts[30:]))
    expected = []
    for first, second in zip(rows[:30], rows[30:], strict=True):
        one, two, room = len(first), len(second), 8 - (len(second) > 0)
        while one + two > room:
            one, two = (one - 1, two) if one > two else (one, two - 1)
        end = [*part(second, two), 3] if second else []
        expected.append([2, *part(first, one), 3, *end])
    assert unpack(pairs)[0].to_list() == expected


def test_lengths_are_counted_before_truncation(tokenizer: Tokenizer) -> None:
    texts = tf.constant(["", "good", "good " * 20])
    tokens, lengths = tokenizer.with_lengths(texts)
    assert tokens.to_list() == tokenizer(texts).to_list()
    assert lengths.numpy().tolist() == [2, 3, 22]
